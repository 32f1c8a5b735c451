"""What a sandbox shall be: plain values, compared as a whole.

A spec says what is wanted; `Capabilities` says what a backend has; `refuse_what_lacks` compares
the two before anything starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import NewType

from .limits import Limits

SandboxId = NewType("SandboxId", str)
"""Chosen by the caller, so that asking twice makes one sandbox: letters, digits, `-` and `_`."""


class Network(StrEnum):
    """What a sandbox can reach."""

    NONE = "none"
    PROXY_ONLY = "proxy-only"
    """One address on the sandbox's own loopback, behind which `Spec.proxy` answers."""
    ALLOW_LIST = "allow-list"
    OPEN = "open"


class Isolation(StrEnum):
    """What stands between a sandbox and its host."""

    NONE = "none"
    """Nothing: the processes are ordinary ones of the user."""
    NAMESPACES = "namespaces"
    """The kernel's namespaces, one kernel for all."""
    VM = "vm"


class Feature(StrEnum):
    """What a backend may have beyond the interface; a spec `needs` it by name."""

    PTY = "pty"
    PORT_FORWARD = "port-forward"
    PAUSE = "pause"
    SNAPSHOT = "snapshot"
    DIRECT_IP = "direct-ip"
    USERS = "users"
    """Commands as other users than the sandbox's own."""


@dataclass(frozen=True)
class Bind:
    """A file or folder of the host that the sandbox sees, read-only unless it says otherwise."""

    source: Path
    target: str
    """Absolute path inside."""
    writable: bool = False


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What a sandbox shall be. Everything not asked for is absent."""

    image: str | None = None
    """The image to start from; None is the backend's own root (`local`: the host's programs)."""
    network: Network = Network.NONE
    proxy: Path | None = None
    """Unix socket of the host where the proxy listens. It need not listen yet, and may be made anew
    while the sandbox lives."""
    proxy_port: int = 0
    """Port inside, on 127.0.0.1, that leads to `proxy`; 0 takes a free one (`proxy_address`)."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of every command, on top of PATH, HOME, USER, LANG, TMPDIR; none is inherited."""
    workdir: str = "/work"
    """Where commands start; empty and writable at the beginning."""
    home: str = "/home/agent"
    binds: tuple[Bind, ...] = ()
    limits: Limits = field(default_factory=Limits)
    ttl_s: float | None = None
    """Without `touch` for this long the sandbox ends; None leaves it to `limits.deadline_s`."""
    needs: frozenset[Feature] = frozenset()

    def problems(self) -> list[str]:
        """Return what no backend could make sense of."""
        found = self.limits.problems()
        if self.ttl_s is not None and self.ttl_s <= 0:
            found.append(f"ttl_s is {self.ttl_s}: give a positive number or None")
        if self.network is Network.PROXY_ONLY and self.proxy is None:
            found.append("network proxy-only without a proxy: name the proxy's Unix socket")
        if self.network is Network.NONE and self.proxy is not None:
            found.append("a proxy with network none: ask for network proxy-only")
        if not 0 <= self.proxy_port < 65536:
            found.append(f"proxy_port is {self.proxy_port}: give a port, or 0 for a free one")
        for name, path in [("workdir", self.workdir), ("home", self.home)]:
            found += _path_problems(name, path)
        for bind in self.binds:
            found += _path_problems(f"bind of {bind.source}", bind.target)
            if not bind.source.exists():
                found.append(f"bind of {bind.source}: there is no such file or folder")
        for name, value in self.env.items():
            if not name or "=" in name or "\0" in name + value:
                found.append(f"env {name!r} can't be a variable: no '=' or NUL in it")
        return found


def _path_problems(name: str, path: str) -> list[str]:
    pure = PurePosixPath(path)
    if not pure.is_absolute() or ".." in pure.parts or "\0" in path or str(pure) == "/":
        return [f"{name}: {path!r} must be an absolute path below /, without '..'"]
    return []
