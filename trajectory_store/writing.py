"""Putting a batch of planned rows into the database, inside the caller's transaction.

The order is fixed, so that processes that share a PostgreSQL server cannot wait for each other in
a ring: the counter first, then content-named rows by name, then the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Executable, Table, bindparam, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from . import tables
from .errors import NotWritten
from .planning import Batch
from .records import CallState, Lane

_TOLD = {
    CallState.STREAMING: ("intent",),
    CallState.ABORTED: ("intent", "streaming"),
    CallState.DELIVERED: ("committed", "undelivered", "delivered"),
    CallState.UNDELIVERED: ("committed", "undelivered"),
}
"""States that can be marked, and from which."""


class RowCountError(NotWritten):
    """A statement met another number of rows than it was meant for."""


class Statements:
    """The statements of the hot path, built once for one database's dialect."""

    def __init__(self, dialect: str) -> None:
        """Build them for `sqlite` or `postgresql`."""
        insert = sqlite.insert if dialect == "sqlite" else postgresql.insert
        call = tables.call
        self.draw = (
            update(tables.counter)
            .where(tables.counter.c.name == "call")
            .values(value=tables.counter.c.value + bindparam("n"))
            .returning(tables.counter.c.value)
        )
        self.blobs = insert(tables.blob).on_conflict_do_nothing()
        self.messages = insert(tables.message).on_conflict_do_nothing()
        self.calls = insert(call)
        self.tokens = insert(tables.tokens)
        lanes = insert(tables.lane)
        self.lanes = lanes.on_conflict_do_update(
            index_elements=["id"],
            set_={
                k: lanes.excluded[k]
                for k in ("kind", "segment", "parent_lane", "offers_tools", "agent_key")
            },
        )
        message = tables.message.c
        self.digests = update(tables.message).where(
            message.hash == bindparam("b_hash"), message.digest.is_(None)
        )
        self.results = update(call).where(call.c.id == bindparam("b_id"), call.c.seq.is_(None))
        self.echoes = update(call).where(call.c.id == bindparam("b_id")).values(echoed=True)
        self.marks = {
            state: update(call)
            .where(call.c.id == bindparam("b_id"), or_(*(call.c.state == old for old in before)))
            .values(state=state.value)
            for state, before in _TOLD.items()
        }


def write(connection: Connection, statements: Statements, batch: Batch) -> None:
    """Write intents and results; each result's row gets its `seq`."""
    if batch.results:
        last = connection.execute(statements.draw, {"n": len(batch.results)}).scalar_one()
        for seq, row in enumerate(batch.results, last - len(batch.results) + 1):
            row["seq"] = seq
    blobs = [{"hash": name, "packed": data} for name, data in sorted(batch.blobs.items())]
    _many(connection, statements.blobs, blobs)
    _many(
        connection,
        statements.messages,
        [row for _, row in sorted(batch.messages.items())],
    )
    _many(connection, statements.calls, batch.calls)
    _many(connection, statements.digests, batch.digests)
    lanes = [_lane_row(lane) for _, lane in sorted(batch.lanes.items())]
    _many(connection, statements.lanes, lanes)
    _each(connection, statements.results, batch.results)
    rows = [p.row | {"seq": batch.results[index]["seq"]} for index, p in batch.tokens]
    _many(connection, statements.tokens, rows)


def write_mark(
    connection: Connection,
    statements: Statements,
    state: CallState,
    call_ids: Sequence[str],
) -> None:
    """Write a later state of some calls."""
    if state not in statements.marks:
        raise NotWritten(f"a call cannot be marked {state.value}")
    _each(connection, statements.marks[state], [{"b_id": call_id} for call_id in call_ids])


def write_echoes(connection: Connection, statements: Statements, call_ids: Sequence[str]) -> None:
    """Write that some calls' answers were seen in later requests."""
    _each(connection, statements.echoes, [{"b_id": call_id} for call_id in call_ids])


def stored_seq(connection: Connection, call_id: str) -> int | None:
    """Return the seq of a call that has its result already."""
    found = select(tables.call.c.seq).where(tables.call.c.id == call_id)
    return connection.execute(found).scalar()


def is_stored(connection: Connection, call_id: str) -> bool:
    """Return whether a call's intent is stored."""
    found = select(tables.call.c.id).where(tables.call.c.id == call_id)
    return connection.execute(found).first() is not None


def _lane_row(lane: Lane) -> dict[str, Any]:
    return {name: getattr(lane, name) for name in lane.__slots__}


def _many(connection: Connection, statement: Executable, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        connection.execute(statement, rows)


def _each(connection: Connection, statement: Executable, rows: Sequence[Mapping[str, Any]]) -> None:
    """Execute for each row, each of which must meet exactly one row of the table."""
    if not rows:
        return
    found = connection.execute(statement, rows).rowcount
    if found != len(rows):
        raise RowCountError(
            f"{found} of {len(rows)} calls could be changed: unknown, not in a state that allows "
            "it, or their result is stored already"
        )


def insert_row(connection: Connection, table: Table, row: Mapping[str, Any]) -> None:
    """Insert one row off the hot path."""
    connection.execute(table.insert().values(dict(row)))
