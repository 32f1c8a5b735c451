"""HTTP/1.1 connections as both planes serve them: what aiohttp leaves open is closed here.

* A request that is not HTTP, or not one thing only (two lengths, a length and chunks), gets a
  refusal in the dialect's shape. aiohttp's own repeats the offending line in the answer and in the
  log, and that line may hold a path secret or a key.
* A connection that does not finish a request's head in time is closed; one that idles between
  requests is not (a harness may run a tool for long).
* What fails inside a handler is logged by its kind and place, never with values.
"""

import asyncio
from typing import Any

import structlog
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong
from aiohttp.web_protocol import RequestHandler

from ..call import error_body
from ..recording.failures import described

log = structlog.get_logger()


class Connection(RequestHandler):
    """One client's connection."""

    __slots__ = ("_head_s", "_head_timer")

    def __init__(self, manager: web.Server, *, head_s: float, **options: Any) -> None:
        """Close the connection where a request's head takes longer than `head_s`."""
        super().__init__(manager, **options)
        self._head_s = head_s
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._head_timer = self._loop.call_later(self._head_s, self._give_up)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes: the wait for a head ends with it, and begins with its first byte."""
        n_before = self._request_count
        super().data_received(data)
        if self._request_count != n_before:
            self._stop_waiting()
        elif self._head_timer is None and self._is_between_requests():
            self._head_timer = self._loop.call_later(self._head_s, self._give_up)

    def _is_between_requests(self) -> bool:
        return self._waiter is not None and not self._waiter.done()

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        if self._is_between_requests():
            self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Refuse what could not be read, or confess a fault; the connection ends with it."""
        if isinstance(exc, ConnectionError) and (
            self.transport is None or self.transport.is_closing()
        ):
            raise exc  # the client has left, which aiohttp expects here
        if status >= 500:
            log.error("request failed", status=status, **(described(exc) if exc else {}))
            text = "Internal error."
        elif isinstance(exc, LineTooLong):
            status = 431
            text = f"The request line or a header is longer than {self.max_field_size} bytes."
        elif isinstance(exc, BadHttpMessage) and "Too many headers" in exc.message:
            status, text = 431, "The request has too many headers."
        else:
            text = "The request is not valid HTTP/1.1."
        if status < 500:
            log.info("request refused", status=status, error=type(exc).__name__)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer had begun")
        response = web.Response(
            status=status, body=error_body(status, text), content_type="application/json"
        )
        response.force_close()
        return response

    def log_exception(self, *args: Any, **options: Any) -> None:
        """Log a fault in the connection's own machinery."""
        error = options.get("exc_info")
        known = described(error) if isinstance(error, BaseException) else {}
        log.error("connection failed", **known)


class Server(web.Server):
    """Makes a `Connection` of each client."""

    def __init__(self, handler: Any, *, head_s: float, **options: Any) -> None:
        """Serve with `handler`; `options` as `web.Server` takes them."""
        super().__init__(handler, **options)
        self._head_s = head_s

    def __call__(self) -> RequestHandler:
        """Return the protocol of a new connection."""
        return Connection(self, loop=self._loop, head_s=self._head_s, **self._kwargs)


class AppRunner(web.AppRunner):
    """Runs an application behind such connections."""

    def __init__(self, app: web.Application, *, head_s: float) -> None:
        """Run `app`, without an access log."""
        super().__init__(app, access_log=None)
        self._head_s = head_s

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return Server(
            made.request_handler,
            request_factory=made.request_factory,
            head_s=self._head_s,
            access_log=None,
            auto_decompress=False,
        )
