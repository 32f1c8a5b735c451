"""What a task needs of the place where it is done, graded and checked.

A sandbox is one (`budwood.rollouts.sandbox_place`). A place that is gone, or can't do what it must,
raises PlaceFailed, which passes through unchanged: it is no verdict on anybody's work. How a
command ended is data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..errors import NoRoom, Unusable
from .folder import Task

TESTS = "/tests"
SOLUTION = "/solution"
AGENT_LOGS = "/logs/agent"
VERIFIER_LOGS = "/logs/verifier"
HOUSEKEEPING_S = 60.0
"""How long making and clearing folders may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """How one command ended. Exactly one of exit_code, signal and timed_out says so."""

    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    """It was ended, with all it had started, when its time was up."""
    stdout: bytes = b""
    stderr: bytes = b""
    """As much of both as the place keeps, also of a command that was ended."""
    is_full: bool = False
    """The place had no room left on its disk when it ended."""

    @property
    def said(self) -> str:
        """Both streams as text, stdout first."""
        return (self.stdout + self.stderr).decode("utf-8", "replace")


class Place(Protocol):
    """A file system and programs, for one task only. Its user may write below `/`."""

    async def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        timeout_s: float,
    ) -> ExecResult:
        """Run a command to its end; when its time is up, end it with all that it started.

        `env` is added to the place's own.
        """
        ...

    async def kill_all(self) -> None:
        """End every process that was started in it, and return when none is left."""
        ...

    async def put_tree(self, local: Path, remote: str) -> None:
        """Copy what is in a folder into one inside, made if need be; mode bits and links stay."""
        ...

    async def read(self, path: str) -> bytes | None:
        """Return the content of a regular file inside, None if there is none.

        Of a file that no verifier writes, so large is it, only the first bytes.
        """
        ...


async def keep_house(place: Place, script: str, *arguments: str) -> None:
    """Run a few lines of sh that must succeed; raises Unusable, NoRoom where the disk is full."""
    done = await place.exec(
        ["sh", "-ec", script, "sh", *arguments],
        env={},
        cwd="/",
        timeout_s=HOUSEKEEPING_S,
    )
    if done.exit_code != 0:
        how = done.said.strip()[-500:] or f"sh ended with {done}"
        kind = NoRoom if done.is_full else Unusable
        raise kind(f"the place can't be made ready: {how}")


async def prepare(task: Task, place: Place, *, with_files: bool = True) -> None:
    """Make a fresh place ready for a task: its folders and, for a local task, its files.

    `tests/` and `solution/` do not go in before their time. Raises Unusable.
    """
    folders = [task.workdir, AGENT_LOGS, VERIFIER_LOGS]
    await keep_house(place, 'mkdir -p -- "$@"', *folders)
    if with_files and task.files_dir is not None:
        await place.put_tree(task.files_dir, task.workdir)
