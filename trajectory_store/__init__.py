"""The memory: rollouts, lanes and calls, their sequences and outcomes, kept, read and exported.

It may use no other room.
It never knows who writes and who reads.
"""

from .bodies import RequestBody
from .database import file_of
from .errors import (
    NotStored,
    NotWritten,
    SchemaTooNew,
    SelectorError,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreGone,
)
from .ids import (
    CallId,
    LaneId,
    RolloutId,
    RunId,
    new_call_id,
    new_lane_id,
    new_rollout_id,
    new_run_id,
)
from .outcome import CAUSES, FailureClass, Outcome, class_of
from .records import (
    Boundary,
    Call,
    CallIntent,
    CallResult,
    CallState,
    History,
    Lane,
    LaneKind,
    PromptMode,
    Purpose,
    Rollout,
    Run,
    Sequence,
    Tokens,
    Turn,
)
from .store import Store

__all__ = [
    "CAUSES",
    "Boundary",
    "Call",
    "CallId",
    "CallIntent",
    "CallResult",
    "CallState",
    "FailureClass",
    "History",
    "Lane",
    "LaneId",
    "LaneKind",
    "NotStored",
    "NotWritten",
    "Outcome",
    "PromptMode",
    "Purpose",
    "RequestBody",
    "Rollout",
    "RolloutId",
    "Run",
    "RunId",
    "SchemaTooNew",
    "SelectorError",
    "Sequence",
    "Store",
    "StoreBusy",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreGone",
    "Tokens",
    "Turn",
    "class_of",
    "file_of",
    "new_call_id",
    "new_lane_id",
    "new_rollout_id",
    "new_run_id",
]
