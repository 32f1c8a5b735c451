"""Connections of the viewer: what is no HTTP is refused without a word of it in answer or log.

aiohttp's own refusal repeats the offending line in both, and that line may hold the token.
"""

from __future__ import annotations

from typing import Any

import structlog
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from .access import HEADERS

log = structlog.get_logger()


class Connection(RequestHandler):
    """One browser's connection."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Refuse what could not be read, or confess a fault; the connection ends with it."""
        if isinstance(exc, ConnectionError):
            raise exc  # the browser has left, which aiohttp expects here
        log.error("request failed", status=status, error=type(exc).__name__)
        text = "The request can't be read." if status < 500 else "This page can't be made."
        response = web.Response(status=status, text=text, headers=HEADERS)
        response.force_close()
        return response

    def log_exception(self, *args: Any, **options: Any) -> None:
        """Log a fault in the connection's own machinery, by its kind."""
        log.error("connection failed", error=type(options.get("exc_info")).__name__)


class Server(web.Server):
    """Makes a `Connection` of each browser."""

    def __call__(self) -> RequestHandler:
        """Return the protocol of a new connection."""
        return Connection(self, loop=self._loop, **self._kwargs)


class Runner(web.AppRunner):
    """Runs the pages behind such connections, without an access log: it would hold the token."""

    def __init__(self, app: web.Application) -> None:
        """Run `app`."""
        super().__init__(app, access_log=None)

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return Server(made.request_handler, request_factory=made.request_factory, access_log=None)
