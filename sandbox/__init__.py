"""Where a rollout runs: one interface, and backends that make isolated places on a machine.

It may use no other room. It never knows harnesses, models or tasks.
"""

from __future__ import annotations

from .archive import pack, unpack
from .backends import BACKENDS, backend_named
from .capabilities import Capabilities
from .errors import (
    Closed,
    Deadline,
    FileFailed,
    Lost,
    NoCapacity,
    Refused,
    SandboxError,
    StartFailed,
    Stuck,
)
from .files import Entry, Kind, Stats
from .interface import Backend, Command, Execution, Sandbox
from .limits import GIB, MIB, UNLIMITED, Enforcement, Limit, Limits
from .local import LocalBackend, LocalSettings
from .output import Captured, Cause, Completed, Exit, Frame, Spool, Stream
from .spec import Bind, Feature, Isolation, Network, SandboxId, Spec

__all__ = [
    "BACKENDS",
    "GIB",
    "MIB",
    "UNLIMITED",
    "Backend",
    "Bind",
    "Capabilities",
    "Captured",
    "Cause",
    "Closed",
    "Command",
    "Completed",
    "Deadline",
    "Enforcement",
    "Entry",
    "Execution",
    "Exit",
    "Feature",
    "FileFailed",
    "Frame",
    "Isolation",
    "Kind",
    "Limit",
    "Limits",
    "LocalBackend",
    "LocalSettings",
    "Lost",
    "Network",
    "NoCapacity",
    "Refused",
    "Sandbox",
    "SandboxError",
    "SandboxId",
    "Spec",
    "Spool",
    "StartFailed",
    "Stats",
    "Stream",
    "Stuck",
    "backend_named",
    "pack",
    "unpack",
]
