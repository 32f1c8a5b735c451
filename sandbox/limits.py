"""What a sandbox may use, and how a backend holds it to that."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MIB = 1024**2
GIB = 1024**3


class Limit(StrEnum):
    """What can be limited."""

    TIME = "time"
    OUTPUT = "output"
    MEMORY = "memory"
    PIDS = "pids"
    DISK = "disk"
    CPU = "cpu"


class Enforcement(StrEnum):
    """How a limit is held."""

    KERNEL = "kernel"
    """The kernel refuses what passes it, counted over the whole sandbox."""
    WATCHED = "watched"
    """The sandbox is looked at ten times a second and what passes the limit is killed; the kernel
    holds each single process to twice the limit meanwhile."""
    BUDWOOD = "budwood"
    """Ours to hold: we count, and kill."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one sandbox; None is no limit, and must be asked for."""

    deadline_s: float | None = 3600.0
    """The sandbox ends this long after it became ready, whoever uses it."""
    output_bytes: int | None = 64 * MIB
    """What one command may write to stdout and stderr together; one that writes more is killed."""
    memory_bytes: int | None = 4 * GIB
    """Memory of all processes together. Where `disk_bytes` is held in memory (backend `local`) the
    files come on top."""
    pids: int | None = 512
    """Processes and threads together."""
    disk_bytes: int | None = 2 * GIB
    """What all files that the sandbox wrote may hold together; binds are not counted."""
    cpus: float | None = None
    """Processor cores, as a share of time."""

    def asked(self) -> set[Limit]:
        """Return which limits are set."""
        values = {
            Limit.TIME: self.deadline_s,
            Limit.OUTPUT: self.output_bytes,
            Limit.MEMORY: self.memory_bytes,
            Limit.PIDS: self.pids,
            Limit.DISK: self.disk_bytes,
            Limit.CPU: self.cpus,
        }
        return {limit for limit, value in values.items() if value is not None}

    def problems(self) -> list[str]:
        """Return what is not a limit at all."""
        named = {
            "deadline_s": self.deadline_s,
            "output_bytes": self.output_bytes,
            "memory_bytes": self.memory_bytes,
            "pids": self.pids,
            "disk_bytes": self.disk_bytes,
            "cpus": self.cpus,
        }
        return [
            f"limits.{name} is {value}: give a positive number, or None for no limit"
            for name, value in named.items()
            if value is not None and value <= 0
        ]


UNLIMITED = Limits(
    deadline_s=None, output_bytes=None, memory_bytes=None, pids=None, disk_bytes=None
)
"""Nothing is limited: for a backend that can't, and a caller who knows."""
