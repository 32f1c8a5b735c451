"""The event loop of long-running commands: uvloop where it is installed, and how they end."""

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end; measured, uvloop halves the added latency of a short call."""
    try:
        from uvloop import new_event_loop
    except ImportError:  # Windows
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


def run_until_ended(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end; Ctrl-C or SIGTERM cancels it, which is an ordinary end too."""

    async def run() -> None:
        task = asyncio.ensure_future(main)
        was_asked = False

        def end() -> None:
            nonlocal was_asked
            was_asked = True
            task.cancel()

        with contextlib.suppress(NotImplementedError):  # Windows
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)
        try:
            await task
        except asyncio.CancelledError:
            if not was_asked:
                raise

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run())
