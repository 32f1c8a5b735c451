"""The parent of all background tasks of one proxy.

Unlike `asyncio.TaskGroup` it does not wrap what its owner raises, and one task's end is no
other's concern: generations catch their own failures.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Self


class Tasks:
    """Owns tasks from `spawn` to the end of the context, which cancels and awaits what is left."""

    def __init__(self) -> None:
        """No tasks yet."""
        self._running: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        """Begin to own tasks."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancel what still runs and wait for it."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task that this object owns."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task
