"""Tasks, and what an attempt at one was worth.

It may use the sandbox, the harness adapters, the proxy and the store.
It never knows training losses.
"""

from __future__ import annotations

from .errors import (
    BrokenTask,
    GatewayFailed,
    MissingVariable,
    NoRoom,
    PlaceFailed,
    Problem,
    RolloutError,
    RunRefused,
    TaskError,
    UnsupportedTask,
    Unusable,
)

__all__ = [
    "BrokenTask",
    "GatewayFailed",
    "MissingVariable",
    "NoRoom",
    "PlaceFailed",
    "Problem",
    "RolloutError",
    "RunRefused",
    "TaskError",
    "UnsupportedTask",
    "Unusable",
]
