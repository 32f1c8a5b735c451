"""HTTP/1.1 for the scripted engine, over a bare asyncio protocol.

Far cheaper than any proxy in front of it, so that a benchmark measures the proxy. It serves what
our own clients send and nothing more: no TLS, no trailers, no upgrade. A connection answers one
request at a time; a client that leaves cancels its answer (`Statistics.aborted`).
"""

import asyncio
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"transfer-encoding:\s*chunked", re.IGNORECASE)


@dataclass(slots=True)
class Statistics:
    """What a server has seen since it started."""

    calls: int = 0
    streams: int = 0
    done: int = 0
    aborted: int = 0
    bytes_in: int = 0
    open: int = 0
    max_open: int = 0


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request as received; `head` is the request line and the header lines."""

    method: str
    path: str
    head: bytes
    body: bytes

    def header(self, name: str) -> str | None:
        """Return the first value of a header."""
        found = re.search(rb"(?im)^" + name.encode() + rb":[ \t]*(.*?)\r?$", self.head)
        return found[1].decode("latin-1") if found else None


Answer = Coroutine[Any, Any, None]
Handler = Callable[["HttpConnection", HttpRequest], Answer | None]


class HttpConnection(asyncio.Protocol):
    """One client's connection; `handler` answers at once or returns what will."""

    __slots__ = (
        "_buffer",
        "_handler",
        "_head",
        "_n_body",
        "_on_abort",
        "_task",
        "_writable",
        "stats",
        "t",
    )

    def __init__(
        self, handler: Handler, stats: Statistics, on_abort: Callable[[], None] = lambda: None
    ) -> None:
        self._handler = handler
        self._on_abort = on_abort
        self.stats = stats
        self._buffer = bytearray()
        self._head: bytes | None = None
        self._n_body: int | None = 0
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the client in."""
        self.t: asyncio.Transport = transport  # pyright: ignore[reportAttributeAccessIssue]
        self._writable.set()
        self.stats.open += 1
        self.stats.max_open = max(self.stats.max_open, self.stats.open)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the answer that nobody will read."""
        self.stats.open -= 1
        self._writable.set()
        if self._task and not self._task.done():
            self.stats.aborted += 1
            self._task.cancel()
            self._on_abort()

    def pause_writing(self) -> None:
        """Hold the answer: the client reads slowly."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Go on with the answer."""
        self._writable.set()

    async def drain(self) -> None:
        """Wait until the client has read most of what was written."""
        await self._writable.wait()

    def data_received(self, data: bytes) -> None:
        """Cut requests out of what arrives, and answer each."""
        self.stats.bytes_in += len(data)
        self._buffer += data
        self._serve()

    def _serve(self) -> None:
        while self._task is None and not self.t.is_closing():
            if self._head is None and not self._take_head():
                return
            body = self._take_body()
            if body is None or self._head is None:
                return
            head, self._head = self._head, None
            method, path = head.split(b" ", 2)[:2]
            request = HttpRequest(method.decode(), path.split(b"?")[0].decode(), head, body)
            answer = self._handler(self, request)
            if answer is not None:
                self._task = asyncio.get_running_loop().create_task(answer)
                self._task.add_done_callback(self._answered)

    def _take_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        self._head = head = bytes(self._buffer[:end])
        del self._buffer[: end + 4]
        found = _LENGTH.search(head)
        self._n_body = None if _CHUNKED.search(head) else int(found[1]) if found else 0
        if b"100-continue" in head.lower():
            self.t.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def _take_body(self) -> bytes | None:
        if self._n_body is None:
            return self._take_chunks()
        if len(self._buffer) < self._n_body:
            return None
        body = bytes(self._buffer[: self._n_body])
        del self._buffer[: self._n_body]
        return body

    def _take_chunks(self) -> bytes | None:
        body, at = bytearray(), 0
        while True:
            line = self._buffer.find(b"\r\n", at)
            if line < 0:
                return None
            size = int(bytes(self._buffer[at:line]).split(b";")[0], 16)
            if len(self._buffer) < line + 2 + size + 2:
                return None
            body += self._buffer[line + 2 : line + 2 + size]
            at = line + 2 + size + 2
            if size == 0:
                del self._buffer[:at]
                return bytes(body)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "the scripted engine failed to answer", "exception": error}
            )
            self.t.abort()
            return
        self.stats.done += 1
        self._serve()

    def reply(
        self,
        status: int,
        body: bytes,
        content_type: bytes = b"application/json",
        headers: bytes = b"",
    ) -> None:
        """Write a whole answer."""
        self.t.write(
            b"HTTP/1.1 %d Scripted\r\nContent-Type: %b\r\nContent-Length: %d\r\n%b\r\n"
            % (status, content_type, len(body), headers)
            + body
        )

    def begin_stream(self) -> None:
        """Write the head of a streamed answer."""
        self.t.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )

    def chunk(self, data: bytes) -> None:
        """Write a piece of a streamed answer."""
        self.t.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end_stream(self) -> None:
        """Write the end of a streamed answer."""
        self.t.write(b"0\r\n\r\n")
