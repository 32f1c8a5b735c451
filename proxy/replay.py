"""Replay: a rollout's stored answers, served to its harness again on loopback.

Nothing is sampled and nothing recorded. What belongs to which request, and the verdict, are
`budwood.trajectory_store.replay`; here requests are read into that form and answers said back
under the ids, finish reasons and usage of the recording. Equal means canonically equal, as for
lineage: a message whose digest was recorded is that message, however it is spelled now.

A request that differs from all recorded ones gets a 400, which no SDK repeats.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from budwood.trajectory_store import Call, CallState, NotStored, RolloutId, Store
from budwood.trajectory_store.overview import lane_names
from budwood.trajectory_store.replay import Divergence, Kind, RecordedCall, Replay, Request

from .call import (
    KEEP_ALIVE,
    BadRequest,
    ChatRequest,
    ChatStream,
    Message,
    error_body,
    parse_chat,
    plain_body,
)
from .doors.body import read_body
from .errors import Refused
from .identity import carried_keys, new_secret, split_path

MAX_BODY_BYTES = 256 * 2**20

LABELS = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "session_id",
        "store",
        "user",
    }
)
"""Fields that name a session or ask for bookkeeping: no model reads them, they are not compared."""

_STATUS = {"context_overflow": 400, "refused_request": 400, "rate_limited": 429}


class Canon:
    """Turns requests into the form that is compared; equal messages become one object."""

    def __init__(self) -> None:
        """Start with no message known."""
        self._known: dict[bytes, dict[str, Any]] = {}

    def request(self, chat: ChatRequest) -> Request:
        """Return a request in canonical form."""
        fields = {name: value for name, value in chat.fields.items() if name not in LABELS}
        return Request(
            tuple(self._message(message) for message in chat.messages),
            chat.tools,
            {"model": chat.model, **fields},
        )

    def _message(self, message: Message) -> dict[str, Any]:
        known = self._known.get(message.digest)
        if known is None:
            known = self._known[message.digest] = _readable(message)
        return known


def _readable(message: Message) -> dict[str, Any]:
    is_ours = message.role == "assistant"
    return {
        "role": message.role,
        "text": message.text.strip() if is_ours else message.text,
        "reasoning": (message.reasoning or "").strip(),
        "tool_calls": [
            {"name": call.name, "arguments": call.value if call.is_value else call.arguments}
            for call in message.tool_calls
        ],
        "name": message.name if message.role != "tool" else None,
        "media": [f"{media.kind} {media.digest.hex()}" for media in message.media],
    }


def load_recording(store: Store, rollout_id: RolloutId, canon: Canon) -> list[RecordedCall]:
    """Return a rollout's calls in the order of their results, in the form of `canon`."""
    names = lane_names(store.lanes(rollout_id))
    found: list[RecordedCall] = []
    previous: ChatRequest | None = None
    for call in store.calls(rollout_id):
        chat = previous = parse_chat(store.request_body(call.id), previous)
        found.append(
            RecordedCall(
                id=call.id,
                lane=names.get(call.lane, call.lane),
                request=canon.request(chat),
                kind=_kind(call),
                reply=call.reply,
                finish=call.finish,
                usage=call.usage,
                created=int(call.created_at.timestamp()),
                cause=call.cause,
            )
        )
    return found


def _kind(call: Call) -> Kind:
    if call.state.is_complete or call.state is CallState.SYNTHETIC:
        return Kind.ANSWERED
    return Kind.CUT if call.state is CallState.ABORTED else Kind.FAILED


@dataclass(slots=True)
class _Answer:
    """A stored answer with its numbers, as `call/chat_reply.py` says it."""

    reply: dict[str, Any]
    finish: str | None
    usage: dict[str, Any] | None
    created: int
    prompt_ids: Sequence[int] | None = None
    out_ids: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None


