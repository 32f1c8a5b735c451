"""Reading token arrays: one call by its path of rows, or a rollout with each row read once."""

from __future__ import annotations

from collections import OrderedDict

from sqlalchemy import Connection, select

from . import tables
from .errors import NotStored, StoreCorrupt
from .ids import CallId, RolloutId
from .reading import seq_of
from .records import Tokens
from .tokens import ID_BYTES, Path, Piece, floats_from_bytes, ids_from_bytes, rebuild

_table = tables.tokens


def read_tokens(connection: Connection, call_id: CallId) -> Tokens:
    """Return a call's arrays, proved; raises `NotStored` where it has none."""
    pieces = _pieces_to(connection, call_id)
    return _arrays(pieces[-1], rebuild(pieces).full)


def read_path(connection: Connection, call_id: CallId) -> Path | None:
    """Return the path to a call's row, proved; None where it has no ids."""
    try:
        return rebuild(_pieces_to(connection, call_id))
    except NotStored:
        return None


def _arrays(piece: Piece, full: bytes | memoryview) -> Tokens:
    end = piece.n_prompt * ID_BYTES
    logprobs = piece.logprobs
    floats = floats_from_bytes(logprobs)
    if not logprobs:
        floats.extend([float("nan")] * piece.n_out)
    view = memoryview(full)
    return Tokens(ids_from_bytes(view[:end]), ids_from_bytes(view[end:]), floats)


def _pieces_to(connection: Connection, call_id: CallId) -> list[Piece]:
    """Return the rows from the snapshot to the call, unpacked."""
    seq = seq_of(connection, call_id)
    start = select(_table.c.seq, _table.c.base).where(_table.c.seq == seq).cte(recursive=True)
    path = start.union_all(select(_table.c.seq, _table.c.base).where(_table.c.seq == start.c.base))
    query = select(_table).where(_table.c.seq.in_(select(path.c.seq))).order_by(_table.c.seq)
    pieces = [Piece.from_row(row._asdict()) for row in connection.execute(query)]
    if not pieces:
        raise NotStored(f"call {call_id} has no token ids")
    if pieces[0].base is not None:
        raise StoreCorrupt(f"tokens {pieces[0].seq}: their base {pieces[0].base} is missing")
    return pieces


class RolloutTokens:
    """The arrays of a rollout's calls; each row is unpacked and proved once.

    Whole arrays are held for few calls at a time; ask in the order of branches, not at random.
    """

    def __init__(self, connection: Connection, rollout_id: RolloutId) -> None:
        """Read the rows; a base in another rollout is fetched when it is met."""
        call = tables.call.c
        query = select(_table).where(
            _table.c.seq.in_(
                select(call.seq).where(call.rollout_id == rollout_id, call.n_prompt.is_not(None))
            )
        )
        self._pieces = {
            row.seq: Piece.from_row(row._asdict())
            for row in connection.execute(query.order_by(_table.c.seq))
        }
        self._proved: set[int] = set()
        self._full: OrderedDict[int, bytes] = OrderedDict()

    def piece(self, seq: int) -> Piece:
        """Return a row, proved with all that it stands on."""
        self._prove(seq)
        return self._pieces[seq]

    def full(self, seq: int) -> bytes:
        """Return prompt + output of a call as little-endian u32."""
        known = self._full.get(seq)
        if known is not None:
            return known
        path = self._path(seq)
        held = next((i for i in range(len(path) - 1, -1, -1) if path[i].seq in self._full), None)
        full = bytearray(b"" if held is None else self._full[path[held].seq])
        for piece in path[0 if held is None else held + 1 :]:
            del full[piece.common * ID_BYTES :]
            full += piece.suffix
            full += piece.out
        self._full[seq] = bytes(full)
        while len(self._full) > 8:
            self._full.popitem(last=False)
        return self._full[seq]

    def tokens(self, seq: int) -> Tokens:
        """Return a call's arrays."""
        return _arrays(self.piece(seq), self.full(seq))

    def _path(self, seq: int) -> list[Piece]:
        path: list[Piece] = []
        at: int | None = seq
        while at is not None:
            piece = self.piece(at)
            path.append(piece)
            at = piece.base
        return path[::-1]

    def _prove(self, seq: int) -> None:
        waiting: list[Piece] = []
        at: int | None = seq
        while at is not None and at not in self._proved:
            piece = self._pieces.get(at)
            if piece is None:
                raise StoreCorrupt(f"tokens {at} are missing, {seq} stands on them")
            waiting.append(piece)
            at = piece.base
        for piece in reversed(waiting):
            piece.prove(b"" if piece.base is None else self._pieces[piece.base].checksum)
            if piece.base is not None:
                base = self._pieces[piece.base]
                if piece.common > base.n_prompt + base.n_out:
                    raise StoreCorrupt(f"tokens {piece.seq}: more in common than its base has")
            self._proved.add(piece.seq)
