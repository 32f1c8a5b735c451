"""Sequences in, weights out: SFT and GRPO from recorded tokens, and new weights into the engine.

It may use the store, and ask the rollouts room for more.
It never knows wire formats and sandboxes.
"""

from typing import TYPE_CHECKING, Any

from .advantages import AdvantageSettings, advantages
from .errors import (
    ConfigError,
    Mismatched,
    MissingExtra,
    NothingToTrain,
    RowsError,
    RunError,
    SyncFailed,
    TrainerError,
)
from .extra import heavy
from .grpo import Trained, step_figures, train_grpo
from .mismatch import Mismatch, check
from .online import MakeRollouts, train_online
from .reading import Recorded, read_for_rl, read_for_sft
from .rows import Attempt, Batch, Row, WeightMode, compared, grpo_batch, sft_batch
from .run_folder import RunFolder
from .settings import DataSettings, GrpoConfig, OnlineConfig, PolicySettings, SftConfig
from .sft import train_sft
from .weight_sync import Served, Synced, SyncSettings, WeightSync

if TYPE_CHECKING:
    from .policy import Policy, StepMetrics

__all__ = [
    "AdvantageSettings",
    "Attempt",
    "Batch",
    "ConfigError",
    "DataSettings",
    "GrpoConfig",
    "MakeRollouts",
    "Mismatch",
    "Mismatched",
    "MissingExtra",
    "NothingToTrain",
    "OnlineConfig",
    "Policy",
    "PolicySettings",
    "Recorded",
    "Row",
    "RowsError",
    "RunError",
    "RunFolder",
    "Served",
    "SftConfig",
    "StepMetrics",
    "SyncFailed",
    "SyncSettings",
    "Synced",
    "Trained",
    "TrainerError",
    "WeightMode",
    "WeightSync",
    "advantages",
    "check",
    "compared",
    "grpo_batch",
    "read_for_rl",
    "read_for_sft",
    "sft_batch",
    "step_figures",
    "train_grpo",
    "train_online",
    "train_sft",
]


_HEAVY = {"Policy": "policy", "StepMetrics": "policy"}
"""Name → the module that needs the extra `train`, imported when the name is first used."""


def __getattr__(name: str) -> Any:
    if name in _HEAVY:
        return getattr(heavy(_HEAVY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
