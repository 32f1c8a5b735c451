"""HTTP to the engine: one session, no total time limit, redirects not followed."""

import asyncio
import math
import os
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any, Self

import aiohttp
import orjson

from .errors import EngineBroken, EngineRefused, EngineUnreachable
from .settings import EngineSettings

_KEEP_ALIVE_S = 4.0
"""vLLM's server closes an idle connection after 5 s: ours is given up before it can meet that."""

_LAST_BYTES_S = 0.25
"""What the end of a chunked body may take after the answer's own end."""


class Client:
    """The connection pool to all replicas; open while entered."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        if self._settings.api_key is not None:
            headers["Authorization"] = f"Bearer {self._settings.api_key.get_secret_value()}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, keepalive_timeout=_KEEP_ALIVE_S, socket_factory=_kept_alive_socket
            ),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._settings.connect_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def open(
        self, url: str, body: bytes | None, *, call_id: str | None = None, limit_s: float
    ) -> aiohttp.ClientResponse:
        """Return an answer of status 200 whose body is still to come; the caller closes it.

        Raises EngineUnreachable or EngineRefused; EngineBroken (`stall`) where the engine took the
        request and said nothing for `limit_s`: it may be working on it, so it is not a refusal.
        """
        assert self._session is not None
        method = "GET" if body is None else "POST"
        headers = {"X-Request-Id": call_id} if call_id else None
        try:
            async with asyncio.timeout(limit_s):
                response = await self._session.request(
                    method, url, data=body, headers=headers, allow_redirects=False
                )
                if response.status == 200:
                    return response
                async with response:
                    raise _refused(response, await response.read())
        except aiohttp.ConnectionTimeoutError as error:
            text = f"no connection in {self._settings.connect_s:g} s"
            raise EngineUnreachable(f"{_place(url)} can't be reached: {text}") from error
        except TimeoutError as error:
            text = f"{_place(url)} gave no answer in {limit_s:g} s"
            raise EngineBroken("stall", text) from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineUnreachable(f"{_place(url)} can't be reached: {_why(error)}") from error

    async def read(self, response: aiohttp.ClientResponse, limit_s: float) -> bytes:
        """Return a whole body; raises EngineBroken."""
        return b"".join([piece async for piece in self.pieces(response, limit_s)])

    async def pieces(
        self, response: aiohttp.ClientResponse, limit_s: float
    ) -> AsyncIterator[bytes]:
        """Yield a body as it arrives, all that is there at once; raises EngineBroken."""
        content = response.content
        try:
            while True:
                async with asyncio.timeout(limit_s):
                    piece = await content.readany()
                if not piece:
                    return
                yield piece
        except TimeoutError as error:
            raise EngineBroken("stall", f"nothing came for {limit_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineBroken("cut", f"the answer was cut: {error}") from error

    async def settle(self, response: aiohttp.ClientResponse) -> None:
        """Give the connection of a whole answer back to the pool, once its last bytes are there."""
        try:
            async with asyncio.timeout(_LAST_BYTES_S):
                await response.content.read()
        except (TimeoutError, aiohttp.ClientError, OSError):
            response.close()
        else:
            response.release()

    async def json(
        self,
        url: str,
        payload: dict[str, Any] | None = None,
        *,
        limit_s: float,
        call_id: str | None = None,
    ) -> Any:
        """Return the JSON of a small exchange; raises EngineError.

        Silence is EngineUnreachable here: nothing is lost by asking again.
        """
        body = orjson.dumps(payload) if payload is not None else None
        try:
            response = await self.open(url, body, call_id=call_id, limit_s=limit_s)
            async with response:
                data = await self.read(response, limit_s)
        except EngineBroken as error:
            if error.cause != "stall":
                raise
            raise EngineUnreachable(error.message) from error
        try:
            return orjson.loads(data) if data else None
        except orjson.JSONDecodeError as error:
            raise EngineBroken("bad_event", f"{_place(url)} answered no JSON") from error


def _kept_alive_socket(address: Any) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return made


def _why(error: Exception) -> str:
    """Return what went wrong without the address, which the operating system's text repeats."""
    inner = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(inner, socket.gaierror):
        return inner.strerror or str(inner)
    if isinstance(inner, OSError) and not isinstance(inner, ssl.SSLError) and inner.errno:
        return os.strerror(inner.errno)
    return str(error)


def _place(url: str) -> str:
    """Leave out credentials and query: the text goes into logs and answers."""
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path.partition('?')[0]}"


def _refused(response: aiohttp.ClientResponse, body: bytes) -> EngineRefused:
    message, param = body[:2000].decode("utf-8", "replace").strip(), None
    try:
        error = orjson.loads(body)
        error = error.get("error", error)
        if isinstance(error, dict):
            message = str(error.get("message") or error.get("detail") or message)
            param = error.get("param")
    except (orjson.JSONDecodeError, AttributeError):
        pass
    return EngineRefused(
        response.status,
        message or response.reason or "no message",
        param=param if isinstance(param, str) else None,
        retry_after_s=_seconds(response.headers.get("Retry-After", "")),
        body=body,
    )


def _seconds(text: str) -> float | None:
    """Return what a Retry-After header asks for; None for a date, or what can't be read."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
