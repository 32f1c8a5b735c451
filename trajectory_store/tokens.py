"""Token arrays as stored: what a prompt adds to an earlier call's tokens, and how it is rebuilt.

A row holds the prompt as *base row + common length + suffix*: the prompt's first `common` ids are
those of the base's prompt + output. The claim is never taken on trust: it is compared with the
base's arrays before it is written, and where it does not hold a whole snapshot is written instead.
Ids are little-endian u32, logprobs little-endian f32 (half precision would corrupt importance
ratios). The checksum of a row covers the checksum of its base, so each rebuilt array is proved
along the whole path, and a row costs its new tokens only.

A whole snapshot is written every 64 rows of a path, once the path has grown to a multiple of the
last snapshot: reading stays bounded, and snapshots cost a bounded share of the bytes.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import StoreCorrupt
from .packing import content_hash, pack, unpack

SNAPSHOT_ROWS = 64
SNAPSHOT_GROWTH = 3
MIN_COMMON = 32
ID_BYTES = 4
_LITTLE = sys.byteorder == "little"


def to_bytes(values: array[Any]) -> bytes:
    """Return the array's items little-endian."""
    if values.itemsize != ID_BYTES:
        raise ValueError(f"items of 4 bytes are wanted, not {values.itemsize} ({values.typecode})")
    if not _LITTLE:
        values = array(values.typecode, values)
        values.byteswap()
    return values.tobytes()


def ids_from_bytes(data: bytes | bytearray | memoryview) -> array[int]:
    """Return an `array('I')` of little-endian u32."""
    return _from_bytes(array("I"), data)


def floats_from_bytes(data: bytes | bytearray | memoryview) -> array[float]:
    """Return an `array('f')` of little-endian f32."""
    return _from_bytes(array("f"), data)


def _from_bytes(values: array[Any], data: bytes | bytearray | memoryview) -> array[Any]:
    values.frombytes(data)
    if not _LITTLE:
        values.byteswap()
    return values


def common_ids(a: bytes, b: bytes) -> int:
    """Return how many leading ids two byte arrays share, by halving over memory compares."""
    low, high = 0, min(len(a), len(b)) // ID_BYTES
    if a[: high * ID_BYTES] == b[: high * ID_BYTES]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        # Slices of bytes compare by memcmp; memory views would compare item by item.
        if a[low * ID_BYTES : middle * ID_BYTES] == b[low * ID_BYTES : middle * ID_BYTES]:
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True, slots=True)
class Path:
    """What must be known of a stored row to write another one that extends it."""

    seq: int
    full: bytes
    """Prompt + output, little-endian u32."""
    checksum: bytes
    depth: int
    """Rows since the last snapshot."""
    snapshot_size: int
    """Ids in the last snapshot."""
    added: int
    """Ids written since."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A row to write, but for its seq, and the path that it makes."""

    row: dict[str, Any]
    full: bytes
    checksum: bytes
    depth: int
    snapshot_size: int
    added: int

    def path(self, seq: int) -> Path:
        """Return the path, now that the row has its number."""
        return Path(seq, self.full, self.checksum, self.depth, self.snapshot_size, self.added)


def plan(
    prompt: bytes, out: bytes, logprobs: bytes, base: Path | None, claimed: int | None
) -> Planned:
    """Return the row for these arrays.

    `claimed` is how many ids the caller says are the base's; None lets them be counted here.
    """
    common = _agreed(prompt, base, claimed)
    if base is None or common == 0 or _wants_snapshot(base):
        base, common = None, 0
    suffix = prompt[common * ID_BYTES :]
    n_suffix, n_out = len(suffix) // ID_BYTES, len(out) // ID_BYTES
    row = {
        "base": base.seq if base else None,
        "common": common,
        "depth": base.depth + 1 if base else 0,
        "n_prompt": common + n_suffix,
        "n_out": n_out,
        "n_logprobs": len(logprobs) // ID_BYTES,
        "suffix": pack(suffix),
        "out": pack(out),
        "logprobs": pack(logprobs),
    }
    row["checksum"] = _checksum(row, base.checksum if base else b"", suffix, out, logprobs)
    return Planned(
        row=row,
        full=prompt + out,
        checksum=row["checksum"],
        depth=row["depth"],
        snapshot_size=base.snapshot_size if base else n_suffix,
        added=base.added + n_suffix + n_out if base else n_out,
    )


