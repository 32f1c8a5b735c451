"""A bounded load client for any OpenAI-compatible URL, every answer checked token by token.

    python -m bench.load call   --base URL     closed loop of short calls
    python -m bench.load stream --base URL     closed loop of streams: first token, last token
    python -m bench.load hold   --base URL     many streams open at once: memory, fairness
    python -m bench.load faults --base URL     what a client sees of each fault of the engine
    python -m bench.load abort  --base URL     clients leave in mid-stream: does the engine know?
    python -m bench.load slow   --base URL     clients stop reading: does memory stay bounded?
    python -m bench.load kill   --base URL     SIGKILL after so many whole answers
    python -m bench.load pair   --a URL --b URL call|stream     both in turn, ratios
    python -m bench.load expected --seed 7     what a store must hold of that call

The engine behind the URL must be `budwood.proxy.testing.scripted_engine`. `{i}` in `--base` and
`--key` becomes the client's number, `{n}` the call's. One JSON object on standard output; a run is
good only if its `errors` and `diffs` are empty. Targets are loopback only and each run is bounded.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import asdict
from typing import Any

from budwood.proxy.testing import expected

from . import rough_clients
from .answers import Ask
from .closed_loop import Pace, Target, hold, run
from .rounds import METRICS, alternate

MODES = (
    "call",
    "stream",
    "hold",
    "faults",
    "abort",
    "slow",
    "kill",
    "pair",
    "expected",
)
CLIENTS = {"call": 64, "stream": 16, "hold": 500, "abort": 50, "slow": 40, "kill": 120}
CHUNKS = {"call": 32, "hold": 60, "faults": 20, "slow": 4000, "kill": 40}
DELAYS = {"stream": 5.0, "hold": 200.0, "abort": 50.0, "kill": 3.0}
MOST_SECONDS = 20.0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("kind", nargs="?", default="call", help="pair: call or stream")
    add = parser.add_argument
    add("--base", default="http://127.0.0.1:18000/v1")
    add("--a", help="pair: the first URL")
    add("--b", help="pair: the second URL")
    add("--key", default="test-key")
    add("--key-b", help="pair: the key of the second URL")
    add(
        "--engine",
        default="http://127.0.0.1:18000",
        help="abort: the scripted engine itself",
    )
    add("--pid", type=int, action="append", default=[], help="process tree to account")
    add(
        "--pid-b",
        type=int,
        action="append",
        default=[],
        help="pair: that of the second URL",
    )
    add("--header", action="append", default=[], help="'Name: value'")
    add("--model", default="scripted")
    add("--c", type=int, help="clients, or open streams")
    add("--n", type=int, default=0, help="stop after so many calls (0: by time)")
    add(
        "--seconds",
        type=float,
        default=8.0,
        help=f"stop after this long, at most {MOST_SECONDS}",
    )
    add("--timeout", type=float, default=20.0)
    add("--seed", type=int, default=0)
    add("--seeds", type=int, default=8, help="different answers in turn")
    add("--stagger", type=float, default=0.0, help="ms over which the clients start")
    add("--warm", type=int, default=8)
    add("--chunks", type=int, help="events that carry tokens")
    add("--tpc", type=int, default=1, help="tokens an event")
    add("--delay", type=float, help="ms between events")
    add("--first", type=float, default=0.0, help="ms before the first byte")
    add("--body", type=int, default=0, help="extra bytes of prompt text")
    add("--fault", default="")
    add("--no-ids", action="store_true", help="ask for no ids and no logprobs")
    add(
        "--strict-events",
        action="store_true",
        help="one content event for each of the engine's",
    )
    add(
        "--ramp",
        type=float,
        default=3.0,
        help="hold: seconds over which the streams open",
    )
    add("--after", type=int, default=40, help="kill: whole answers before the SIGKILL")
    add("--pairs", type=int, default=5)
    return parser


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


async def _pair(options: argparse.Namespace, ask: Ask, pace: Pace) -> dict[str, Any]:
    a = Target(base=options.a, key=options.key, pids=tuple(options.pid))
    b = Target(base=options.b, key=options.key_b or options.key, pids=tuple(options.pid_b))
    runs = {"a": lambda: run(a, ask, pace), "b": lambda: run(b, ask, pace)}
    found = await alternate(runs, rounds=options.pairs)
    known = [name for name in METRICS if all(row["a"].get(name) for row in found.figures)]
    metrics = {name: asdict(found.compare("a", "b", name)) for name in known}
    return {"metrics": metrics, "problems": found.problems}


async def _figures(made: Coroutine[Any, Any, Any]) -> dict[str, Any]:
    return (await made).figures()


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the arguments ask for and print it."""
    options = _parser().parse_args(argv)
    kind = options.kind if options.mode == "pair" else options.mode
    chunks = _or(options.chunks, CHUNKS.get(kind, 300))
    if options.mode == "expected":
        print(json.dumps(expected(options.seed, chunks, options.tpc), ensure_ascii=False))
        return 0
    ask = Ask(
        stream=kind != "call",
        chunks=chunks,
        tokens_per_event=options.tpc,
        delay_ms=_or(options.delay, DELAYS.get(kind, 0.0)),
        first_ms=options.first,
        fault=options.fault,
        body_bytes=options.body,
        model=options.model,
        headers=tuple(options.header),
        asks_ids=not options.no_ids,
        strict_events=options.strict_events,
    )
    pace = Pace(
        clients=_or(options.c, CLIENTS.get(kind, 1)),
        calls=options.n,
        seconds=min(options.seconds, MOST_SECONDS),
        timeout_s=options.timeout,
        seed=options.seed,
        seeds=options.seeds,
        stagger_ms=options.stagger,
        warm=options.warm,
    )
    target = Target(base=options.base, key=options.key, pids=tuple(options.pid))
    runs = {
        "call": lambda: _figures(run(target, ask, pace)),
        "stream": lambda: _figures(run(target, ask, pace)),
        "hold": lambda: _figures(hold(target, ask, pace, ramp_s=options.ramp)),
        "faults": lambda: rough_clients.faults(target, ask, timeout_s=options.timeout),
        "abort": lambda: rough_clients.abort(target, ask, pace, engine=options.engine),
        "slow": lambda: rough_clients.slow(target, ask, pace),
        "kill": lambda: rough_clients.kill(target, ask, pace, after=options.after),
        "pair": lambda: _pair(options, ask, pace),
    }
    result = run_loop(runs[options.mode]())
    if options.mode != "faults":
        print(json.dumps({"mode": options.mode, **result}, indent=1))
    return 0


def run_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on the fastest loop there is: the client must cost less than the server."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(coroutine)
    return uvloop.run(coroutine)


if __name__ == "__main__":
    sys.exit(main())
