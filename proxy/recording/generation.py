"""One sampling in progress, from intent to commit, and the clients that follow it.

A generation runs in a task of its own, so that a client that comes back (an SDK's retry) can
join it, and so that a client's leaving ends it only when nobody else listens. Followers see the
deltas as they come; what they may not see before it is durable is the end: `ended` returns only
after the commit. Order of a call's steps: `steps.py`.

    planned ─▶ relaying ─▶ committing ─▶ done         (followers end normally)
                   │            └─▶ failed (store)
                   ├─▶ failed (engine, ours)          (followers get `GenerationFailed`)
                   └─▶ aborted (no follower left)

Once the engine has answered in full nothing cancels the commit: a generation that is complete is
recorded, delivered or not.
"""

import asyncio
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import structlog

from budwood.trajectory_store import (
    CallId,
    CallResult,
    CallState,
    StoreError,
    Turn,
    class_of,
)

from ..call import ChatRequest, Delta
from ..engine import EngineCall, EngineError, EngineReply, EngineStream
from ..lineage.lineage import Plan
from .failures import (
    GenerationFailed,
    described,
    engine_failure,
    internal_failure,
    store_failure,
)
from .steps import Step

if TYPE_CHECKING:
    from .live import LiveRollout
    from .recorder import Recorder

log = structlog.get_logger()


@dataclass(slots=True)
class Finished:
    """The committed end of a generation, in the words that clients get."""

    call_id: CallId
    reply: dict
    finish: str | None
    usage: dict | None
    prompt_ids: array | None
    out_ids: array | None
    logprobs: array | None
    created: int
    logprob_entries: list[dict] | None = None
    """The engine's own entries, where a client asked to see logprobs."""