def _agreed(prompt: bytes, base: Path | None, claimed: int | None) -> int:
    if base is None:
        return 0
    if claimed is None:
        common = common_ids(prompt, base.full)
        return common if common >= MIN_COMMON else 0
    end = claimed * ID_BYTES
    if not 0 <= end <= min(len(prompt), len(base.full)):
        return 0
    head = base.full if end == len(base.full) else base.full[:end]
    return claimed if prompt.startswith(head) else 0


def _wants_snapshot(base: Path) -> bool:
    return base.depth + 1 >= SNAPSHOT_ROWS and base.added >= SNAPSHOT_GROWTH * base.snapshot_size


def _checksum(
    row: Mapping[str, Any], base: bytes, suffix: bytes, out: bytes, logprobs: bytes
) -> bytes:
    head = f"{row['common']},{row['n_prompt']},{row['n_out']},{row['n_logprobs']};".encode()
    return content_hash(base, head, suffix, out, logprobs)


@dataclass(frozen=True, slots=True)
class Piece:
    """A stored row, unpacked: bytes of what it adds. Not yet proved; `rebuild` does that."""

    seq: int
    base: int | None
    common: int
    depth: int
    n_prompt: int
    n_out: int
    suffix: bytes
    out: bytes
    logprobs: bytes
    checksum: bytes
    row: Mapping[str, Any]

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Piece:
        """Unpack a row; `StoreCorrupt` where lengths disagree."""
        seq = row["seq"]
        parts = [unpack(row[k], f"tokens {seq} {k}") for k in ("suffix", "out", "logprobs")]
        wanted = (row["n_prompt"] - row["common"], row["n_out"], row["n_logprobs"])
        if tuple(len(part) for part in parts) != tuple(n * ID_BYTES for n in wanted):
            raise StoreCorrupt(f"tokens {seq}: lengths are not those recorded")
        return cls(
            seq=seq,
            base=row["base"],
            common=row["common"],
            depth=row["depth"],
            n_prompt=row["n_prompt"],
            n_out=row["n_out"],
            suffix=parts[0],
            out=parts[1],
            logprobs=parts[2],
            checksum=row["checksum"],
            row=row,
        )

    def prove(self, base: bytes) -> None:
        """Raise `StoreCorrupt` unless the checksum holds over the base's and this row's bytes."""
        found = _checksum(self.row, base, self.suffix, self.out, self.logprobs)
        if found != self.checksum:
            raise StoreCorrupt(f"tokens {self.seq}: the checksum does not match")


def rebuild(pieces: Iterable[Piece]) -> Path:
    """Return the path to the last of the pieces, given from a snapshot on; each is proved."""
    full = bytearray()
    checksum, seq, snapshot_size, added, depth = b"", None, 0, 0, 0
    for piece in pieces:
        if piece.base != seq or piece.common * ID_BYTES > len(full):
            raise StoreCorrupt(f"tokens {piece.seq}: its base {piece.base} is not as recorded")
        piece.prove(checksum)
        del full[piece.common * ID_BYTES :]
        full += piece.suffix
        full += piece.out
        n_suffix = piece.n_prompt - piece.common
        if seq is None:
            snapshot_size, added = n_suffix, piece.n_out
        else:
            added += n_suffix + piece.n_out
        checksum, seq, depth = piece.checksum, piece.seq, piece.depth
    if seq is None:
        raise StoreCorrupt("tokens: no rows to rebuild from")
    return Path(seq, bytes(full), checksum, depth, snapshot_size, added)
