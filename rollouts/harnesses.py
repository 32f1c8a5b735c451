"""A harness in a sandbox: its files laid out, its process run, its own account read.

The adapter says what to do; this applies it to a sandbox.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from budwood.harness_adapters import (
    Adapter,
    Ended,
    Endpoint,
    HarnessResult,
    Installation,
    LaunchContext,
    Prepared,
    TurnLimit,
    adapter_named,
    installation_of,
)
from budwood.sandbox import Completed, FileFailed, Kind, Sandbox

HOME = "/home/agent/.budwood"
"""The private home of the run, inside."""
MAX_ARTIFACT_BYTES = 64 * 1024**2
MAX_ARTIFACTS = 1000
MAX_FOLDERS = 1000
"""Looked into for logs: the policy can make more than there is time for."""


@dataclass(frozen=True, slots=True)
class Harness:
    """One harness that is installed here and can be launched."""

    adapter: Adapter
    installation: Installation

    @property
    def name(self) -> str:
        """The adapter's name."""
        return self.adapter.name

    @property
    def turns_are_counted_by_proxy(self) -> bool:
        """Whether a limit of turns has to be a budget of calls, since it has none of its own."""
        assert self.adapter.launch is not None
        return self.adapter.launch.turn_limit is TurnLimit.PROXY

    async def lay_out(
        self,
        sandbox: Sandbox,
        instruction: str,
        endpoint: Endpoint,
        *,
        max_turns: int | None,
        timeout_s: float,
    ) -> Prepared:
        """Write its files into the sandbox and return what to start."""
        context = LaunchContext(
            instruction=instruction,
            workdir=sandbox.workdir,
            home=HOME,
            endpoint=endpoint,
            max_turns=max_turns,
            timeout_s=timeout_s,
        )
        prepared = self.adapter.prepare(context, self.installation)
        for name, text in prepared.files.items():
            await sandbox.put(f"{HOME}/{name}", text.encode(), mode=0o600)
        return prepared

    def read_result(self, done: Completed, artifacts: Mapping[str, bytes]) -> HarnessResult:
        """Return how it ended by its own account."""
        assert self.adapter.launch is not None
        return self.adapter.launch.parse(
            Ended(
                exit_code=done.exit.code,
                stdout=done.stdout.head + done.stdout.tail,
                stderr=done.stderr.head + done.stderr.tail,
                artifacts=artifacts,
            )
        )

    async def artifacts(self, sandbox: Sandbox) -> dict[str, bytes]:
        """Return its own logs: path below its private home → content."""
        assert self.adapter.launch is not None
        found: dict[str, bytes] = {}
        room = MAX_ARTIFACT_BYTES
        for glob in self.adapter.launch.artifacts:
            for path in await _matches(sandbox, glob):
                if len(found) == MAX_ARTIFACTS:
                    return found
                content = await _read(sandbox, f"{HOME}/{path}", room)
                if content is not None:
                    found[path] = content
                    room -= len(content)
        return found


def harness_named(name: str, folder: Path | None = None) -> Harness:
    """Return a harness that can be launched here.

    folder: where it is installed; None: where `budwood harness install` and `make harnesses` put
    it. Raises UnknownHarness, NotLaunched, NotInstalled.
    """
    return Harness(adapter_named(name), installation_of(name, folder))


async def _matches(sandbox: Sandbox, glob: str) -> list[str]:
    """Return the files below the private home that a glob names, in their order."""
    parts = PurePosixPath(glob).parts
    fixed: list[str] = []
    for part in parts:
        if any(mark in part for mark in "*?["):
            break
        fixed.append(part)
    if len(fixed) == len(parts):
        return [glob]
    found: list[str] = []
    folders = ["/".join(fixed)]
    n_seen = 0
    while folders and len(found) < MAX_ARTIFACTS and n_seen < MAX_FOLDERS:
        folder = folders.pop()
        n_seen += 1
        try:
            entries = await sandbox.list(f"{HOME}/{folder}")
        except FileFailed:
            continue
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if entry.kind is Kind.FOLDER:
                folders.append(path)
            elif entry.kind is Kind.FILE and fnmatch(path, glob):
                found.append(path)
    return sorted(found)


async def _read(sandbox: Sandbox, path: str, room: int) -> bytes | None:
    pieces: list[bytes] = []
    try:
        async with aclosing(sandbox.get(path)) as coming:
            async for piece in coming:
                pieces.append(piece)
                room -= len(piece)
                if room < 0:
                    return None
    except FileFailed:
        return None
    return b"".join(pieces)


def write_artifacts(folder: Path, artifacts: Mapping[str, Any]) -> None:
    """Write artifacts below a folder of the host; a name that leads outside is left out.

    So is one that is too long below this folder.
    """
    base = folder.resolve()
    for name, content in artifacts.items():
        path = (base / name).resolve()
        if path.is_relative_to(base):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
