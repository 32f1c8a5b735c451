"""Steady load: short calls or streams in a closed loop, and many streams held open at once."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .accounting import cpu_s, quantile, used
from .answers import Ask, chat_body, differences, http_request, messages_for
from .connection import BrokenAnswerError, Connection, connect

FAILURES = (OSError, BrokenAnswerError, TimeoutError)
"""What ends one call of the client and not the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where to call; `{i}` in `base` and `key` is the worker's number, `{n}` the call's."""

    base: str
    key: str = "test-key"
    keys: tuple[str, ...] = ()
    """Where given, call n uses key n modulo their number."""
    pids: tuple[int, ...] = ()
    """Process trees to account."""

    def at(self, worker: int, call: int) -> tuple[str, str]:
        """Return the base and key of one call."""
        base, key = (
            self.base,
            self.keys[call % len(self.keys)] if self.keys else self.key,
        )
        for name, value in (("{i}", worker), ("{n}", call)):
            base, key = base.replace(name, str(value)), key.replace(name, str(value))
        return base, key

    def request(self, ask: Ask, seed: int, worker: int, call: int) -> bytes:
        """Return the bytes of one call."""
        base, key = self.at(worker, call)
        return http_request(base, key, chat_body(ask, messages_for(ask, seed)), ask.headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How much load, and for how long."""

    clients: int = 64
    calls: int = 0
    """Stop after so many; 0: by time."""
    seconds: float = 8.0
    timeout_s: float = 20.0
    seed: int = 0
    seeds: int = 8
    """Different answers in turn."""
    stagger_ms: float = 0.0
    """Time over which the clients start."""
    warm: int = 8
    """Untimed calls first."""
    validate: int = 200
    """Answers always checked; of the further ones 2 %."""


@dataclass(slots=True)
class Measured:
    """What came of a run; a run is good only if `errors` and `diffs` are empty."""

    ok: int = 0
    wall_s: float = 0.0
    validated: int = 0
    first_ms: list[float] = field(default_factory=list[float])
    last_ms: list[float] = field(default_factory=list[float])
    errors: Counter[str] = field(default_factory=Counter[str])
    diffs: Counter[str] = field(default_factory=Counter[str])
    cpu_s: float = 0.0
    memory_mib: float = 0.0
    events: int = 0

    @property
    def is_good(self) -> bool:
        """True where every call succeeded and every checked answer was right."""
        return not self.errors and not self.diffs

    def figures(self) -> dict[str, Any]:
        """Return the numbers that runs are compared by."""
        out: dict[str, Any] = {
            "ok": self.ok,
            "errors": dict(self.errors),
            "diffs": dict(self.diffs),
            "wall_s": round(self.wall_s, 3),
            "validated": self.validated,
            "rps": round(self.ok / self.wall_s, 1) if self.wall_s else None,
        }
        for name, values in (("ttft", self.first_ms), ("last", self.last_ms)):
            for percent in (50, 95, 99):
                out[f"{name}_p{percent}_ms"] = quantile(values, percent / 100)
        out["cpu_s_per_1000"] = round(self.cpu_s / max(self.ok, 1) * 1000, 4)
        out["memory_mib"] = round(self.memory_mib, 1)
        if self.events:
            out["events_per_s"] = round(self.events / self.wall_s, 1)
        return out


async def run(target: Target, ask: Ask, pace: Pace) -> Measured:
    """Keep `pace.clients` calls in flight until the time or the calls are used up."""
    out = Measured()
    await _warm(target, ask, pace, out)
    kept: list[tuple[int, int, bytes]] = []
    before = cpu_s(target.pids)
    started = time.perf_counter()
    counter = iter(range(pace.calls or 10**9))
    await asyncio.gather(
        *(
            _client(number, target, ask, pace, out, kept, counter, started + pace.seconds)
            for number in range(pace.clients)
        )
    )
    out.wall_s = time.perf_counter() - started
    if target.pids:
        after = used(target.pids)
        out.cpu_s, out.memory_mib = after.cpu_s - before, after.memory_mib
    out.validated = len(kept)
    for seed, status, body in kept:
        out.diffs.update(differences(ask, seed, status, body))
    out.events = out.ok * ask.chunks if ask.stream else 0
    return out


