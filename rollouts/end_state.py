"""What an agent left in its working directory, kept as a tar so that it can be graded again.

It is what the verifier sees first: everything below the task's working directory, after the end of
all processes and before the tests came. What an agent changed elsewhere is not kept, and nothing
where it is too much.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

from budwood.sandbox import FileFailed, Sandbox

END_STATE = "workdir.tar"
MAX_BYTES = 256 * 1024**2
_PIECE_BYTES = 256 * 1024


async def keep_end_state(sandbox: Sandbox, workdir: str, file: Path) -> None:
    """Write the working directory as a tar to a file of the host, whole or not at all."""
    part = file.with_suffix(".part")
    n_bytes = 0
    try:
        with await asyncio.to_thread(part.open, "wb") as out:
            async with aclosing(sandbox.get_tree(workdir)) as pieces:
                async for piece in pieces:
                    n_bytes += len(piece)
                    if n_bytes > MAX_BYTES:
                        return
                    await asyncio.to_thread(out.write, piece)
        await asyncio.to_thread(part.replace, file)
    except FileFailed:
        return  # the agent removed it, or made it unreadable
    finally:
        await asyncio.to_thread(part.unlink, missing_ok=True)


async def put_end_state(sandbox: Sandbox, workdir: str, file: Path) -> None:
    """Lay a kept working directory into a sandbox; raises FileFailed."""

    async def pieces() -> AsyncIterator[bytes]:
        with await asyncio.to_thread(file.open, "rb") as kept:
            while piece := await asyncio.to_thread(kept.read, _PIECE_BYTES):
                yield piece

    await sandbox.put_tree(workdir, pieces())
