"""The proxy's speed against nginx and a direct call in the same run.

    python -m bench.proxy [--quick] [--rounds 7]

Starts the scripted engine, nginx and `budwood proxy` (recording to SQLite with full sync,
authentication on), engine and clients on one core, the server under test on the other. Every answer
is checked token by token. Figures are printed with the goal of each; none fails the command, wrong
answers do. Ratios and CPU carry from machine to machine, milliseconds do not.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from .answers import Ask
from .closed_loop import Held, Pace, Target, hold, run
from .deep_session import turn_cost
from .goals import Goal, heading
from .load import run_loop
from .rounds import Rounds, alternate
from .servers import (
    Server,
    cores,
    make_realtime,
    nginx,
    open_rollout,
    running_proxy,
    scratch_folder,
    scripted_engine,
)

SHORT = Goal("P1", "added p50, short call, 1 client", 2.0, " ms")
FIRST = Goal("P2", "added first-token time p50, paced stream", 2.0, " ms")
FIRST_95 = Goal("P2", "added first-token time p95, paced stream", 4.0, " ms")
LAST = Goal("P3", "added last-token time p50, paced stream", 5.0, " ms")
RATE = Goal("P5", "requests/s at 64 clients against nginx", 0.15, "x", at_least=True)
CPU = Goal("P7", "CPU a short call against nginx", 10.0, "x")
EVENTS = Goal("P9", "events/s, unpaced streams, against nginx", 0.15, "x", at_least=True)
MEMORY = Goal("P10", "memory a stream, many open", 25.0, " KiB")
BASE = Goal("P10", "memory before", 120.0, " MiB")
FIRST_HELD = Goal("P11", "first-token time p95, many open", 25.0, " ms")
DEEP = Goal("P12", "CPU of a turn, 100k prompt tokens against 8k", 4.0, "x")
N_KEYS = 256


@dataclass(frozen=True, slots=True)
class Field:
    """What is measured against what."""

    targets: dict[str, Target]
    engine: Server
    proxy: Server
    rounds: int
    is_quick: bool


async def short_calls(field: Field) -> list[str]:
    """One client, short calls."""
    pace = Pace(clients=1, calls=60 if field.is_quick else 200, seconds=10)
    found = await _rounds(field, Ask(chunks=32), pace)
    added = found.compare("direct", "budwood", "last_p50_ms")
    detail = f"direct {added.a:.2f} ms, ratio {added}"
    if "nginx" in field.targets:
        nginx_added = found.compare("direct", "nginx", "last_p50_ms").difference
        detail += f", nginx adds {nginx_added:.2f} ms"
    return [SHORT.line(added.difference, detail), *_problems(found)]


async def paced_streams(field: Field) -> list[str]:
    """A few clients, an event each 5 ms."""
    ask = Ask(stream=True, chunks=60, delay_ms=5.0)
    pace = Pace(clients=3, calls=12 if field.is_quick else 30, seconds=15, stagger_ms=300)
    found = await _rounds(field, ask, pace)
    lines = []
    for goal, metric in (
        (FIRST, "ttft_p50_ms"),
        (FIRST_95, "ttft_p95_ms"),
        (LAST, "last_p50_ms"),
    ):
        added = found.compare("direct", "budwood", metric)
        detail = f"direct {added.a:.2f} ms"
        if "nginx" in field.targets:
            through = found.compare("direct", "nginx", metric).difference
            detail += f", nginx adds {through:.2f} ms"
        lines.append(goal.line(added.difference, detail))
    return [*lines, *_problems(found)]


async def many_clients(field: Field) -> list[str]:
    """64 clients, short calls, as fast as they go."""
    pace = Pace(clients=64, seconds=0.5 if field.is_quick else 1.5)
    found = await _rounds(field, Ask(chunks=32), pace, names=("nginx", "budwood"))
    if "nginx" not in field.targets:
        rate = [row["budwood"]["rps"] for row in found.figures]
        return [RATE.line(None, f"budwood {rate} requests/s"), *_problems(found)]
    rate = found.compare("nginx", "budwood", "rps")
    cpu = found.compare("nginx", "budwood", "cpu_s_per_1000")
    return [
        RATE.line(rate.ratio, f"{rate}, {rate.b:,.0f} of {rate.a:,.0f}"),
        CPU.line(cpu.ratio, f"{cpu}, {cpu.b:.2f} s a thousand calls"),
        *_problems(found),
    ]


async def unpaced_streams(field: Field) -> list[str]:
    """16 clients, 300 events as fast as they go."""
    if "nginx" not in field.targets:
        return [EVENTS.line(None)]
    ask = Ask(stream=True, chunks=300)
    pace = Pace(clients=16, seconds=1.0 if field.is_quick else 2.0)
    found = await _rounds(field, ask, pace, names=("nginx", "budwood"))
    rate = found.compare("nginx", "budwood", "events_per_s")
    return [EVENTS.line(rate.ratio, f"{rate}, {rate.b:,.0f} events/s"), *_problems(found)]


async def open_streams(field: Field) -> list[str]:
    """Many streams open at once; last, since memory once taken stays."""
    streams = 100 if field.is_quick else 500
    ask = Ask(stream=True, chunks=20, delay_ms=500.0)
    held: Held = await hold(
        field.targets["budwood"], ask, Pace(clients=streams, timeout_s=60), ramp_s=3.0
    )
    first = held.measured.figures()["ttft_p95_ms"]
    first = None if first is None else first - ask.delay_ms  # the engine's own, before a token
    detail = f"{streams} streams, {held.most_at_once} at once, {held.measured.cpu_s:.1f} CPU s"
    lines = [
        MEMORY.line(held.kib_per_stream, detail),
        BASE.line(held.before_mib),
        FIRST_HELD.line(first),
    ]
    if not held.measured.is_good:
        lines.append(f"WRONG {dict(held.measured.errors)} {dict(held.measured.diffs)}")
    return lines


async def deep_turns(field: Field) -> list[str]:
    """A turn of a long session against a turn of a short one."""
    costs = []
    for n_tokens in (8_000, 100_000):
        _, key = open_rollout(field.proxy, "bench")
        costs.append(
            await turn_cost(
                field.targets["budwood"].base,
                key,
                n_tokens=n_tokens,
                turns=8 if field.is_quick else 20,
                proxy_pid=field.proxy.pid,
                engine_pid=field.engine.pid,
            )
        )
    short, long = costs
    told = "; ".join(
        f"{cost.n_prompt:,} tokens: proxy {cost.proxy_ms:.1f} ms, engine {cost.engine_ms:.1f} ms"
        for cost in costs
    )
    return [DEEP.line(long.both_ms / short.both_ms, told)]


async def _rounds(
    field: Field, ask: Ask, pace: Pace, names: tuple[str, ...] = ("direct", "nginx", "budwood")
) -> Rounds:
    chosen = {name: field.targets[name] for name in names if name in field.targets}
    runs = {name: (lambda target=target: run(target, ask, pace)) for name, target in chosen.items()}
    return await alternate(runs, rounds=field.rounds)


def _problems(found: Rounds) -> list[str]:
    return [f"WRONG {problem}" for problem in found.problems]


SECTIONS = (short_calls, paced_streams, many_clients, unpaced_streams, deep_turns, open_streams)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 where an answer was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a minute: a look, not a measurement")
    parser.add_argument("--rounds", type=int, help="default 7; quick 3")
    parser.add_argument(
        "--realtime", action="store_true", help="on a busy machine: a real-time class (root)"
    )
    parser.add_argument("--only", nargs="*", help=", ".join(each.__name__ for each in SECTIONS))
    options = parser.parse_args(argv)
    rounds = options.rounds or (3 if options.quick else 7)
    client_core, server_core = cores()
    is_right = True
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder())
        engine = stack.enter_context(
            scripted_engine(folder, core=client_core, max_model_len=400_000)
        )
        plain = stack.enter_context(nginx(folder, engine.url, core=server_core))
        proxy = stack.enter_context(
            running_proxy(folder, engine.url, str(folder / "store.db"), core=server_core)
        )
        os.sched_setaffinity(0, {client_core})
        field = Field(_targets(engine, plain, proxy), engine, proxy, rounds, options.quick)
        if options.realtime:
            servers = (engine, plain, proxy)
            make_realtime([each.pid for each in servers if each is not None] + [os.getpid()])
        print(heading(f"Proxy, {rounds} rounds, load {os.getloadavg()[0]:.1f}"), flush=True)
        for section in SECTIONS:
            if options.only and section.__name__ not in options.only:
                continue
            for line in run_loop(section(field)):
                is_right = is_right and not line.startswith("WRONG")
                print(line, flush=True)
        print(_store_line(folder))
    return 0 if is_right else 1


def _targets(engine: Server, plain: Server | None, proxy: Server) -> dict[str, Target]:
    keys = tuple(open_rollout(proxy, "bench")[1] for _ in range(N_KEYS))
    targets = {"direct": Target(base=f"{engine.url}/v1")}
    if plain is not None:
        targets["nginx"] = Target(base=f"{plain.url}/v1", pids=(plain.pid,))
    targets["budwood"] = Target(base=f"{proxy.url}/v1", keys=keys, pids=(proxy.pid,))
    return targets


def _store_line(folder: Path) -> str:
    size = sum(path.stat().st_size for path in folder.glob("store.db*"))
    return f"store: {size / 2**20:.0f} MiB"


if __name__ == "__main__":
    sys.exit(main())