class ReplayServer:
    """Serves one replay on loopback while it is entered; `url` and `secret` point a harness."""

    def __init__(
        self,
        store: Store,
        replay: Replay,
        canon: Canon,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        on_request: Callable[[], None] | None = None,
    ) -> None:
        """Play `replay`, whose recording was read with `canon`."""
        self.replay = replay
        self.secret = new_secret()
        self._store = store
        self._canon = canon
        self._address = (host, port)
        self._on_request = on_request or (lambda: None)
        self._previous: ChatRequest | None = None

    @property
    def base_url(self) -> str:
        """Return the address with the secret in its path, without `/v1`."""
        host, port = self._address
        return f"http://{host}:{port}/r/{self.secret}"

    @property
    def root(self) -> str:
        """Return the address without the secret, for harnesses that take an API key."""
        host, port = self._address
        return f"http://{host}:{port}"

    async def __aenter__(self) -> Self:
        """Open the port."""
        listening = socket.create_server(self._address)
        self._address = listening.getsockname()[:2]
        self._runner = web.AppRunner(
            create_app(self), access_log=None, shutdown_timeout=1.0, handler_cancellation=True
        )
        await self._runner.setup()
        await web.SockSite(self._runner, listening).start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Close it; answers that are under way end with their connections."""
        await self._runner.cleanup()

    def is_known(self, request: web.Request) -> bool:
        """Return whether a request carries this replay's secret, by path or as a key."""
        path_secret, _ = split_path(request.path)
        given = [path_secret] if path_secret else []
        given += carried_keys(request.headers, request.query)
        wanted = self.secret.encode()
        return any(hmac.compare_digest(key.encode("utf-8", "replace"), wanted) for key in given)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer a chat completion from the recording."""
        try:
            raw = await read_body(request, MAX_BODY_BYTES)
            chat = self._previous = parse_chat(raw, self._previous)
        except BadRequest as error:
            return _error(error.status, error.message, error.code, error.param)
        except Refused as error:
            return _error(error.status, error.message, error.code)
        found = self.replay.take(self._canon.request(chat))
        self._on_request()
        if isinstance(found, Divergence):
            return _error(400, f"Replay: {_first_line(str(found))}", "replay_diverged")
        if found.kind is Kind.FAILED:
            status = _STATUS.get(found.cause or "", 503)
            return _error(status, f"Replay: this call failed ({found.cause}).", found.cause)
        if found.kind is Kind.CUT:
            return await self._cut(request, chat, found)
        answer = await asyncio.to_thread(self._answer, chat, found)
        if chat.stream:
            return await self._stream(request, chat, found, answer)
        body = plain_body(chat, answer, reply_id=f"chatcmpl-{found.id}")
        return web.Response(body=body, content_type="application/json")

    def _answer(self, chat: ChatRequest, found: RecordedCall) -> _Answer:
        answer = _Answer(found.reply or {}, found.finish, found.usage, found.created)
        if chat.return_token_ids or chat.wants_logprobs:
            try:
                tokens = self._store.tokens(found.id)
            except NotStored:
                return answer
            answer.prompt_ids, answer.out_ids = tokens.prompt_ids, tokens.out_ids
            answer.logprobs = tokens.logprobs
        return answer

    async def _stream(
        self, request: web.Request, chat: ChatRequest, found: RecordedCall, answer: _Answer
    ) -> web.StreamResponse:
        encoder = ChatStream(chat, reply_id=f"chatcmpl-{found.id}", created=found.created)
        response = await _event_stream(request)
        await response.write(encoder.role_chunk(answer.prompt_ids) + encoder.whole(answer))
        await response.write(encoder.terminal(answer.finish, answer.usage, answer.reply))
        await response.write_eof()
        return response

    async def _cut(
        self, request: web.Request, chat: ChatRequest, found: RecordedCall
    ) -> web.StreamResponse:
        """Say what came before the harness left, then wait for it to leave again."""
        if not chat.stream:
            await asyncio.Event().wait()  # ended by the client's leaving, or by the server's end
        encoder = ChatStream(chat, reply_id=f"chatcmpl-{found.id}", created=found.created)
        response = await _event_stream(request)
        partial = _Answer(found.reply or {}, None, None, found.created)
        await response.write(encoder.role_chunk() + encoder.whole(partial))
        while True:
            await asyncio.sleep(5)
            await response.write(KEEP_ALIVE)


def create_app(server: ReplayServer) -> web.Application:
    """Return the application that serves a replay: chat, models, and harmless probes."""

    async def door(request: web.Request) -> web.StreamResponse:
        if not server.is_known(request):
            return _error(401, "This replay has another key.", "invalid_api_key")
        _, path = split_path(request.path)
        bare = path.removeprefix("/v1") if path.startswith("/v1/") else path
        if bare == "/chat/completions" and request.method == "POST":
            return await server.chat(request)
        if bare == "/models" and request.method in ("GET", "HEAD"):
            names = dict.fromkeys(
                str(call.request.fields.get("model") or "") for call in server.replay.calls
            )
            models = [{"id": name, "object": "model", "owned_by": "budwood"} for name in names]
            return web.json_response({"object": "list", "data": models})
        return _error(404, "A replay answers POST /v1/chat/completions.", "not_found")

    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_route("*", "/{path:.*}", door)
    return app


async def _event_stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={
            "Content-Type": "text/event-stream; charset=utf-8",
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",
        }
    )
    response.enable_chunked_encoding()
    await response.prepare(request)
    return response


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _error(status: int, message: str, code: str | None, param: str | None = None) -> web.Response:
    return web.Response(
        status=status,
        body=error_body(status, message, code=code, param=param),
        content_type="application/json",
        headers={"x-should-retry": "false"},
    )
