"""The lineage and the store of the product, wired as the proxy wires them."""

from array import array
from collections.abc import Sequence as Many
from concurrent.futures import Future
from random import Random
from typing import Any

from budwood.proxy.call import (
    ChatRequest,
    Message,
    canonical_message,
    loads_message,
    new_tool_id,
    reply_message,
)
from budwood.proxy.lineage.forest import chain_keys
from budwood.proxy.lineage.lineage import Lineage, SequenceCache
from budwood.proxy.lineage.suffix import SuffixFinder
from budwood.proxy.testing.scripted_reply import Sampled
from budwood.trajectory_store import (
    CallId,
    CallIntent,
    CallResult,
    CallState,
    FailureClass,
    History,
    Run,
    Sequence,
    Store,
    Tokens,
    Turn,
    new_call_id,
)

from .conversations import Episode
from .fake_engine import FakeEngine
from .lineage_check import Planned


class RealLineage:
    """One rollout of the product's lineage over the product's store."""

    def __init__(self, store: Store, run: Run, engine: FakeEngine, *, cache_tokens: int) -> None:
        self.store = store
        self.rollout = store.open_rollout(run.id)
        self.chance = Random(1)
        self.engine = engine
        self._history, self._cache_tokens = run.history, cache_tokens
        self.lineage = self._new_lineage()
        self.sampled: dict[str, array[int]] = {}
        """Prompt and output of each call."""
        self._seq = 0
        self._writing: list[Future[Any]] = []

    def _new_lineage(self) -> Lineage:
        return Lineage(
            self.rollout.id,
            history=self._history,
            renderer=self.engine,
            finder=SuffixFinder(self.engine, rng=Random(2), audit_share=0.2),
            load_tokens=self._load_tokens,
            load_history=self._load_history,
            sequences=SequenceCache(self._cache_tokens),
        )

    def restart(self) -> None:
        """Know only what the store holds, as another process does."""
        self._wait()
        self.lineage = self._new_lineage()
        for turn in self.store.turns_after(self.rollout.id, 0):
            self.lineage.add(turn)

    async def plan(self, request: ChatRequest) -> Planned:
        """Plan as `Recorder.start` does."""
        plan, match = await self.lineage.place(request)
        self.lineage.open_lane(plan, request)
        await self.lineage.fill(plan, request, match)
        assert plan.prompt is not None
        return Planned(plan.mode.value, plan.prompt.ids, str(plan.lane_id), plan)

    async def commit(
        self, request: ChatRequest, planned: Planned, sampled: Sampled, state: CallState
    ) -> tuple[str, dict[str, Any]]:
        """Record as `Recorder.result` does."""
        plan = planned.detail
        call_id, message = new_call_id(), sampled.message()
        reply = {
            "role": "assistant",
            "content": message["content"],
            "reasoning": message["reasoning"],
            "tool_calls": [
                {
                    "id": new_tool_id(self.chance),
                    "engine_id": call["id"],
                    "name": call["function"]["name"],
                    "arguments": call["function"]["arguments"],
                }
                for call in message.get("tool_calls") or ()
            ],
        }
        intent = CallIntent(
            id=call_id,
            rollout_id=self.rollout.id,
            dialect="chat",
            lane=plan.lane_id,
            parent=plan.parent.id if plan.parent else None,
            prompt_mode=plan.mode,
            body_hash=request.body_key,
            body=request.body,
        )
        result = self._result(call_id, request, plan, sampled, state, reply)
        assert plan.prompt is not None
        self.sampled[str(call_id)] = plan.prompt.ids + array("I", sampled.ids)
        self._writing.append(self.store.begin_call(intent))
        self._writing.append(self.store.finish_call(result))
        if state is CallState.COMMITTED:
            self._file(request, plan, result)
        return str(call_id), reply

    def _result(
        self,
        call_id: CallId,
        request: ChatRequest,
        plan: Any,
        sampled: Sampled,
        state: CallState,
        reply: dict[str, Any],
    ) -> CallResult:
        is_complete = state is CallState.COMMITTED
        chain_key, bare_key = chain_keys(request, reply)
        lane = self.lineage.lane(plan.lane_id)
        others = tuple(each for each in self.lineage.unstored() if each.id != lane.id)
        return CallResult(
            id=call_id,
            state=state,
            lane=lane,
            lane_updates=others,
            parent=plan.parent.id if plan.parent else None,
            edit_of=plan.edit_of.id if plan.edit_of else None,
            turn_index=plan.turn_index,
            prompt_mode=plan.mode,
            exact=is_complete,
            reasons=tuple(plan.reasons),
            flags=tuple(plan.flags),
            finish=sampled.finish,
            stop_id=sampled.ids[-1] if sampled.finish in ("stop", "tool_calls") else None,
            template_key=request.template_key,
            prompt_ids=plan.prompt.ids,
            prompt_base=plan.prompt_base,
            prompt_common=plan.prompt_common,
            out_ids=array("I", sampled.ids),
            logprobs=array("f", sampled.logprobs),
            reply=reply,
            reply_digest=reply_message(reply).digest,
            chain_key=chain_key if is_complete else None,
            bare_key=bare_key if is_complete else None,
            message_digests=b"".join(message.digest for message in request.messages),
            failure_class=FailureClass.NONE if is_complete else FailureClass.HARNESS,
            cause=None if is_complete else "client_gone",
        )

    def _file(self, request: ChatRequest, plan: Any, result: CallResult) -> None:
        self._seq += 1
        assert result.prompt_ids is not None
        assert result.out_ids is not None
        turn = Turn(
            id=result.id,
            seq=self._seq,
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
            exact=True,
            n_prompt=len(result.prompt_ids),
            n_out=len(result.out_ids),
            n_messages=len(request.messages),
            flags=frozenset(result.flags),
            template_key=request.template_key,
            body_hash=request.body_key,
        )
        self.lineage.add(turn)
        self.lineage.stored((result.lane, *result.lane_updates))
        self.lineage.remember(turn, plan.prompt.extended(result.out_ids))

    def mark(self, call_id: str, state: CallState) -> None:
        """Note what became of its delivery."""
        self._writing.append(self.store.mark(CallId(call_id), state))
        self.lineage.mark(CallId(call_id), state=state)

    def sequences(self) -> list[Sequence]:
        """The rows of all lanes, main or not."""
        self._wait()
        return self.store.sequences(self.rollout.id, lanes=("main", "sub-agent", "side"))

    def _wait(self) -> None:
        for future in self._writing:
            future.result(10)
        self._writing.clear()

    async def _load_tokens(self, call_id: CallId) -> Tokens:
        self._wait()
        return self.store.tokens(call_id)

    async def _load_history(self, call_id: CallId) -> Many[Message]:
        self._wait()
        raws = self.store.request_messages(call_id)
        messages = [canonical_message(loads_message(raw), raw) for raw in raws]
        reply = self.store.call(call_id).reply
        return [*messages, reply_message(reply)] if reply else messages


class Runs:
    """The runs of one store that episodes play in, one a history policy."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._runs = {policy: store.open_run(policy.value, history=policy) for policy in History}
        self._n = 0

    async def make(self, episode: Episode, engine: FakeEngine) -> RealLineage:
        """A new rollout; every third keeps next to nothing in memory, so it reads the store."""
        self._n += 1
        cache_tokens = 1 if self._n % 3 == 0 else 1_000_000
        return RealLineage(self.store, self.run_of(episode), engine, cache_tokens=cache_tokens)

    def run_of(self, episode: Episode) -> Run:
        """The run of an episode's history policy."""
        policy = History.KEEP_REASONING if episode.keeps_reasoning else History.AS_SENT
        return self._runs[policy]
