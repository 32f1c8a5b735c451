"""`jsonl`: whole records, one JSON object a line, enough to import them elsewhere.

Each line names its `record`. The first of a file is `head` (format version); then, for each
rollout: its `run` (once a file), `rollout`, its `lane`s, `outcome`s, and its `call`s in order.

What grows with every call is written as what changed, so a file is linear in what is new:

    request.base, request.head, request.tail, request.text
        the body is base.body[:head] + text + base.body[len(base.body) - tail:], counted in bytes
        of UTF-8; `base` is an earlier call of the same rollout, or null (then text is all of it).
        A body that is no UTF-8 stands as base64 under `request.base64`
    tokens.base, tokens.common, tokens.prompt_ids
        the prompt is (base.prompt + base.out)[:common] + prompt_ids
    tokens.out_ids, tokens.logprobs
        as sampled, in parallel; a logprob that is not known is null

Secrets: the texts of marked calls are masked and their tokens withheld (`is_redacted`), unless
`include_secrets` is set. A key's hash is never written.
"""

from __future__ import annotations

import base64
import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import Enum
from typing import Any

from ..ids import CallId, RolloutId, RunId
from ..records import SCHEMA_VERSION, Tokens
from ..redaction import Redaction, masked_value
from ..store import Store
from .manifest import Counts
from .options import ExportOptions
from .sinks import Row

FORMAT_VERSION = 1
_SKIPPED = frozenset({"key_hash", "reply"})


@dataclass(slots=True)
class _Last:
    """The latest call of a lane: the base of the next one's changes."""

    call_id: CallId
    body: bytes
    prompt_and_out: array[int] | None


@dataclass(slots=True)
class RecordRows:
    """The records of rollouts, one rollout at a time; a run is written before its first one."""

    _runs: set[RunId] = field(default_factory=set[RunId])
    _has_head: bool = False

    def rows(
        self, store: Store, rollout_id: RolloutId, options: ExportOptions, counts: Counts
    ) -> Iterator[Row]:
        """Yield the rollout's records."""
        scanner = None if options.include_secrets else store.secrets

        def record(name: str, value: Any) -> Row:
            row = _record(name, value)
            return row if scanner is None else masked_value(row, scanner)

        if not self._has_head:
            self._has_head = True
            yield {"record": "head", "format": FORMAT_VERSION, "records": SCHEMA_VERSION}
        rollout = store.rollout(rollout_id)
        if rollout.run_id not in self._runs:
            self._runs.add(rollout.run_id)
            yield record("run", store.run(rollout.run_id))
        yield record("rollout", rollout)
        for lane in store.lanes(rollout_id):
            yield record("lane", lane)
        for outcome in store.outcomes(rollout_id):
            yield record("outcome", outcome)
        yield from _calls(store, rollout_id, options, counts)


def _calls(
    store: Store, rollout_id: RolloutId, options: ExportOptions, counts: Counts
) -> Iterator[Row]:
    lanes: dict[str, _Last] = {}
    token_rows = store.rollout_tokens(rollout_id)
    ahead = next(token_rows, None)
    for call in store.calls(rollout_id):
        tokens = None
        if ahead is not None and ahead[0] == call.id:
            tokens, ahead = ahead[1], next(token_rows, None)
        redaction = Redaction(call, store.secrets, off=options.include_secrets)
        raw = store.request_body(call.id)
        body, reply = redaction.body(raw), redaction.reply(raw)
        is_redacted = redaction.hides_tokens or body != raw or reply != call.reply
        if is_redacted:
            counts.notes["redacted_calls"] += 1
            tokens = None
        last = lanes.get(call.lane)
        row = _record("call", call)
        if not options.include_secrets:
            row = masked_value(row, store.secrets)
        row["reply"] = reply
        row["is_redacted"] = is_redacted
        row["request"] = _request(body, last)
        row["tokens"] = None if tokens is None else _tokens(tokens, last)
        raw_reply = None if is_redacted else store.raw_reply(call.id)
        row["raw_reply"] = None if raw_reply is None else base64.b64encode(raw_reply).decode()
        lanes[call.lane] = _Last(
            call.id, body, None if tokens is None else tokens.prompt_ids + tokens.out_ids
        )
        counts.n_tokens += 0 if tokens is None else len(tokens.prompt_ids) + len(tokens.out_ids)
        yield row


def _record(name: str, value: Any) -> Row:
    row: Row = {"record": name}
    for column in fields(value):
        if column.name not in _SKIPPED:
            row[column.name] = _plain(getattr(value, column.name))
    return row


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, frozenset):
        return sorted(value)
    return value


def _request(body: bytes, last: _Last | None) -> dict[str, Any]:
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        return {"base": None, "head": 0, "tail": 0, "base64": base64.b64encode(body).decode()}
    if last is None:
        return {"base": None, "head": 0, "tail": 0, "text": body.decode()}
    head, tail = _shared(last.body, body)
    return {
        "base": last.call_id,
        "head": head,
        "tail": tail,
        "text": body[head : len(body) - tail].decode(),
    }


def _shared(old: bytes, new: bytes) -> tuple[int, int]:
    """Return how many bytes are equal at the beginning and at the end, between characters."""
    limit = min(len(old), len(new))
    head = _n_equal(old[:limit], new[:limit])
    while head and (_is_inside(new, head) or _is_inside(old, head)):
        head -= 1
    limit -= head
    tail = _n_equal(old[len(old) - limit :][::-1], new[len(new) - limit :][::-1])
    while tail and _is_inside(new, len(new) - tail):
        tail -= 1
    return head, tail


def _n_equal(old: bytes, new: bytes) -> int:
    """Return the length of the common beginning of two texts of the same length."""
    low, high = 0, len(old)
    while low < high:
        middle = (low + high + 1) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _is_inside(text: bytes, at: int) -> bool:
    return at < len(text) and text[at] & 0xC0 == 0x80


def _tokens(tokens: Tokens, last: _Last | None) -> dict[str, Any]:
    common, prompt = 0, tokens.prompt_ids
    if last is not None and last.prompt_and_out is not None:
        limit = min(len(prompt), len(last.prompt_and_out))
        old = last.prompt_and_out[:limit].tobytes()
        common = _n_equal(old, prompt[:limit].tobytes()) // prompt.itemsize
    return {
        "base": None if common == 0 or last is None else last.call_id,
        "common": common,
        "prompt_ids": prompt[common:],
        "out_ids": tokens.out_ids,
        "logprobs": [None if math.isnan(value) else value for value in tokens.logprobs],
    }


def rebuilt_body(request: dict[str, Any], base: bytes) -> bytes:
    """Return the body of a call's record; `base` is the body of `request["base"]`, or empty."""
    if "base64" in request:
        return base64.b64decode(request["base64"])
    end = len(base) - request["tail"]
    return base[: request["head"]] + request["text"].encode() + base[end:]
