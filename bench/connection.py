"""One raw HTTP/1.1 connection that takes the time of each byte: the load client's whole network.

No HTTP library stands between the socket and the clock, so what is measured is the server. JSON is
parsed after the clock has stopped.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import cast
from urllib.parse import urlsplit

_SAYS_SOMETHING = re.compile(
    rb'"(?:content|reasoning|reasoning_content)": ?"[^"]|"tool_calls": ?\[\{'
)


class BrokenAnswerError(ConnectionError):
    """The answer ended early or is not HTTP."""


class Connection(asyncio.Protocol):
    """A keep-alive connection, one call at a time; times are `time.perf_counter()` seconds."""

    transport: asyncio.Transport
    status: int
    body: bytearray
    started_at: float
    first_event_at: float | None
    """When a plain body's first byte was there, or a stream's first event that says something (when
    the empty event that names the role is sent differs between engines)."""
    last_byte_at: float | None
    ended_at: float

    def __init__(self) -> None:
        self.is_closed = False
        self.done: asyncio.Future[None] | None = None
        self._head: bytes | None = None
        self._framing = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance

    def connection_lost(self, exc: Exception | None) -> None:
        """End the call in flight; right only where the socket's end is the body's."""
        self.is_closed = True
        if self.done is None or self.done.done():
            return
        if self._head is not None and self._framing == "close":
            self.ended_at = time.perf_counter()
            self.done.set_result(None)
        else:
            how = "reset" if exc else "fin"
            self.done.set_exception(
                BrokenAnswerError(f"closed early ({how}) after {len(self.body)} body bytes")
            )

    def send(self, request: bytes) -> asyncio.Future[None]:
        """Send a request; the future ends with its answer. Raises BrokenAnswerError if closed."""
        if self.is_closed:
            raise BrokenAnswerError("the server closed the idle connection")
        self._raw = bytearray()
        self.body = bytearray()
        self._head = None
        self._framing = ""
        self._left = 0
        self._in_chunk = False
        self.status = 0
        self.first_event_at = self.last_byte_at = None
        self.done = asyncio.get_running_loop().create_future()
        self.started_at = time.perf_counter()
        self.transport.write(request)
        return self.done

    def abort(self) -> None:
        """Leave at once, whatever is in flight."""
        self.is_closed = True
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take what came; a broken answer fails the call, not the client."""
        if self.done is None or self.done.done():
            return
        try:
            self._feed(data)
        except ValueError as error:
            self._fail(BrokenAnswerError(f"bad answer: {error!r}"))
        except BrokenAnswerError as error:
            self._fail(error)

    def _fail(self, error: BrokenAnswerError) -> None:
        self.abort()
        if self.done is not None and not self.done.done():
            self.done.set_exception(error)

    def _feed(self, data: bytes) -> None:
        self._raw += data
        if self._head is None and not self._take_head():
            return
        now = time.perf_counter()
        if self._framing == "chunked":
            self._take_chunks(now)
            return
        self.body += self._raw
        self._raw.clear()
        if self.body:
            self.first_event_at = self.first_event_at or now
            self.last_byte_at = now
        if self._framing == "length" and len(self.body) >= self._left:
            self._end(now)

    def _take_head(self) -> bool:
        end = self._raw.find(b"\r\n\r\n")
        if end < 0:
            if len(self._raw) > 65_536:
                raise BrokenAnswerError("no end of headers")
            return False
        head = bytes(self._raw[:end]).lower()
        del self._raw[: end + 4]
        if head.startswith(b"http/1.1 100"):
            return self._take_head()
        if not head.startswith(b"http/1."):
            raise BrokenAnswerError("not HTTP")
        self._head = head
        self.status = int(head[9:12])
        self._ends_connection = b"connection: close" in head
        at = head.find(b"content-length:")
        if b"transfer-encoding: chunked" in head:
            self._framing = "chunked"
        elif at >= 0:
            self._framing = "length"
            self._left = int(head[at + 15 :].split(b"\r\n", 1)[0])
        else:
            self._framing = "close"
        return True

    def _take_chunks(self, now: float) -> None:
        raw, position = self._raw, 0
        while True:
            if not self._in_chunk:
                end = raw.find(b"\r\n", position)
                if end < 0:
                    break
                self._left = int(bytes(raw[position:end]).split(b";")[0], 16)
                position = end + 2
                self._in_chunk = True
            if len(raw) - position < self._left + 2:
                break
            if self._left == 0:
                del raw[: position + 2]
                return self._end(now)
            self.body += raw[position : position + self._left]
            position += self._left + 2
            self._in_chunk = False
            if self.first_event_at is None and _SAYS_SOMETHING.search(self.body):
                self.first_event_at = now
            self.last_byte_at = now
        del raw[:position]
        return None

    def _end(self, now: float) -> None:
        self.ended_at = now
        if self._ends_connection:
            self.is_closed = True
            self.transport.close()
        if self.done is not None and not self.done.done():
            self.done.set_result(None)

    @property
    def first_ms(self) -> float:
        """Milliseconds to the first event."""
        return ((self.first_event_at or self.ended_at) - self.started_at) * 1e3

    @property
    def total_ms(self) -> float:
        """Milliseconds to the end of the answer."""
        return (self.ended_at - self.started_at) * 1e3


async def connect(base: str, timeout_s: float = 5.0) -> Connection:
    """Return a new connection to the host of `base`."""
    parts = urlsplit(base)
    if parts.hostname not in ("127.0.0.1", "localhost", "::1"):
        raise ValueError(f"only loopback targets, not {parts.hostname}")
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout_s):
        _, made = await loop.create_connection(Connection, parts.hostname, parts.port or 80)
    return made


async def get_json(base: str, path: str, key: str = "") -> bytes:
    """Return the body of a GET of `path` at the host of `base`."""
    connection = await connect(base)
    auth = f"Authorization: Bearer {key}\r\n" if key else ""
    host = urlsplit(base).netloc
    await connection.send(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{auth}\r\n".encode())
    connection.transport.close()
    return bytes(connection.body)
