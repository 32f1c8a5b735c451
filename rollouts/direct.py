"""No proxy: bytes go to the engine as the harness sent them, to compare with what is recorded.

A relay takes the proxy's place on the Unix socket. It lets the routes of chat and of models
through and nothing else, since the engine's other routes are not for harnesses. Rollouts have
their paths here too, so that what was asked is known by rollout; bodies and answers are not read
but for what `requests` keeps of them.

There are no token ids, so nothing of such a run can be trained.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from budwood.harness_adapters import told_of
from budwood.trajectory_store import FailureClass, RolloutId, Store

from .endings import CallFacts
from .errors import RunRefused
from .gateway import UP_EVERY_S, Gateway, Opened, Served, Wanted, fields_of

ROUTES = {("POST", "/v1/chat/completions"), ("GET", "/v1/models")}
MAX_BODY_BYTES = 256 * 1024**2
_HOP_BY_HOP = frozenset(
    "connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding"
    " upgrade host content-length accept-encoding".split()
)


@dataclass(slots=True)
class RelayedCall:
    """What is known of a call that was relayed."""

    failure_class: FailureClass = FailureClass.HARNESS
    cause: str | None = "client_gone"
    """Until its answer has been passed on whole."""


@dataclass(slots=True)
class _Path:
    rollout_id: RolloutId
    calls: list[RelayedCall] = field(default_factory=list[RelayedCall])


class Direct(Gateway):
    """The relay; `direct` makes one."""

    def __init__(
        self, engine: str, session: aiohttp.ClientSession, store: Store, socket: Path,
        served: Served, requests: Path | None,
    ) -> None:  # fmt: skip
        """Relay to an engine's base URL, without `/v1`."""
        self._engine = engine
        self._session = session
        self._store = store
        self._paths: dict[str, _Path] = {}
        self._requests = requests
        self.socket = socket
        self.served = served

    async def open(self, wanted: Wanted) -> Opened:
        """Open a rollout, which will have an outcome and no calls."""
        secret = secrets.token_urlsafe(24)
        rollout = await asyncio.to_thread(
            lambda: self._store.open_rollout(
                wanted.run.id, model=self.served.name, **fields_of(wanted)
            )
        )
        self._paths[secret] = _Path(rollout.id)
        return Opened(rollout.id, secret)

    async def close(self, opened: Opened) -> Sequence[CallFacts]:
        """Close it, and return what is known of its calls."""
        await asyncio.to_thread(self._store.close_rollout, opened.id)
        path = self._paths.pop(opened.secret, None)
        return path.calls if path else []

    async def until_up(self) -> None:
        """Return once the engine answers."""
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with self._session.get(f"{self._engine}/v1/models") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(UP_EVERY_S)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Pass one request on."""
        path = self._paths.get(request.match_info["secret"])
        if path is None:
            return _error(401, "This path belongs to no open rollout.")
        route = f"/{request.match_info['route']}"
        if (request.method, route) not in ROUTES:
            return _error(404, f"{request.method} {route} is not let through.")
        body = await request.read()
        call = None
        if request.method == "POST":
            call = RelayedCall()
            path.calls.append(call)
            await self._keep(path.rollout_id, body)
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP_BY_HOP}
        try:
            async with self._session.request(
                request.method, f"{self._engine}{route}", data=body or None, headers=headers
            ) as answer:
                return await self._pass_on(request, answer, call)
        except (aiohttp.ClientError, TimeoutError) as error:
            _failed(
                call, "unreachable" if isinstance(error, aiohttp.ClientConnectorError) else "cut"
            )
            return _error(502, "The engine does not answer.")

    async def _pass_on(
        self, request: web.Request, answer: aiohttp.ClientResponse, call: RelayedCall | None
    ) -> web.StreamResponse:
        headers = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP_BY_HOP}
        response = web.StreamResponse(status=answer.status, headers=headers)
        await response.prepare(request)
        async for piece in answer.content.iter_any():
            if not await _written(response, piece):
                return response  # the harness has left, which the call says already
        await response.write_eof()
        if call is not None:
            if answer.status == 429:
                _failed(call, "rate_limited")
            elif answer.status >= 500:
                _failed(call, "server_error")
            elif answer.status >= 400:
                call.failure_class, call.cause = FailureClass.POLICY, "refused"
            else:
                call.failure_class, call.cause = FailureClass.NONE, None
        return response

    async def _keep(self, rollout_id: RolloutId, body: bytes) -> None:
        if self._requests is None:
            return
        folder = self._requests

        def write() -> None:
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / f"{rollout_id}.jsonl").open("ab") as file:
                file.write(json.dumps(body.decode("utf-8", "replace")).encode() + b"\n")

        await asyncio.to_thread(write)


@asynccontextmanager
async def direct(
    engine: str, store: Store, *, model: str | None = None, requests: Path | None = None
) -> AsyncIterator[Direct]:
    """Relay to the engine at a base URL as long as the context is open.

    requests: keep every request's body there, a file of JSON strings a rollout.
    Raises RunRefused where no engine answers.
    """
    base = engine.rstrip("/").removesuffix("/v1")
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=30.0),
                auto_decompress=False,
                connector=aiohttp.TCPConnector(limit=0),
            )
        )
        served = await _served_at(session, base, model)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="budwood-run-"))
        relay = Direct(base, session, store, Path(folder) / "proxy.sock", served, requests)
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_route("*", "/r/{secret}/{route:.*}", relay.handle)
        runner = web.AppRunner(app, access_log=None, auto_decompress=False)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.UnixSite(runner, str(relay.socket)).start()
        yield relay


async def _served_at(session: aiohttp.ClientSession, base: str, model: str | None) -> Served:
    try:
        async with session.get(f"{base}/v1/models") as answer:
            answer.raise_for_status()
            first: dict[str, Any] = (await answer.json())["data"][0]
        name, window = str(first["id"]), first.get("max_model_len")
    except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError) as error:
        raise RunRefused(f"no engine answers at {base}/v1/models: {error}") from error
    # The engine takes its own name only, and nothing here changes what the harness sends.
    told = told_of(name, window if isinstance(window, int) else None, model=model or name)
    return Served(name=name, told=told, engine="direct", spelling="")


async def _written(response: web.StreamResponse, piece: bytes) -> bool:
    try:
        await response.write(piece)
    except ConnectionError:
        return False
    return True


def _failed(call: RelayedCall | None, cause: str) -> None:
    if call is not None:
        call.failure_class, call.cause = FailureClass.ENGINE, cause


def _error(status: int, text: str) -> web.Response:
    return web.json_response(
        {"error": {"message": text, "type": "relay", "code": status}}, status=status
    )
