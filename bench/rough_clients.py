"""Load that is not polite: engine faults, clients that leave, clients that stop reading."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from dataclasses import replace
from typing import Any

from .accounting import used
from .answers import Ask, differences
from .closed_loop import FAILURES, Pace, Target
from .connection import Connection, connect, get_json

FAULTS = (
    "", "status@400", "status@429", "status@500", "drop@5", "reset@5", "stall@5", "badjson@5",
    "split", "crlf", "cr", "comment", "big@1000000", "nousage", "nodone", "nofinish", "dup@3",
    "error@5", "noids@5", "nologprobs@5", "wrongids", "sentinel@5", "nullprob@5",
    "badid@5", "badtext@5", "garbage",
)  # fmt: skip
ONLY_STREAMED = {"split", "crlf", "cr", "comment", "big", "nodone", "dup", "error"}


async def one_call(
    target: Target, ask: Ask, seed: int, number: int, timeout_s: float
) -> Connection:
    """Return the connection of one call that has ended."""
    base, _ = target.at(number, number)
    connection = await connect(base)
    try:
        async with asyncio.timeout(timeout_s):
            await connection.send(target.request(ask, seed, number, number))
    finally:
        connection.abort()
    return connection


async def faults(target: Target, ask: Ask, *, timeout_s: float) -> list[dict[str, Any]]:
    """Return what a client sees of each fault of the scripted engine, plain and streamed."""
    rows: list[dict[str, Any]] = []
    for fault in FAULTS:
        for stream in (True, False):
            if not stream and fault.partition("@")[0] in ONLY_STREAMED:
                continue
            asked = replace(ask, stream=stream, fault=fault)
            started = time.perf_counter()
            row: dict[str, Any] = {"fault": fault or "none", "stream": stream}
            try:
                connection = await one_call(target, asked, len(rows), len(rows), timeout_s)
                body = bytes(connection.body)
                row["status"] = connection.status
                row["diffs"] = differences(asked, len(rows), connection.status, body)
            except FAILURES as error:
                row["error"] = str(error) or type(error).__name__
            row["s"] = round(time.perf_counter() - started, 2)
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


async def engine_stats(engine: str) -> dict[str, int]:
    """Return the counters of the scripted engine at `engine`."""
    return json.loads(await get_json(engine, "/stats"))


async def abort(target: Target, ask: Ask, pace: Pace, *, engine: str) -> dict[str, Any]:
    """Leave in mid-stream, and see how soon the engine knows."""
    before = await engine_stats(engine)
    connections: list[Connection] = []
    for number in range(pace.clients):
        base, _ = target.at(number, number)
        connection = await connect(base)
        request = target.request(ask, pace.seed + number % pace.seeds, number, number)
        connection.send(request).add_done_callback(lambda ended: ended.exception())
        connections.append(connection)
    end = time.perf_counter() + 10
    while time.perf_counter() < end and any(not c.first_event_at for c in connections):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    n_started = sum(1 for each in connections if each.first_event_at)
    left_at = time.perf_counter()
    for connection in connections:
        connection.abort()
    seen = 0
    while seen < pace.clients and time.perf_counter() - left_at < pace.timeout_s:
        await asyncio.sleep(0.02)
        seen = (await engine_stats(engine))["aborted"] - before["aborted"]
    after_s = round(time.perf_counter() - left_at, 2)
    return {
        "streams": pace.clients,
        "started": n_started,
        "engine_saw": seen,
        "after_s": after_s,
    }


async def slow(target: Target, ask: Ask, pace: Pace) -> dict[str, Any]:
    """Stop reading for `pace.seconds`; return how much of the answers the server then held."""
    before = peak = used(target.pids).memory_mib
    waiting: list[tuple[Connection, asyncio.Future[None]]] = []
    for number in range(pace.clients):
        base, _ = target.at(number, number)
        connection = await connect(base)
        future = connection.send(target.request(ask, pace.seed, number, number))
        connection.transport.pause_reading()
        waiting.append((connection, future))
    started = time.perf_counter()
    while time.perf_counter() - started < pace.seconds:
        await asyncio.sleep(0.25)
        peak = max(peak, used(target.pids).memory_mib)
    for connection, _ in waiting:
        connection.transport.resume_reading()
    diffs: Counter[str] = Counter()
    for connection, future in waiting:
        try:
            async with asyncio.timeout(pace.timeout_s):
                await future
            diffs.update(differences(ask, pace.seed, connection.status, bytes(connection.body)))
        except FAILURES as error:
            diffs[str(error) or type(error).__name__] += 1
    size = len(waiting[0][0].body)
    return {
        "streams": pace.clients,
        "paused_s": pace.seconds,
        "answer_bytes": size,
        "memory_before_mib": round(before, 1),
        "memory_peak_mib": round(peak, 1),
        "held_share": round((peak - before) * 2**20 / max(1, size * pace.clients), 2),
        "diffs": dict(diffs),
    }


async def kill(target: Target, ask: Ask, pace: Pace, *, after: int) -> dict[str, Any]:
    """SIGKILL the target's processes after `after` whole answers; return the acknowledged seeds."""
    acknowledged: list[int] = []
    killed: list[int] = []

    async def one(number: int) -> None:
        await asyncio.sleep(number * pace.stagger_ms / pace.clients / 1e3)
        seed = pace.seed + number
        try:
            connection = await one_call(target, ask, seed, number, pace.timeout_s)
        except FAILURES:
            return
        if not differences(ask, seed, connection.status, bytes(connection.body)):
            acknowledged.append(seed)
        if len(acknowledged) == after and not killed:
            for pid in target.pids:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    await asyncio.gather(*(one(number) for number in range(pace.clients)))
    return {"killed": killed, "acknowledged": sorted(acknowledged)}
