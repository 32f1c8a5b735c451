"""Reading a request body off the socket: bounded while it arrives, inflated within the bound."""

import asyncio

from aiohttp import HttpVersion11, web

from ..errors import Refused
from ..wire import BodyTooLarge, WireError, inflate

LONG = 50_000
"""Compressed bytes from which inflating takes longer than the loop should wait."""

MIN_BYTES_S = 10_000
"""Bytes a second that extend the time a body may take."""


async def read_body(request: web.BaseRequest, limit: int, limit_s: float = 60.0) -> bytes:
    """The request's body, decompressed, at most `limit` bytes.

    It may take `limit_s`, and longer only as it comes faster than `MIN_BYTES_S`. Raises Refused
    (413, 415, 417, 408, 400).
    """
    length = request.content_length
    if length is not None and length > limit:
        raise Refused(413, _too_large(limit), code="request_too_large")
    await _ask_for_it(request)
    data = await _received(request, limit, limit_s)
    encoding = ", ".join(request.headers.getall("content-encoding", ()))
    if not encoding:
        return data
    try:
        if len(data) > LONG:
            return await asyncio.to_thread(inflate, data, encoding, limit)
        return inflate(data, encoding, limit)
    except BodyTooLarge as error:
        raise Refused(413, _too_large(limit), code="request_too_large") from error
    except WireError as error:
        raise Refused(error.status, str(error)) from error


async def _ask_for_it(request: web.BaseRequest) -> None:
    """Tell a client that waits for it to send the body (RFC 9110, 10.1.1)."""
    expected = request.headers.get("expect", "").lower()
    if not expected or request.version < HttpVersion11 or isinstance(request, web.Request):
        return  # an application's router has answered it
    if expected != "100-continue":
        raise Refused(417, "The only expectation that is met is 100-continue.")
    if not request.content.at_eof():
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # of the answer itself, nothing has been written


async def _received(request: web.BaseRequest, limit: int, limit_s: float) -> bytes:
    loop = asyncio.get_running_loop()
    begun, chunks, size = loop.time(), [], 0
    try:
        while not request.content.at_eof():
            async with asyncio.timeout_at(begun + limit_s + size / MIN_BYTES_S):
                chunk = await request.content.readany()
            size += len(chunk)
            if size > limit:
                raise Refused(413, _too_large(limit), code="request_too_large")
            chunks.append(chunk)
    except TimeoutError as error:
        raise Refused(408, "The request's body did not arrive in time.", code="timeout") from error
    except web.RequestPayloadError as error:
        raise Refused(400, "The request's body is damaged.") from error
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _too_large(limit: int) -> str:
    return f"The request body is larger than {limit // 2**20} MiB (proxy.max_body_mib)."
