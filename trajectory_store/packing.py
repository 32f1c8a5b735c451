"""Bytes as stored: one byte that names the codec, then the data.

    0   as they are
    1   zstd, one frame with its content size

Whatever is packed is unpacked against a hash or checksum held elsewhere, so frames carry none.
"""

from __future__ import annotations

import hashlib
import sys
import threading

from .errors import StoreCorrupt

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

HASH_SIZE = 16
_SMALL = 96
_LEVEL = 3
_MAX_SIZE = 1 << 31
_local = threading.local()


def content_hash(*pieces: bytes | bytearray | memoryview) -> bytes:
    """Return the first 16 bytes of SHA-256 over the pieces joined."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.digest()[:HASH_SIZE]


def pack(data: bytes | memoryview) -> bytes:
    """Return the data packed, compressed where that makes it smaller."""
    if len(data) > _SMALL:
        squeezed = _compressor().compress(data, zstd.ZstdCompressor.FLUSH_FRAME)
        if len(squeezed) < len(data):
            return b"\x01" + squeezed
    return b"\x00" + bytes(data)


def unpack(packed: bytes, what: str) -> bytes:
    """Return the data; `StoreCorrupt` names `what` where it cannot be had."""
    codec, data = packed[:1], memoryview(packed)[1:]
    if codec == b"\x00":
        return bytes(data)
    if codec == b"\x01":
        try:
            if (zstd.get_frame_info(data).decompressed_size or 0) > _MAX_SIZE:
                raise StoreCorrupt(f"{what}: the frame claims an impossible size")
            return zstd.decompress(data)
        except zstd.ZstdError as error:
            raise StoreCorrupt(f"{what}: does not decompress: {error}") from error
    raise StoreCorrupt(f"{what}: unknown codec {codec!r}")


def unpack_content(packed: bytes, name: bytes) -> bytes:
    """Return a blob's content, proved to be what its name says."""
    data = unpack(packed, f"blob {name.hex()}")
    if content_hash(data) != name:
        raise StoreCorrupt(f"blob {name.hex()}: the content does not match its hash")
    return data


def _compressor() -> zstd.ZstdCompressor:
    try:
        return _local.compressor
    except AttributeError:
        _local.compressor = zstd.ZstdCompressor(level=_LEVEL)
        return _local.compressor
