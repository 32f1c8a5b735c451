"""The demo's teacher: a script that plays a model, and says so. No model, no weights.

    python -m budwood.cli.demo.teacher [--port N]

It prints its address, then answers the demo's tasks until its standard input ends or it is
terminated, so it cannot outlive the demo.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence

from budwood.proxy.testing import Reply, ScriptedCall, ScriptedEngine

from .tasks import answer

NAME = "scripted-teacher"
SAYS = "This is a scripted teacher, not a model: it knows the demo's tasks and nothing else."


def script(call: ScriptedCall) -> Reply:
    """Return the next reply of the task that the prompt is about."""
    try:
        return answer(call.prompt)
    except LookupError:
        return Reply(SAYS)


async def serve(port: int) -> None:
    """Serve until standard input ends."""
    async with ScriptedEngine(script, model=NAME, port=port) as engine:
        print(SAYS, file=sys.stderr)
        print(engine.url, flush=True)
        await asyncio.to_thread(sys.stdin.buffer.read)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the teacher."""
    parser = argparse.ArgumentParser(description=SAYS)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    asyncio.run(serve(parser.parse_args(argv).port))


if __name__ == "__main__":
    main()
