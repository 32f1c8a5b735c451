"""A task that lives no longer than a block, whose errors leave the block as they are.

A TaskGroup wraps what the block raises into a group; here the block is the caller's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """Run something beside a block, and end it with the block.

    Its own error is raised at the end of the block, unless the block has one.
    """
    task = asyncio.get_running_loop().create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        error = None if task.cancelled() else task.exception()
    if error is not None:
        raise error
