"""The chat door: `/v1/chat/completions`, streamed and plain.

Order of things a client may notice: identity, body, budget, the retry rule (`retry.py`), the
generation, and at the end the terminal bytes in one write, only after the commit. A stream's
headers leave with the first delta or the first keep-alive, so an engine's refusal still has a
status of its own.
"""

import asyncio
from contextlib import suppress

from aiohttp import HttpVersion11, web

from budwood.trajectory_store import CallState, StoreError, Turn

from ..call import (
    KEEP_ALIVE,
    BadRequest,
    ChatRequest,
    ChatStream,
    error_body,
    parse_chat,
    plain_body,
)
from ..errors import NotIdentified, Refused
from ..recording.failures import GenerationFailed, store_failure
from ..recording.generation import Finished, Generation
from ..recording.live import LiveRollout
from ..recording.recorder import Recorder
from ..recording.steps import Step
from ..rollouts import Rollouts
from .body import read_body
from .retry import find_earlier, stored_answer

KEPT_HEADERS = (
    "user-agent", "x-session-id", "session-id", "thread-id", "x-affinity", "traceparent",
    "x-parent-session-id", "x-litellm-session-id", "x-stainless-retry-count",
)  # fmt: skip
"""Request headers that are recorded: hints about threads; never a credential."""

LONG_BODY = 200_000
"""New bytes of a body from which reading it takes longer than the loop should wait."""

MAX_SYNTHETIC = 2
"""Answers of our own to a rollout whose budget is spent; after them 403."""


