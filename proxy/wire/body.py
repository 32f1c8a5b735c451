"""Undo `Content-Encoding`, never making more than a limit of bytes (RFC 9110, 8.4).

Encodings may be stacked; they are undone in reverse order. The limit holds for the output of
every layer, so a bomb costs at most `limit` bytes of memory, whatever it would unfold to.
"""

import sys
import zlib
from collections.abc import Callable

import brotli

from .errors import BadBody, BodyTooLarge, UnknownEncoding

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAX_LAYERS = 4
"""More encodings on one body than any client uses."""

MAX_MEMBERS = 1024
"""Members of one gzip body, frames of one zstd body; each costs a fresh decompressor."""

MAX_WINDOW_LOG = 25
"""Memory that a zstd frame may ask for, 32 MiB; levels up to 19 ask for 8 MiB."""

_STEP = 2**16
_ZSTD_LIMITS: dict[int, int] = {zstd.DecompressionParameter.window_log_max: MAX_WINDOW_LOG}


def inflate(data: bytes, content_encoding: str | None, limit: int) -> bytes:
    """Return the plain body, at most `limit` bytes.

    `content_encoding` is the header's value, None or empty where there is none. Raises
    `BodyTooLarge`, `UnknownEncoding`, or `BadBody` where the bytes are not what the header says.
    """
    if len(data) > limit:
        raise _too_large(limit)
    names = [name.strip().lower() for name in (content_encoding or "").split(",")]
    names = [name for name in names if name not in ("", "identity")]
    if len(names) > MAX_LAYERS:
        raise UnknownEncoding(f"A body may be encoded {MAX_LAYERS} times, not {len(names)}.")
    for name in names:
        if name not in _DECODERS:
            known = ", ".join(sorted(_DECODERS))
            raise UnknownEncoding(f"Content-Encoding must be one of: {known}.")
    for name in reversed(names):
        data = _DECODERS[name](data, limit)
    return data


def _gzip(data: bytes, limit: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    rest = data
    for _ in range(MAX_MEMBERS):
        member = zlib.decompressobj(16 + zlib.MAX_WBITS)
        piece, rest = _whole_stream(member, rest, limit - size, "gzip")
        pieces.append(piece)
        size += len(piece)
        # Padding with zeros after the last member is allowed, as `gzip` itself does.
        if not rest or not rest.strip(b"\0"):
            return b"".join(pieces)
    raise BadBody(f"A gzip body may have {MAX_MEMBERS} members.")


def _deflate(data: bytes, limit: int) -> bytes:
    """Undo zlib's format, or the bare one that some clients send under the same name."""
    has_header = len(data) > 1 and data[0] & 15 == 8 and (data[0] << 8 | data[1]) % 31 == 0
    if has_header:
        try:
            return _one_deflate(data, limit, zlib.MAX_WBITS)
        except BadBody:
            pass
    return _one_deflate(data, limit, -zlib.MAX_WBITS)


def _one_deflate(data: bytes, limit: int, window_bits: int) -> bytes:
    plain, rest = _whole_stream(zlib.decompressobj(window_bits), data, limit, "deflate")
    if rest:
        raise BadBody("The deflate body has bytes after its end.")
    return plain


def _whole_stream(stream, data: bytes, limit: int, name: str) -> tuple[bytes, bytes]:
    """Return one stream's whole output and what follows it in `data`."""
    try:
        plain = stream.decompress(data, limit + 1)
        # The end marker may still be unread when the output has just filled up.
        if not stream.eof and len(plain) <= limit:
            plain += stream.decompress(stream.unconsumed_tail, limit + 1 - len(plain) or 1)
    except zlib.error as error:
        raise BadBody(f"The body is not {name}, or is damaged.") from error
    if len(plain) > limit:
        raise _too_large(limit)
    if not stream.eof:
        raise BadBody(f"The {name} body is cut.")
    return plain, stream.unused_data


def _zstd(data: bytes, limit: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    for _ in range(MAX_MEMBERS):
        decoder = zstd.ZstdDecompressor(options=_ZSTD_LIMITS)
        try:
            plain = decoder.decompress(data, limit + 1 - size)
        except zstd.ZstdError as error:
            raise BadBody("The body is not zstd, or is damaged.") from error
        pieces.append(plain)
        size += len(plain)
        if size > limit:
            raise _too_large(limit)
        if not decoder.eof:
            raise BadBody("The zstd body is cut.")
        data = decoder.unused_data
        if not data:
            return b"".join(pieces)
    raise BadBody(f"A zstd body may have {MAX_MEMBERS} frames.")


def _brotli(data: bytes, limit: int) -> bytes:
    decoder = brotli.Decompressor()
    pieces: list[bytes] = []
    size = 0
    try:
        piece = decoder.process(data, output_buffer_limit=_STEP)
        while True:
            size += len(piece)
            if size > limit:
                raise _too_large(limit)
            pieces.append(piece)
            if decoder.can_accept_more_data():
                break
            piece = decoder.process(b"", output_buffer_limit=max(_STEP, size))
    except brotli.error as error:
        raise BadBody("The body is not brotli, or is damaged.") from error
    if not decoder.is_finished():
        raise BadBody("The brotli body is cut.")
    return b"".join(pieces)


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than {limit} bytes.")


_DECODERS: dict[str, Callable[[bytes, int], bytes]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "zstd": _zstd,
    "br": _brotli,
}
