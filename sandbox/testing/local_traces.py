"""What a local sandbox left on this machine: processes, mounts, folders and control groups."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

from ..spec import SandboxId
from .bench import MARK


async def local_traces(root: Path, sandbox_id: SandboxId) -> list[str]:
    """Return what is left of a sandbox; `root` is the backend's folder."""
    return await asyncio.to_thread(_look, root, sandbox_id)


def _look(root: Path, sandbox_id: SandboxId) -> list[str]:
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    # Other sandboxes' groups vanish while we look: a walk passes over what is gone.
    groups = [
        folder
        for folder, _, _ in os.walk("/sys/fs/cgroup")
        if sandbox_id in os.path.basename(folder)
    ]
    return [
        *processes_of(sandbox_id),
        *(f"mount {line}" for line in mounts if sandbox_id in line),
        *(f"folder {path}" for path in root.glob(f"*/{sandbox_id}")),
        *(f"group {folder}" for folder in groups),
    ]


def processes_of(sandbox_id: SandboxId) -> list[str]:
    """Return the processes with a sandbox's mark in their variables, or its id in their words."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes()
            marks = f"{MARK}={sandbox_id}".encode()
            if sandbox_id.encode() in words or marks in (folder / "environ").read_bytes():
                found.append(f"process {folder.name} {words.replace(bytes(1), b' ')[:200]!r}")
    return found
