"""Rows to records: the queries behind the store's reads. Every read sees one snapshot."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, Row, Select, case, func, select

from . import tables
from .errors import NotStored, StoreCorrupt
from .ids import CallId, LaneId, RolloutId
from .outcome import FailureClass, Outcome
from .packing import unpack, unpack_content
from .records import (
    COMPLETE,
    Call,
    CallState,
    History,
    Lane,
    LaneKind,
    PromptMode,
    Purpose,
    Rollout,
    Run,
    Turn,
)
from .tables import load_json

AnyRow = Row[*tuple[Any, ...]]


def one(connection: Connection, query: Select[*tuple[Any, ...]], what: str) -> AnyRow:
    """Return the one row; raises `NotStored`."""
    row = connection.execute(query).first()
    if row is None:
        raise NotStored(f"{what} is not in this store")
    return row


def run_of(row: AnyRow) -> Run:
    """Return the run in a row."""
    return Run(**_with(row, purpose=Purpose(row.purpose), history=History(row.history)))


def rollout_of(row: AnyRow) -> Rollout:
    """Return the rollout in a row."""
    values = _with(row)
    del values["schema_version"]
    return Rollout(**values)


def outcome_of(row: AnyRow) -> Outcome:
    """Return the outcome in a row."""
    return Outcome(**_with(row, failure_class=FailureClass(row.failure_class)))


def lane_of(row: AnyRow) -> Lane:
    """Return the lane in a row."""
    return Lane(**_with(row, kind=LaneKind(row.kind)))


def _with(row: AnyRow, **changed: Any) -> dict[str, Any]:
    """Return the row's values by column, some of them changed."""
    values: dict[str, Any] = dict(row._mapping)
    values.update(changed)
    return values


def read_lanes(connection: Connection, rollout_id: RolloutId) -> list[Lane]:
    """Return a rollout's lanes, oldest first."""
    lane = tables.lane
    query = select(lane).where(lane.c.rollout_id == rollout_id)
    return [lane_of(r) for r in connection.execute(query.order_by(lane.c.created_at, lane.c.id))]


def read_blobs(connection: Connection, names: Iterable[bytes]) -> dict[bytes, bytes]:
    """Return the contents of blobs by name, each proved."""
    wanted, found = sorted(set(names)), dict[bytes, bytes]()
    blob = tables.blob.c
    for start in range(0, len(wanted), 500):
        query = select(blob.hash, blob.packed).where(blob.hash.in_(wanted[start : start + 500]))
        for name, packed in connection.execute(query):
            found[bytes(name)] = unpack_content(packed, bytes(name))
    missing = [name for name in wanted if name not in found]
    if missing:
        raise StoreCorrupt(f"blob {missing[0].hex()} is missing, and {len(missing) - 1} others")
    return found


_call_columns = [c for c in tables.call.c if c.name not in ("separators", "raw_reply", "bare_key")]


def read_calls(connection: Connection, condition: Any) -> list[Call]:
    """Return the calls that meet a condition, in order: with a result by seq, then the others."""
    call = tables.call.c
    query = select(*_call_columns).where(condition)
    rows = connection.execute(query.order_by(call.seq.is_(None), call.seq, call.id)).all()
    names = {bytes(n) for r in rows for n in (r.client, r.origin) if n is not None}
    contents = {name: load_json(data) for name, data in read_blobs(connection, names).items()}
    return [_call_of(row, contents) for row in rows]


def read_progress(connection: Connection, rollout_id: RolloutId) -> tuple[str, int, int]:
    """Return a rollout's state, its number of calls, and how many of them are open."""
    rollout, call = tables.rollout.c, tables.call.c
    query = select(rollout.state).where(rollout.id == rollout_id)
    state = one(connection, query, f"rollout {rollout_id}").state
    is_open = call.state.in_([state.value for state in CallState if state.is_open])
    query = select(func.count(), func.count(case((is_open, 1))))
    n_calls, n_open = connection.execute(query.where(call.rollout_id == rollout_id)).one()
    return state, n_calls, n_open


_NO_ORIGIN: dict[str, Any] = dict.fromkeys(
    ("policy_label", "engine", "template_hash", "tokenizer_hash")
)


def _call_of(row: AnyRow, contents: dict[bytes, Any]) -> Call:
    values = _with(row)
    for name in ("writer", "envelope", "tools", "message"):
        del values[name]
    origin = values.pop("origin")
    values |= contents[bytes(origin)] if origin else {"sampling": {}, **_NO_ORIGIN}
    reply = values["reply"]
    values |= {
        "state": CallState(row.state),
        "prompt_mode": PromptMode(row.prompt_mode) if row.prompt_mode else None,
        "reasons": tuple(row.reasons or ()),
        "client": contents[bytes(row.client)],
        "timings": row.timings or {},
        "flags": frozenset(row.flags or ()),
        "n_messages": row.n_messages or 0,
        "reply": None if reply is None else load_json(unpack(reply, f"reply of {row.id}")),
        "failure_class": FailureClass(row.failure_class),
    }
    return Call(**values)


_turn_names = (
    *(
        "id",
        "seq",
        "parent",
        "turn_index",
        "chain_key",
        "bare_key",
        "reply_digest",
        "reply",
        "finish",
    ),
    *("stop_id", "state", "exact", "n_prompt", "n_out", "n_messages", "flags", "template_key"),
    *("body_hash", "lane", "origin"),
)
_turn_columns = [tables.call.c[name] for name in _turn_names]


def read_turns(connection: Connection, rollout_id: RolloutId, after: int) -> list[Turn]:
    """Return a rollout's complete calls whose seq is higher, in order, those without ids too."""
    call = tables.call.c
    query = select(*_turn_columns).where(
        call.rollout_id == rollout_id,
        call.seq > after,
        call.state.in_([state.value for state in COMPLETE]),
    )
    rows = connection.execute(query.order_by(call.seq)).all()
    lanes: dict[LaneId, Lane] = {}
    if rows:
        lanes = {lane.id: lane for lane in read_lanes(connection, rollout_id)}
    names = {bytes(row.origin) for row in rows if row.origin is not None}
    origins = {name: load_json(data) for name, data in read_blobs(connection, names).items()}
    return [_turn_of(row, lanes, origins) for row in rows]


def _turn_of(row: AnyRow, lanes: dict[LaneId, Lane], origins: dict[bytes, Any]) -> Turn:
    values = _with(row)
    origin = values.pop("origin")
    came_from = origins[bytes(origin)] if origin else _NO_ORIGIN
    reply = values["reply"]
    values |= {
        "lane": lanes[row.lane],
        "state": CallState(row.state),
        "flags": frozenset(row.flags or ()),
        "n_messages": row.n_messages or 0,
        "n_prompt": row.n_prompt or 0,
        "n_out": row.n_out or 0,
        "reply": None if reply is None else load_json(unpack(reply, f"reply of {row.id}")),
        "template_hash": came_from["template_hash"],
        "tokenizer_hash": came_from["tokenizer_hash"],
    }
    return Turn(**values)


def seq_of(connection: Connection, call_id: CallId) -> int | None:
    """Return a call's seq; raises `NotStored` for an unknown call."""
    call = tables.call.c
    return one(connection, select(call.seq).where(call.id == call_id), f"call {call_id}").seq
