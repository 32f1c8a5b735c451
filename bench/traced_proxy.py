"""The proxy as `budwood proxy` serves it, with each step of each call written down as it is done.

    python -m bench.traced_proxy --engine URL --store URL --steps FILE --port P --admin-port P

A line a step, `CALL STEP`, appended in one write: what is in the file survives a SIGKILL.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence

from sqlalchemy import Connection, event
from sqlalchemy import Engine as SqlEngine

from budwood.proxy import ProxySettings, running_proxy
from budwood.proxy.recording.steps import Step
from budwood.trajectory_store import CallId, Store


def _flush_nothing(connection: Connection) -> None:
    """Undo the store's `synchronous=FULL`, so that a check of the order has something to find."""
    driver = connection.connection.dbapi_connection
    assert driver is not None
    driver.cursor().execute("PRAGMA synchronous=OFF")


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM, or SIGKILL."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("engine", "store", "steps", "admin-secret"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("port", "admin-port"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--die-at", type=int, default=0, help="SIGKILL itself at this step")
    parser.add_argument("--die-after", type=int, default=1, help="of the n-th call that reaches it")
    parser.add_argument("--synchronous-off", action="store_true", help="unsafe: flush nothing")
    options = parser.parse_args(argv)
    if options.synchronous_off:
        event.listen(SqlEngine, "engine_connect", _flush_nothing)
    settings = ProxySettings.model_validate(
        {
            "port": options.port,
            "admin_port": options.admin_port,
            "admin_secret": options.admin_secret,
            "engine": {"urls": [options.engine]},
        }
    )
    steps = os.open(options.steps, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    left = options.die_after

    def observe(call_id: CallId, step: Step) -> None:
        nonlocal left
        os.write(steps, f"{call_id} {int(step)}\n".encode())
        if step == options.die_at:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    async def serve(store: Store) -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        async with running_proxy(settings, store, observer=observe):
            await stop.wait()

    with Store.open(options.store) as store:
        asyncio.run(serve(store))
    return 0


if __name__ == "__main__":
    sys.exit(main())
