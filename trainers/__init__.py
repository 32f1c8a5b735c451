"""Sequences in, weights out: SFT and GRPO from recorded tokens, and new weights into the engine.

It may use the store, and ask the rollouts room for more.
It never knows wire formats and sandboxes.
"""

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
from .rows import Attempt, Batch, Row, WeightMode, compared, grpo_batch, sft_batch

__all__ = [
    "AdvantageSettings",
    "Attempt",
    "Batch",
    "ConfigError",
    "Mismatched",
    "MissingExtra",
    "NothingToTrain",
    "Row",
    "RowsError",
    "RunError",
    "SyncFailed",
    "TrainerError",
    "WeightMode",
    "advantages",
    "compared",
    "grpo_batch",
    "sft_batch",
]
