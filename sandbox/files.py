"""What is said of a file inside a sandbox."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Kind(StrEnum):
    """What a path leads to; links are not followed."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    OTHER = "other"
    """A socket, a pipe or a device."""


@dataclass(frozen=True)
class Entry:
    """One path inside a sandbox."""

    name: str
    """The last part of the path. Bytes that are not UTF-8 are surrogates, as `os.fsdecode` does."""
    kind: Kind
    size_bytes: int
    mode: int
    """Permission bits."""
    modified_at: datetime
    """UTC, aware."""
    target: str | None = None
    """Where a link leads."""


@dataclass(frozen=True)
class Stats:
    """What a sandbox uses now."""

    n_processes: int
    """Processes of commands; ours are not counted."""
    memory_bytes: int
    """Anonymous memory of these processes; the cgroup's figure where there is one."""
    disk_bytes: int | None
    """What the files hold; None where no limit of disk makes them countable."""