async def _warm(target: Target, ask: Ask, pace: Pace, out: Measured) -> None:
    """Fill the engine's cache and the proxy's pools, untimed."""
    for number in range(pace.warm):
        try:
            base, _ = target.at(number % pace.clients, number)
            connection = await connect(base)
            request = target.request(
                ask, pace.seed + number % pace.seeds, number % pace.clients, number
            )
            async with asyncio.timeout(pace.timeout_s):
                await connection.send(request)
            connection.abort()
        except FAILURES as error:
            out.errors[f"warm: {error or type(error).__name__}"] += 1


async def _client(
    number: int,
    target: Target,
    ask: Ask,
    pace: Pace,
    out: Measured,
    kept: list[tuple[int, int, bytes]],
    counter: Iterator[int],
    stop_at: float,
) -> None:
    connection: Connection | None = None
    ready: dict[tuple[int, str, str], bytes] = {}
    if pace.stagger_ms and number:
        await asyncio.sleep(number * pace.stagger_ms / pace.clients / 1e3)
    while time.perf_counter() < stop_at:
        call = next(counter, None)
        if call is None:
            break
        seed = pace.seed + call % pace.seeds
        base, key = target.at(number, call)
        request = ready.get((seed, base, key))
        if request is None:
            request = ready[seed, base, key] = target.request(ask, seed, number, call)
        try:
            if connection is None or connection.is_closed:
                connection = await connect(base)
            async with asyncio.timeout(pace.timeout_s):
                await connection.send(request)
        except FAILURES as error:
            out.errors[str(error) or type(error).__name__] += 1
            if connection:
                connection.abort()
            connection = None
            continue
        if connection.status != 200:
            out.errors[f"status {connection.status}: {bytes(connection.body[:200])!r}"] += 1
            continue
        out.ok += 1
        out.first_ms.append(connection.first_ms)
        out.last_ms.append(connection.total_ms)
        if len(kept) < pace.validate or random.random() < 0.02:
            kept.append((seed, connection.status, bytes(connection.body)))
    if connection and not connection.is_closed:
        connection.abort()


@dataclass(slots=True)
class Held:
    """What many open streams cost."""

    measured: Measured
    before_mib: float
    peak_mib: float
    most_at_once: int
    streams: int

    @property
    def kib_per_stream(self) -> float:
        """Memory a stream, over the memory before."""
        return (self.peak_mib - self.before_mib) * 1024 / self.streams

    def figures(self) -> dict[str, Any]:
        """Return the numbers that runs are compared by."""
        return {
            **self.measured.figures(),
            "most_at_once": self.most_at_once,
            "memory_before_mib": round(self.before_mib, 1),
            "memory_peak_mib": round(self.peak_mib, 1),
            "kib_per_stream": round(self.kib_per_stream, 1),
            "cpu_s": round(self.measured.cpu_s, 2),
        }


async def hold(target: Target, ask: Ask, pace: Pace, *, ramp_s: float = 3.0) -> Held:
    """Open `pace.clients` streams over `ramp_s`, and sample memory while they run."""
    out = Measured()
    connections: list[Connection] = []
    before = used(target.pids)
    started = time.perf_counter()

    async def one(number: int) -> tuple[int, Connection] | None:
        base, _ = target.at(number, number)
        try:
            await asyncio.sleep(number * ramp_s / pace.clients)
            connection = await connect(base, 20)
            connections.append(connection)
            async with asyncio.timeout(pace.timeout_s):
                await connection.send(
                    target.request(ask, pace.seed + number % pace.seeds, number, number)
                )
        except FAILURES as error:
            out.errors[str(error) or type(error).__name__] += 1
            return None
        return number, connection

    peak, most = before.memory_mib, 0
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(number)) for number in range(pace.clients)]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0.5)
            peak = max(peak, used(target.pids).memory_mib)
            is_open = (c.first_event_at and c.done and not c.done.done() for c in connections)
            most = max(most, sum(1 for each in is_open if each))
    out.wall_s = time.perf_counter() - started
    out.cpu_s = cpu_s(target.pids) - before.cpu_s
    out.memory_mib = peak
    for task in tasks:
        found = task.result()
        if found is None:
            continue
        number, connection = found
        connection.abort()
        out.ok += 1
        out.first_ms.append(connection.first_ms)
        out.last_ms.append(connection.total_ms)
        seed = pace.seed + number % pace.seeds
        out.diffs.update(differences(ask, seed, connection.status, bytes(connection.body)))
    out.validated = out.ok
    return Held(out, before.memory_mib, peak, most, pace.clients)
