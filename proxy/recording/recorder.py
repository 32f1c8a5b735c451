"""The proxy's engine room: plans a call, starts its generation, and writes what became of it.

One `Recorder` serves one process. It owns no socket: `doors` bring requests in
and take answers out.
"""

import asyncio
import random
import time
from collections.abc import Callable

from budwood.trajectory_store import (
    CallId,
    CallIntent,
    CallResult,
    CallState,
    FailureClass,
    Purpose,
    Store,
    StoreError,
    new_call_id,
)

from ..call import ChatRequest, new_tool_id, reply_message
from ..engine import Engine, EngineReply, build_call, exactness
from ..lineage.forest import chain_keys
from ..lineage.lineage import Plan
from ..lineage.reasons import Reason
from ..metrics import Metrics
from ..settings import ProxySettings
from .failures import GenerationFailed, overflow, refusal
from .generation import Finished, Generation, abort, fail, log_ended, run, turn_of
from .ledger import Ledger
from .live import LiveRollout, LiveRollouts
from .steps import Observer, Step

Spawn = Callable[..., asyncio.Task]


class Recorder:
    """Plans, samples and records calls of all live rollouts."""

    def __init__(
        self,
        settings: ProxySettings,
        store: Store,
        engine: Engine,
        live: LiveRollouts,
        metrics: Metrics,
        *,
        spawn: Spawn,
        rng: random.Random,
        observer: Observer | None = None,
    ) -> None:
        """Record into `store` what `engine` samples; `spawn` owns the generations' tasks."""
        self.settings = settings
        self.store = store
        self.engine = engine
        self.live = live
        self.metrics = metrics
        self.ledger = Ledger(store)
        self.is_stopping = False
        self.is_ready = False
        self.running: set[Generation] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.policy_version: int | None = None
        self.policy_label: str | None = None
        self.policy_changes = 0
        """How often other weights, or unknown ones, were announced."""
        self._spawn = spawn
        self._rng = rng
        self._observer = observer

    def step(self, call_id, step: Step) -> None:
        """Tell the observer, if there is one, where a call stands."""
        if self._observer is not None:
            self._observer(call_id, step)

    def announce(self, version: int | None, label: str | None) -> None:
        """Say which weights sample from now on; None: they are changing, or unknown.

        Calls in flight are marked: also where the version that was there before comes back.
        """
        if version is None or (version, label) != (self.policy_version, self.policy_label):
            self.policy_changes += 1
        self.policy_version, self.policy_label = version, label

    def new_tool_id(self) -> str:
        """A fresh tool-call id of ours."""
        return new_tool_id(self._rng)

    # -- starting ----------------------------------------------------------------------------

    async def start(self, live: LiveRollout, request: ChatRequest, client: dict) -> Generation:
        """Plan a call and start its generation; raises GenerationFailed if it can't start."""
        self._check_open()
        started = time.monotonic()
        live.reserve()
        try:
            await self.engine.met()
            async with live.lock:
                self._check_open()
                generation = await self._planned(live, request, client, started)
        except BaseException:
            live.release()
            raise
        live.remember(request)
        live.in_flight.setdefault(request.body_key, []).append(generation)
        self.metrics.in_flight.inc()
        generation.task = self._spawn(run(generation, self))
        return generation

    def _check_open(self) -> None:
        if self.is_stopping:
            raise GenerationFailed(
                FailureClass.OURS, "shutdown", 503, "The proxy is stopping.", retry_after_s=5.0
            )
        if not self.is_ready:
            raise GenerationFailed(
                FailureClass.ENGINE, "unreachable", 503, "The engine does not answer yet.",
                retry_after_s=2.0,
            )  # fmt: skip

    async def _planned(
        self, live: LiveRollout, request: ChatRequest, client: dict, started: float
    ) -> Generation:
        """A call with its prompt, its intent written; whatever goes wrong from there is recorded.

        Until it samples, its task is the caller's, so that a shutdown can end it.
        """
        call_id = new_call_id()
        plan, match = await live.lineage.place(request)
        live.lineage.open_lane(plan, request)
        self._intend(live, request, plan, call_id, client)
        generation = Generation(call_id, request, plan, None, live, started, int(time.time()))
        generation.policy_before = self.policy_version
        generation.policy_changes = self.policy_changes
        generation.task = asyncio.current_task()
        self.running.add(generation)
        self._idle.clear()
        try:
            self.step(call_id, Step.INTENT)
            await live.lineage.fill(plan, request, match)
            generation.timings["render"] = round((time.monotonic() - started) * 1000, 3)
            generation.engine_call = self._engine_call(live, generation)
        except asyncio.CancelledError:
            self._spawn(abort(generation, self))
            raise
        except Exception as error:  # the boundary where a call that can't be prompted is named
            failure = refusal(error, self._model_length(), call_id)
            await asyncio.shield(self._spawn(fail(generation, self, failure)))
            raise failure from error
        return generation

    def _model_length(self) -> int | None:
        return self.engine.info.max_model_len if self.engine.is_probed else None

    @property
    def n_in_flight(self) -> int:
        """Calls that are being generated or recorded."""
        return len(self.running)

    async def idle(self) -> None:
        """Return once no call is in flight."""
        await self._idle.wait()

    def end_all(self) -> None:
        """End every sampling that is not complete; each is recorded as aborted."""
        for generation in list(self.running):
            if not generation.is_complete and generation.task is not None:
                generation.task.cancel()

    def _intend(
        self, live: LiveRollout, request: ChatRequest, plan: Plan, call_id, client: dict
    ) -> None:
        self.ledger.intend(
            CallIntent(
                id=call_id,
                rollout_id=live.rollout.id,
                dialect="chat",
                lane=plan.lane_id,
                parent=plan.parent.id if plan.parent else None,
                prompt_mode=plan.mode,
                body_hash=request.body_key,
                body=request.body,
                stream=request.stream,
                asked_model=request.model,
                client=client,
            )
        )

    def _engine_call(self, live: LiveRollout, generation: Generation):
        plan, request = generation.plan, generation.request
        info = self.engine.info
        limit = info.max_model_len
        if plan.prompt is not None and limit is not None and len(plan.prompt) + 1 > limit:
            raise overflow(len(plan.prompt), limit)
        call = build_call(
            info,
            request,
            call_id=generation.call_id,
            lane_id=plan.lane_id,
            model=self.settings.model_aliases.get(request.model or "", info.served_model),
            purpose=live.run.purpose,
            sampling=self.settings.sampling.model_dump()
            if live.run.purpose is Purpose.TRAIN
            else None,
            prompt=plan.prompt,
            messages=plan.messages,
            policy_label=self.policy_label,
            keep_raw=self.settings.keep_raw,
        )
        is_train = live.run.purpose is Purpose.TRAIN
        if is_train and self.settings.constrained == "refuse" and "constrained" in call.flags:
            raise GenerationFailed(
                FailureClass.HARNESS,
                "bad_request",
                400,
                "Constrained sampling (forced tool, grammar, biased logits) is refused in training "
                "runs (proxy.constrained).",
                code="unsupported_parameter",
            )
        return call

    # -- results -----------------------------------------------------------------------------

    def result(self, generation: Generation, reply: EngineReply, message: dict) -> CallResult:
        """The record of a complete call."""
        plan, request, info = generation.plan, generation.request, self.engine.info
        prompt_ids = plan.prompt.ids if plan.prompt and reply.prompt_ids_match else reply.prompt_ids
        if prompt_ids is None and reply.out_ids is not None and plan.prompt is not None:
            prompt_ids = plan.prompt.ids
        sent = plan.prompt.ids if plan.prompt else None
        assert generation.engine_call is not None
        inexact = exactness(reply, sent, info)
        flags = [*plan.flags, *generation.engine_call.flags, *reply.flags]
        if generation.policy_changes != self.policy_changes:
            flags.append(Reason.MIXED)
        chain_key, bare_key = chain_keys(request, message)
        stop_id = None
        by_id = reply.stop_reason is None or isinstance(reply.stop_reason, int)
        if reply.finish in ("stop", "tool_calls") and by_id and reply.out_ids:
            stop_id = reply.out_ids[-1]
        same = plan.prompt is not None and prompt_ids is plan.prompt.ids
        return CallResult(
            **self._common(generation),
            state=CallState.COMMITTED,
            exact=not inexact,
            reasons=tuple(dict.fromkeys([*plan.reasons, *inexact])),
            usage=reply.usage,
            finish=reply.finish,
            stop_id=stop_id,
            flags=tuple(dict.fromkeys(flags)),
            prompt_ids=prompt_ids,
            prompt_base=plan.prompt_base if same else None,
            prompt_common=plan.prompt_common if same else 0,
            out_ids=reply.out_ids,
            logprobs=reply.logprobs,
            reply=message,
            reply_digest=reply_message(message).digest,
            chain_key=chain_key,
            bare_key=bare_key,
            raw_reply=reply.raw if self.settings.keep_raw or info.kind != "vllm" else None,
            failure_class=FailureClass.NONE,
            cause=None,
        )

    def failed(
        self, generation: Generation, failure: GenerationFailed, partial: EngineReply | None
    ) -> CallResult:
        """The record of a call that gave no answer; what came of it is kept, never trained."""
        plan = generation.plan
        if partial is None and generation.stream is not None:
            partial = generation.stream.partial()
        has_ids = partial is not None and partial.out_ids is not None and plan.prompt is not None
        return CallResult(
            **self._common(generation),
            state=CallState.FAILED,
            exact=False,
            reasons=tuple(plan.reasons),
            flags=tuple(plan.flags),
            prompt_ids=plan.prompt.ids if has_ids and plan.prompt else None,
            prompt_base=plan.prompt_base if has_ids else None,
            prompt_common=plan.prompt_common if has_ids else 0,
            out_ids=partial.out_ids if has_ids and partial else None,
            logprobs=partial.logprobs if has_ids and partial else None,
            reply=partial.message if partial else None,
            raw_reply=partial.raw if partial else None,
            failure_class=failure.failure_class,
            cause=failure.cause,
        )

    def _common(self, generation: Generation) -> dict:
        """The fields that complete and failed results share."""
        plan, info = generation.plan, self.engine.info
        lineage = generation.live.lineage
        lane = lineage.lane(plan.lane_id)
        call = generation.engine_call
        return {
            "id": generation.call_id,
            "lane": lane,
            "lane_updates": tuple(other for other in lineage.unstored() if other.id != lane.id),
            "parent": plan.parent.id if plan.parent else None,
            "edit_of": plan.edit_of.id if plan.edit_of else None,
            "turn_index": plan.turn_index,
            "prompt_mode": plan.mode,
            "sampling": call.sampling if call is not None else {},
            "policy_before": generation.policy_before,
            "policy_after": self.policy_version,
            "policy_label": self.policy_label,
            "engine": f"{info.kind} {info.version or ''}".strip(),
            "template_hash": info.template_hash,
            "tokenizer_hash": info.tokenizer_hash,
            "template_key": generation.request.template_key,
            "timings": dict(generation.timings),
        }

    def file(
        self, generation: Generation, result: CallResult, reply: EngineReply, seq: int
    ) -> None:
        """A committed call becomes a possible parent."""
        live, turn = generation.live, turn_of(generation, result, seq)
        live.forget_read(turn)
        live.lineage.add(turn)
        live.lineage.stored((result.lane, *result.lane_updates))
        prompt = generation.plan.prompt
        if prompt is not None and reply.out_ids is not None and reply.prompt_ids_match:
            live.lineage.remember(turn, prompt.extended(reply.out_ids))
        live.n_tokens += turn.n_prompt + turn.n_out
        self.metrics.prompts.labels(generation.plan.mode.value).inc()
        self.metrics.tokens.labels("prompt").inc(turn.n_prompt)
        self.metrics.tokens.labels("sampled").inc(turn.n_out)
        for reason in result.reasons:
            self.metrics.reasons.labels(str(reason)).inc()
        self.ended(generation, result)

    def ended(self, generation: Generation, result: CallResult) -> None:
        """A call is over, whatever became of it."""
        if result.state in (CallState.FAILED, CallState.ABORTED):
            generation.live.lineage.gave_no_answer(generation.request, generation.plan.lane_id)
        self.forget(generation)
        self._log(generation, result)

    def forget(self, generation: Generation) -> None:
        """A call no longer runs: give back what it held."""
        live = generation.live
        same = live.in_flight.get(generation.request.body_key, [])
        if generation in same:
            same.remove(generation)
            live.n_in_flight -= 1
            self.metrics.in_flight.dec()
            if not same:
                del live.in_flight[generation.request.body_key]
        self.running.discard(generation)
        self.live.settle(live)
        if not self.running:
            self._idle.set()

    def delivered(self, generation: Generation) -> None:
        """The terminal bytes of an answer were written to a client."""
        self.step(generation.call_id, Step.DELIVERED)
        generation.is_delivered = True
        self.ledger.mark(generation.call_id, CallState.DELIVERED)
        generation.live.lineage.mark(generation.call_id, state=CallState.DELIVERED)

    def redelivered(self, live: LiveRollout, call_id: CallId) -> None:
        """A stored answer was given to a client that asked again."""
        self.ledger.mark(call_id, CallState.DELIVERED)
        live.lineage.mark(call_id, state=CallState.DELIVERED)

    def undelivered(self, generation: Generation) -> None:
        """An answer is complete, and nobody was there to take it."""
        if generation.finished is None or generation.is_delivered:
            return
        self.ledger.mark(generation.call_id, CallState.UNDELIVERED)
        generation.live.lineage.mark(generation.call_id, state=CallState.UNDELIVERED)

    def _log(self, generation: Generation, result: CallResult) -> None:
        self.metrics.calls.labels(result.state.value, result.failure_class.value).inc()
        log_ended(generation, result)

    # -- answers of our own ------------------------------------------------------------------

    async def synthetic(
        self, live: LiveRollout, request: ChatRequest, text: str, cause: str, client: dict
    ) -> Finished:
        """Record an answer that no model gave (a spent budget); never trained. Returns it."""
        live.n_synthetic += 1
        async with live.lock:
            plan, _ = await live.lineage.place(request)
            live.lineage.open_lane(plan, request)
        call_id = new_call_id()
        self._intend(live, request, plan, call_id, client)
        generation = Generation(
            call_id, request, plan, None, live, time.monotonic(), int(time.time())
        )
        reply = {"role": "assistant", "content": text, "reasoning": None, "tool_calls": []}
        result = CallResult(
            **self._common(generation),
            state=CallState.SYNTHETIC,
            reasons=(cause,),
            finish="stop",
            reply=reply,
            failure_class=FailureClass.POLICY,
            cause=cause,
        )
        try:
            await self.ledger.finish(result)
        except StoreError:
            self.ledger.remember(result)
            raise
        self._log(generation, result)
        return Finished(call_id, reply, "stop", None, None, None, None, generation.created)