class ChatDoor:
    """Serves chat completions of all rollouts of one proxy."""

    def __init__(self, recorder: Recorder, rollouts: Rollouts) -> None:
        """Record with `recorder` what requests that `rollouts` can identify ask for."""
        self._recorder = recorder
        self._rollouts = rollouts
        self._settings = recorder.settings

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; every refusal has the dialect's shape."""
        try:
            live = await self._rollouts.identify(request)
            live.n_users += 1
            try:
                settings = self._settings
                raw = await read_body(request, settings.max_body_mib * 2**20, settings.body_s)
                chat = await self._parse(live, raw)
                return await self._answer(request, live, chat)
            finally:
                live.n_users -= 1
                self._recorder.live.settle(live)
        except NotIdentified as error:
            return self._refuse(error.status, error.message, code="invalid_api_key")
        except BadRequest as error:
            return self._refuse(error.status, error.message, code=error.code, param=error.param)
        except Refused as error:
            return self._refuse(
                error.status, error.message, code=error.code, retry_after_s=error.retry_after_s
            )
        except GenerationFailed as error:
            return self._refuse(
                error.status, error.message, code=error.code, retry_after_s=error.retry_after_s
            )
        except StoreError as error:
            failure = store_failure(error)
            return self._refuse(
                failure.status, failure.message, code=failure.code, retry_after_s=1.0
            )

    @staticmethod
    async def _parse(live: LiveRollout, raw: bytes) -> ChatRequest:
        """The request; a body of which much is new is read off the event loop."""
        previous, n_known = live.previous(raw)
        if len(raw) - n_known > LONG_BODY:
            return await asyncio.to_thread(parse_chat, raw, previous)
        return parse_chat(raw, previous)

    async def _answer(
        self, request: web.BaseRequest, live: LiveRollout, chat: ChatRequest
    ) -> web.StreamResponse:
        client = {n: request.headers[n] for n in KEPT_HEADERS if n in request.headers}
        await self._recorder.live.catch_up(live)
        is_retry = request.headers.get("x-stainless-retry-count", "0") not in ("", "0")
        earlier = await find_earlier(self._recorder.store, live, chat, is_retry=is_retry)
        spent = live.spent_budget()
        if isinstance(earlier, Generation):
            generation = earlier
        elif earlier is not None:
            return await self._answer_stored(request, live, chat, earlier)
        elif spent is not None:
            return await self._answer_spent(request, live, chat, spent, client)
        else:
            if live.n_in_flight >= self._settings.max_concurrent_calls:
                raise Refused(
                    429,
                    "Too many calls of this rollout at once (proxy.max_concurrent_calls).",
                    code="rate_limit_exceeded",
                    retry_after_s=1.0,
                )
            generation = await self._recorder.start(live, chat, client)
        generation.join()
        try:
            if chat.stream:
                return await self._stream(request, chat, generation)
            return await self._plain(request, chat, generation)
        finally:
            generation.leave()
            if generation.n_followers == 0:
                self._recorder.undelivered(generation)

    # -- streamed ----------------------------------------------------------------------------

    async def _stream(
        self, request: web.BaseRequest, chat: ChatRequest, generation: Generation
    ) -> web.StreamResponse:
        encoder = ChatStream(
            chat, reply_id=f"chatcmpl-{generation.call_id}", created=generation.created
        )
        response = _event_stream(request)
        try:
            await self._relay(request, response, encoder, generation)
        except GenerationFailed as failure:
            if not response.prepared:
                raise
            with suppress(ConnectionError):
                await response.write(
                    encoder.error_event(failure.status, failure.message, failure.code)
                )
            _cut(request)
            return response
        finished = generation.finished
        assert finished is not None
        if not response.prepared:
            await response.prepare(request)
            await response.write(encoder.role_chunk(finished.prompt_ids))
        await response.write(encoder.terminal(finished.finish, finished.usage, finished.reply))
        self._recorder.step(generation.call_id, Step.TERMINAL_SENT)
        self._recorder.delivered(generation)
        with suppress(ConnectionError):
            await response.write_eof()
        return response

    async def _relay(
        self,
        request: web.BaseRequest,
        response: web.StreamResponse,
        encoder: ChatStream,
        generation: Generation,
    ) -> None:
        """Write deltas as they come, keep-alives in between; returns after the commit."""
        batches, seen, n_silent = generation.batches, 0, 0
        while True:
            if seen < len(batches):
                fresh, seen, n_silent = batches[seen:], len(batches), 0
                data = b"".join(encoder.delta(delta) for batch in fresh for delta in batch)
                if not response.prepared:
                    await response.prepare(request)
                    data = encoder.role_chunk(_prompt_ids(generation)) + data
                if data:
                    await response.write(data)
            elif generation.is_ended:
                if generation.failure is not None:
                    raise generation.failure
                return
            elif not await generation.news(seen, self._settings.keep_alive_s):
                n_silent += 1
                await self._keep_alive(request, response, encoder, n_silent)

    async def _keep_alive(
        self, request: web.BaseRequest, response: web.StreamResponse, encoder: ChatStream, n: int
    ) -> None:
        every = self._settings.idle_delta_every
        data = KEEP_ALIVE
        if not response.prepared:
            await response.prepare(request)
            data = encoder.role_chunk(None) + data
        if every and n % every == 0:
            data += encoder.idle_delta()
        await response.write(data)

    # -- plain -------------------------------------------------------------------------------

    async def _plain(
        self, request: web.BaseRequest, chat: ChatRequest, generation: Generation
    ) -> web.StreamResponse:
        finished = await generation.ended()
        body = plain_body(chat, finished, reply_id=f"chatcmpl-{generation.call_id}")
        response = web.Response(body=body, content_type="application/json")
        await response.prepare(request)
        await response.write_eof()
        self._recorder.step(generation.call_id, Step.TERMINAL_SENT)
        self._recorder.delivered(generation)
        return response

    # -- answers that no engine is asked for ---------------------------------------------------

    async def _answer_stored(
        self, request: web.BaseRequest, live: LiveRollout, chat: ChatRequest, earlier: Turn
    ) -> web.StreamResponse:
        """The committed answer of a call whose client had gone, in the form asked for now."""
        try:
            answer = await stored_answer(self._recorder.store, earlier)
            response = await _send_whole(request, chat, answer, f"chatcmpl-{answer.call_id}")
        except BaseException:
            live.lineage.mark(earlier.id, state=CallState.UNDELIVERED)
            raise
        self._recorder.redelivered(live, earlier.id)
        return response

    async def _answer_spent(
        self,
        request: web.BaseRequest,
        live: LiveRollout,
        chat: ChatRequest,
        spent: str,
        client: dict,
    ) -> web.StreamResponse:
        """A normal stop that says the budget is spent; recorded as synthetic, never trained."""
        if live.n_synthetic >= MAX_SYNTHETIC:
            raise Refused(403, f"The {spent} budget of this rollout is spent.", code="budget_spent")
        text = f"The {spent} budget of this rollout is spent. Stop here."
        finished = await self._recorder.synthetic(live, chat, text, f"budget_{spent}", client)
        return await _send_whole(request, chat, finished, f"chatcmpl-{finished.call_id}")

    def _refuse(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> web.Response:
        self._recorder.metrics.refused.labels(str(status)).inc()
        headers = {"Retry-After": str(max(1, round(retry_after_s)))} if retry_after_s else {}
        return web.Response(
            status=status,
            body=error_body(status, message, code=code, param=param),
            content_type="application/json",
            headers=headers,
        )


async def _send_whole(
    request: web.BaseRequest, chat: ChatRequest, answer: Finished, reply_id: str
) -> web.StreamResponse:
    """Send a finished answer at once, as a stream or plain."""
    if not chat.stream:
        response = web.Response(
            body=plain_body(chat, answer, reply_id=reply_id), content_type="application/json"
        )
        await response.prepare(request)
        await response.write_eof()
        return response
    encoder = ChatStream(chat, reply_id=reply_id, created=answer.created)
    stream = _event_stream(request)
    await stream.prepare(request)
    await stream.write(
        encoder.role_chunk(answer.prompt_ids)
        + encoder.whole(answer)
        + encoder.terminal(answer.finish, answer.usage, answer.reply)
    )
    await stream.write_eof()
    return stream


def _event_stream(request: web.BaseRequest) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={
            "Content-Type": "text/event-stream; charset=utf-8",
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",
        }
    )
    if request.version >= HttpVersion11:
        response.enable_chunked_encoding()
    else:
        response.force_close()  # the end of the connection is the end of the stream
    return response


def _prompt_ids(generation: Generation):
    return generation.plan.prompt.ids if generation.plan.prompt is not None else None


def _cut(request: web.BaseRequest) -> None:
    """Close the connection without the end of the body, so that no client takes it for whole."""
    if request.transport is not None:
        request.transport.abort()