@dataclass(slots=True, eq=False)
class Generation:
    """The state that the sampling task and its followers share."""

    call_id: CallId
    request: ChatRequest
    plan: Plan
    engine_call: EngineCall | None
    live: "LiveRollout"
    started: float
    created: int
    batches: list[list[Delta]] = field(default_factory=list)
    finished: Finished | None = None
    failure: GenerationFailed | None = None
    stream: EngineStream | None = None
    policy_before: int | None = None
    policy_changes: int = 0
    """The recorder's count of announcements when it began."""
    is_complete: bool = False
    is_delivered: bool = False
    n_followers: int = 0
    task: asyncio.Task | None = None
    timings: dict[str, float] = field(default_factory=dict)
    _waiters: list[asyncio.Future[bool]] = field(default_factory=list)
    _tool_ids: dict[int, str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    async def news(self, seen: int, timeout_s: float | None = None) -> bool:
        """Wait until there is more than `seen` batches, or the end; False when time is up."""
        if seen < len(self.batches) or self.is_ended:
            return True
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiters.append(waiter)
        timer = None
        if timeout_s is not None:
            timer = loop.call_later(timeout_s, _resolve, waiter, False)
        try:
            return await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    @property
    def is_ended(self) -> bool:
        """Whether the commit, or a failure, has been told."""
        return self.finished is not None or self.failure is not None

    async def ended(self) -> Finished:
        """The committed end; raises GenerationFailed."""
        while not self.is_ended:
            await self.news(len(self.batches))
        if self.failure is not None:
            raise self.failure
        assert self.finished is not None
        return self.finished

    def logprob_entries(self) -> list[dict] | None:
        """The engine's logprob entries, kept only where a client asked for them."""
        if self.engine_call is None or not self.engine_call.passes_tokens:
            return None
        deltas = (delta for batch in self.batches for delta in batch)
        return [entry for delta in deltas for entry in delta.logprobs or ()]

    def join(self) -> None:
        """One more client listens."""
        self.n_followers += 1

    def leave(self) -> None:
        """A client stopped listening; the last one to leave ends the sampling at once."""
        self.n_followers -= 1
        if self.n_followers == 0 and not self.is_complete and self.task is not None:
            self.task.cancel()

    def publish(self, batch: list[Delta], new_id: Callable[[], str]) -> None:
        """Hand a batch to the followers, with tool-call ids of ours in place of the engine's."""
        if any(delta.tool_calls for delta in batch):
            batch = [self._with_our_ids(delta, new_id) for delta in batch]
        self.batches.append(batch)
        self._tell()

    def end(self, finished: Finished | None, failure: GenerationFailed | None) -> None:
        """Tell the followers how it ended."""
        self.finished, self.failure = finished, failure
        self._tell()

    def _tell(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            _resolve(waiter, True)

    def our_tool_id(self, index: int, new_id: Callable[[], str]) -> str:
        """The id that clients know the call at `index` by."""
        if index not in self._tool_ids:
            issued = new_id()
            while issued in self._taken:
                issued = new_id()
            self._taken.add(issued)
            self._tool_ids[index] = issued
        return self._tool_ids[index]

    def _with_our_ids(self, delta: Delta, new_id: Callable[[], str]) -> Delta:
        if not delta.tool_calls:
            return delta
        calls = tuple(
            replace(call, id=self.our_tool_id(call.index, new_id)) if call.id is not None else call
            for call in delta.tool_calls
        )
        return replace(delta, tool_calls=calls)


async def run(generation: Generation, recorder: "Recorder") -> None:
    """Sample, relay, commit; the body of a generation's task. Never raises but on cancellation."""
    try:
        await _sample(generation, recorder)
    except asyncio.CancelledError:
        await asyncio.shield(abort(generation, recorder))
        raise
    except GenerationFailed as failure:
        await fail(generation, recorder, failure)
    except EngineError as error:
        await fail(generation, recorder, engine_failure(error), error)
    except StoreError as error:
        _store_failed(generation, recorder, error)
    except Exception as error:  # the boundary where our own faults become a failure class
        await fail(generation, recorder, internal_failure(error, generation.call_id), error)


async def _sample(generation: Generation, recorder: "Recorder") -> None:
    step = recorder.step
    assert generation.engine_call is not None
    async with recorder.engine.call(generation.engine_call) as stream:
        generation.stream = stream
        step(generation.call_id, Step.UPSTREAM_OPEN)
        async for batch in stream:
            if not generation.batches:
                generation.timings["first_token"] = _ms(generation.started)
                recorder.metrics.first_token.observe(generation.timings["first_token"] / 1000)
                step(generation.call_id, Step.RELAYING)
            generation.publish(batch, recorder.new_tool_id)
        # Here already: closing the stream waits, and a client may leave meanwhile.
        generation.is_complete = True
        step(generation.call_id, Step.TERMINAL_HELD)
    await _commit(generation, recorder, stream.reply)


async def _commit(generation: Generation, recorder: "Recorder", reply: EngineReply) -> None:
    message = _with_ids(generation, recorder, reply)
    generation.timings["total"] = _ms(generation.started)
    committing = time.monotonic()
    result = recorder.result(generation, reply, message)
    commit = asyncio.ensure_future(recorder.ledger.finish(result))
    try:
        seq = await asyncio.shield(commit)
    except asyncio.CancelledError:
        seq = await commit
    recorder.metrics.commit.observe(time.monotonic() - committing)
    recorder.step(generation.call_id, Step.COMMITTED)
    recorder.file(generation, result, reply, seq)
    generation.end(
        Finished(
            generation.call_id,
            message,
            reply.finish,
            reply.usage,
            generation.plan.prompt.ids if generation.plan.prompt else reply.prompt_ids,
            reply.out_ids,
            reply.logprobs,
            generation.created,
            generation.logprob_entries(),
        ),
        None,
    )
    if generation.n_followers == 0:
        recorder.undelivered(generation)


def _with_ids(generation: Generation, recorder: "Recorder", reply: EngineReply) -> dict:
    """The engine's message with our tool-call ids beside the engine's."""
    calls = [
        {
            "id": generation.our_tool_id(index, recorder.new_tool_id),
            "engine_id": call.get("id"),
            "name": call["name"],
            "arguments": call["arguments"],
        }
        for index, call in enumerate(reply.message.get("tool_calls") or ())
    ]
    return {**reply.message, "tool_calls": calls}


async def fail(
    generation: Generation,
    recorder: "Recorder",
    failure: GenerationFailed,
    error: BaseException | None = None,
) -> None:
    """Record a failed call, then tell its followers."""
    generation.is_complete = True
    generation.timings["total"] = _ms(generation.started)
    with _told_at_least(generation, recorder, failure):
        result = recorder.failed(generation, failure, getattr(error, "partial", None))
        try:
            await asyncio.shield(recorder.ledger.finish(result))
        except StoreError as store_error:
            recorder.ledger.remember(result)
            log.error("failure not recorded", call_id=generation.call_id, error=str(store_error))
        recorder.ended(generation, result)
        generation.end(None, failure)


async def abort(generation: Generation, recorder: "Recorder") -> None:
    """Record what came before the last client left (or before the proxy stopped)."""
    if generation.finished is not None or generation.failure is not None:
        return
    cause = "shutdown" if recorder.is_stopping else "client_gone"
    failure = GenerationFailed(
        class_of(cause), cause, 503, "The call was ended before it finished."
    )
    generation.timings["total"] = _ms(generation.started)
    with _told_at_least(generation, recorder, failure):
        result = replace(
            recorder.failed(generation, failure, None),
            state=CallState.ABORTED,
        )
        try:
            await recorder.ledger.finish(result)
        except StoreError:
            recorder.ledger.remember(result)
        recorder.ended(generation, result)
        generation.end(None, failure)


def _store_failed(generation: Generation, recorder: "Recorder", error: StoreError) -> None:
    """The answer could not be made durable: it is not acknowledged, and recorded when it can be."""
    log.error("answer not recorded", call_id=generation.call_id, error=str(error))
    failure = store_failure(error)
    generation.timings["total"] = _ms(generation.started)
    with _told_at_least(generation, recorder, failure):
        result = recorder.failed(generation, failure, None)
        recorder.ledger.remember(result)
        recorder.ended(generation, result)
        generation.end(None, failure)


@contextmanager
def _told_at_least(
    generation: Generation, recorder: "Recorder", failure: GenerationFailed
) -> Iterator[None]:
    """Even where a failure can't be recorded, its clients hear of it and the rollout goes on."""
    try:
        yield
    except Exception as error:
        log.error("failure not recorded", call_id=generation.call_id, **described(error))
        recorder.forget(generation)
        generation.end(None, failure)


def _ms(since: float) -> float:
    return round((time.monotonic() - since) * 1000, 3)


def turn_of(generation: Generation, result: CallResult, seq: int) -> Turn:
    """A committed call as lineage files it."""
    return Turn(
        id=generation.call_id,
        seq=seq,
        lane=result.lane,
        parent=result.parent,
        turn_index=result.turn_index,
        chain_key=result.chain_key,
        bare_key=result.bare_key,
        reply_digest=result.reply_digest,
        reply=result.reply,
        finish=result.finish,
        stop_id=result.stop_id,
        state=CallState.COMMITTED,
        exact=result.exact,
        n_prompt=len(result.prompt_ids) if result.prompt_ids is not None else 0,
        n_out=len(result.out_ids) if result.out_ids is not None else 0,
        n_messages=len(generation.request.messages),
        flags=frozenset(result.flags),
        template_key=generation.request.template_key,
        body_hash=generation.request.body_key,
        template_hash=result.template_hash,
        tokenizer_hash=result.tokenizer_hash,
    )


def log_ended(generation: Generation, result: CallResult) -> None:
    """The one line that a call gets in the log."""
    log.info(
        "call ended",
        rollout_id=generation.live.rollout.id,
        call_id=generation.call_id,
        dialect="chat",
        state=result.state.value,
        failure_class=result.failure_class.value,
        cause=result.cause,
        lane=result.lane.id,
        mode=result.prompt_mode.value if result.prompt_mode else None,
        exact=result.exact,
        n_prompt=len(result.prompt_ids) if result.prompt_ids is not None else None,
        n_out=len(result.out_ids) if result.out_ids is not None else None,
        **{f"{name}_ms": value for name, value in result.timings.items()},
    )


def _resolve(waiter: "asyncio.Future[bool]", value: bool) -> None:
    if not waiter.done():
        waiter.set_result(value)
