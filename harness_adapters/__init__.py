"""One file per harness: how it is pointed at an endpoint, installed, launched, and its end read.

It may use the sandbox's interface, no other room.
It never knows the insides of the proxy, nor the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .adapter import Adapter
from .errors import HarnessError, InstallFailed, NotInstalled, NotLaunched, UnknownHarness
from .installation import Installation, find_installation
from .launch import (
    Ended,
    HarnessResult,
    Launch,
    LaunchContext,
    Prepared,
    Status,
    TurnLimit,
    Usage,
)
from .pointing import Dialect, Endpoint, Pointing
from .registry import ADAPTERS, GENERIC, LAUNCHED, adapter_named, adapter_of, installation_of
from .told import Told, told_of

__all__ = [
    "ADAPTERS",
    "GENERIC",
    "LAUNCHED",
    "Adapter",
    "Dialect",
    "Ended",
    "Endpoint",
    "HarnessError",
    "HarnessResult",
    "InstallFailed",
    "Installation",
    "Launch",
    "LaunchContext",
    "NotInstalled",
    "NotLaunched",
    "Pointing",
    "Prepared",
    "Status",
    "Told",
    "TurnLimit",
    "UnknownHarness",
    "Usage",
    "adapter_named",
    "adapter_of",
    "find_installation",
    "installation_of",
    "point",
    "told_of",
]


def point(
    argv: Sequence[str],
    endpoint: Endpoint,
    home: Path,
    *,
    cwd: Path | None = None,
    harness: str | None = None,
) -> Pointing:
    """Return what makes a command talk to an endpoint.

    The harness is known by its program's name unless `harness` names it; raises UnknownHarness.
    `home` is a folder of this run's own, for the harness's configuration and state.
    """
    adapter = adapter_named(harness) if harness else adapter_of(argv)
    return adapter.point(argv, endpoint, home, cwd or Path.cwd())
