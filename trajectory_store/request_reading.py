"""Reading requests: the message chain walked back, each slice proved, the body joined again."""

from __future__ import annotations

from sqlalchemy import Connection, select

from . import tables
from .bodies import RequestBody
from .errors import StoreCorrupt
from .ids import CallId
from .packing import content_hash, unpack
from .reading import AnyRow, one, read_blobs
from .tables import load_json

_node = tables.message


def read_body(connection: Connection, call_id: CallId) -> RequestBody | bytes:
    """Return the request's body in slices, or whole where it was kept whole."""
    row = _request_row(connection, call_id)
    envelope = bytes(row.envelope)
    names = {envelope} if row.tools is None else {envelope, bytes(row.tools)}
    contents = read_blobs(connection, names)
    if row.n_messages is None:
        return contents[envelope]
    return RequestBody(
        contents[envelope],
        tuple(_messages(connection, row)),
        _separators(row),
        None if row.tools is None else contents[bytes(row.tools)],
    )


def read_messages(connection: Connection, call_id: CallId) -> list[bytes]:
    """Return the raw messages of a request."""
    row = _request_row(connection, call_id)
    return [] if row.n_messages is None else _messages(connection, row)


def read_digests(connection: Connection, call_id: CallId) -> bytes:
    """Return the digests of a request's messages, joined; empty where one is not known."""
    row = _request_row(connection, call_id)
    digests = [node.digest for node in _nodes(connection, row)]
    return b"".join(digests) if None not in digests else b""


def _request_row(connection: Connection, call_id: CallId) -> AnyRow:
    call = tables.call.c
    columns = (
        call.id,
        call.envelope,
        call.tools,
        call.message,
        call.n_messages,
        call.separators,
    )
    return one(connection, select(*columns).where(call.id == call_id), f"call {call_id}")


def _nodes(connection: Connection, row: AnyRow) -> list[AnyRow]:
    """Return the request's message rows, first to last, each proved to be what its name says."""
    if not row.n_messages:
        return []
    last = row.message
    start = select(_node.c.hash, _node.c.parent).where(_node.c.hash == last).cte(recursive=True)
    chain = start.union_all(
        select(_node.c.hash, _node.c.parent).where(_node.c.hash == start.c.parent)
    )
    columns = (
        _node.c.hash,
        _node.c.parent,
        _node.c.blob,
        _node.c.depth,
        _node.c.digest,
    )
    query = select(*columns).join(chain, chain.c.hash == _node.c.hash).order_by(_node.c.depth)
    nodes: list[AnyRow] = [*connection.execute(query)]
    parent = b""
    for node in nodes:
        name = content_hash(parent, bytes(node.blob))
        if name != bytes(node.hash) or bytes(node.parent or b"") != parent:
            raise StoreCorrupt(f"message {bytes(node.hash).hex()} of call {row.id} is damaged")
        parent = name
    if len(nodes) != row.n_messages or parent != bytes(last):
        raise StoreCorrupt(f"call {row.id}: {len(nodes)} messages found, {row.n_messages} recorded")
    return nodes


def _messages(connection: Connection, row: AnyRow) -> list[bytes]:
    names = [bytes(node.blob) for node in _nodes(connection, row)]
    contents = read_blobs(connection, names)
    return [contents[name] for name in names]


def _separators(row: AnyRow) -> tuple[bytes, ...] | None:
    if row.separators is None:
        return None
    kind, *kept = load_json(unpack(row.separators, f"separators of {row.id}"))
    pieces = [piece.encode("latin-1") for piece in kept]
    if kind == "same":
        first, between, last = pieces
        return (first, *[between] * (row.n_messages - 1), last)
    return tuple(pieces)
