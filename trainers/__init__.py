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
from .mismatch import Mismatch, check
from .rows import Attempt, Batch, Row, WeightMode, compared, grpo_batch, sft_batch
from .settings import GrpoConfig, PolicySettings, SftConfig

if TYPE_CHECKING:
    from .policy import Policy, StepMetrics

__all__ = [
    "AdvantageSettings",
    "Attempt",
    "Batch",
    "ConfigError",
    "GrpoConfig",
    "Mismatch",
    "Mismatched",
    "MissingExtra",
    "NothingToTrain",
    "Policy",
    "PolicySettings",
    "Row",
    "RowsError",
    "RunError",
    "SftConfig",
    "StepMetrics",
    "SyncFailed",
    "TrainerError",
    "WeightMode",
    "advantages",
    "check",
    "compared",
    "grpo_batch",
    "sft_batch",
]


_HEAVY = {"Policy": "policy", "StepMetrics": "policy"}
"""Name → the module that needs the extra `train`, imported when the name is first used."""


def __getattr__(name: str) -> Any:
    if name in _HEAVY:
        return getattr(heavy(_HEAVY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
