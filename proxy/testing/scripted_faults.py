"""The faults that the scripted engine shows: a table, and the bytes of each.

A fault is applied to the events of a right answer, so all that is not named stays right.
"""

import asyncio
import re
from dataclasses import replace
from typing import Any

import orjson

from . import scripted_wire as wire
from .scripted_http import HttpConnection
from .scripted_marker import Marker
from .scripted_reply import Sampled

FAULTS = {
    "drop": "drop@K: the connection ends after K events (half of a plain answer)",
    "reset": "reset@K: the same by a TCP reset",
    "stall": "stall@K: K events, then silence with the connection open",
    "status": "status@CODE: that HTTP status with an error body (429, 503: Retry-After 0)",
    "flaky": "flaky@CODE: `status` on the first try of this seed, right on the next",
    "badjson": "badjson@K: event K is not JSON",
    "split": "bytes are cut at odd places, inside UTF-8 sequences too",
    "crlf": "lines end with CR LF",
    "cr": "lines end with CR",
    "comment": "comment lines between the events",
    "big": "big@N: one event of about N bytes",
    "nousage": "no usage",
    "nodone": "a clean end without [DONE]",
    "nofinish": "no finish reason",
    "dup": "dup@K: event K twice",
    "error": "error@K: an error event in place of event K, then the end",
    "garbage": "the answer is no HTTP at all",
    "noids": "noids@K: event K has no token ids (a plain answer none)",
    "nologprobs": "nologprobs@K: event K has no logprobs (a plain answer none)",
    "wrongids": "the prompt ids returned are not the ones sent",
    "sentinel": "sentinel@K: the logprob of token K is -9999",
    "nullprob": "nullprob@K: the logprob of token K is null",
    "badid": "badid@K: the id of token K is -1",
    "badtext": "badtext@K: the text of event K (of a plain answer) is a number",
}


def shortened(sampled: Sampled, limit: int) -> Sampled:
    """Return the first `limit` tokens, cut by length."""
    return Sampled(
        sampled.ids[:limit],
        sampled.logprobs[:limit],
        sampled.pieces[:limit],
        sampled.deltas[:limit],
        "length",
    )


def with_odd_token(sampled: Sampled, kind: str, index: int) -> Sampled:
    """Return the tokens as the fault `kind` has them: one value is wrong, if any."""
    ids: list[Any] = list(sampled.ids)
    logprobs: list[Any] = list(sampled.logprobs)
    if kind == "sentinel":
        logprobs[index] = -9999.0  # vLLM's stand-in for a missing one
    elif kind == "nullprob":
        logprobs[index] = None
    elif kind == "badid":
        ids[index] = -1
    return replace(sampled, ids=ids, logprobs=logprobs)


def faulty_events(sampled: Sampled, shape: wire.Shape, marker: Marker) -> list[bytes]:
    """Return the token events, one of them lacking what the fault says."""
    kind, _, argument = marker.fault.partition("@")
    at = int(argument) if argument.isdigit() else 0
    events = wire.token_events(with_odd_token(sampled, kind, at), shape, marker.tpc)
    if kind == "noids":
        events[at] = re.sub(rb',"token_ids":\[[^\]]*\]', b"", events[at])
    elif kind == "nologprobs":
        value = orjson.loads(events[at][6:])
        value["choices"][0]["logprobs"] = None
        events[at] = wire.event(value)
    elif kind == "badtext":
        value = orjson.loads(events[at][6:])
        value["choices"][0]["delta"] = {"content": 7}
        events[at] = wire.event(value)
    elif kind == "nofinish":
        value = orjson.loads(events[-1][6:])
        value["choices"][0]["finish_reason"] = None
        events[-1] = wire.event(value)
    return events


def faulty_bytes(events: list[bytes], fault: str) -> list[bytes]:
    """Return the events as a broken server would write them."""
    kind, _, argument = fault.partition("@")
    at = int(argument) if argument.isdigit() else 0
    match kind:
        case "badjson":
            events[at] = b'data: {"id": "broken", "choi\n\n'
        case "crlf":
            return [e.replace(b"\n", b"\r\n") for e in events]
        case "cr":
            return [e.replace(b"\n", b"\r") for e in events]
        case "comment":
            return [b": keep-alive\n\n" + e for e in events]
        case "dup":
            events.insert(at, events[at])
        case "error":
            body = b"data: " + wire.error(500, "EngineCore died", None, "InternalServerError")
            return [*events[:at], body + b"\n\n", wire.DONE]
        case "big":
            events.insert(1, wire.event({"choices": [], "padding": "x" * at}))
        case "split":
            blob, cuts, pieces = b"".join(events), [1, 2, 3, 5, 7, 11, 64, 333], []
            while blob:
                size = cuts[len(pieces) % len(cuts)]
                pieces.append(blob[:size])
                blob = blob[size:]
            return pieces
    return events


async def send(connection: HttpConnection, events: list[bytes], marker: Marker) -> None:
    """Write the events in the marker's time, up to where its fault ends them."""
    kind, _, argument = marker.fault.partition("@")
    at = int(argument) if argument.isdigit() else 0
    if marker.first:
        await asyncio.sleep(marker.first / 1e3)
    connection.begin_stream()
    if not marker.delay and kind not in ("drop", "reset", "stall", "split"):
        for start in range(0, len(events), 16):
            # An engine under load also hands the kernel several events at once.
            connection.chunk(b"".join(events[start : start + 16]))
            await connection.drain()
    else:
        loop = asyncio.get_running_loop()
        due = loop.time()
        for index, data in enumerate(events):
            if index == at and kind in ("drop", "reset"):
                await asyncio.sleep(0)
                (connection.t.abort if kind == "reset" else connection.t.close)()
                return
            if index == at and kind == "stall":
                await asyncio.get_running_loop().create_future()
            connection.chunk(data)
            due += marker.delay / 1e3
            await asyncio.sleep(max(0.0, due - loop.time()) if marker.delay else 0)
    connection.end_stream()


async def late_reply(
    connection: HttpConnection, answer: bytes, marker: Marker, n_tokens: int
) -> None:
    """Write a plain answer in the marker's time, or what its fault leaves of it."""
    kind = marker.fault.partition("@")[0]
    await asyncio.sleep((marker.first + marker.delay * n_tokens / marker.tpc) / 1e3)
    if kind == "stall":
        await asyncio.get_running_loop().create_future()
    if kind in ("drop", "reset"):
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        connection.t.write(head % len(answer) + answer[: len(answer) // 2])
        (connection.t.abort if kind == "reset" else connection.t.close)()
        return
    connection.reply(200, answer)
