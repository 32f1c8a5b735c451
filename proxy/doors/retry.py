"""The same body again: what a repeated request means (`proxy.md` 6).

| the earlier call                                    | the new one is                        |
|-----------------------------------------------------|---------------------------------------|
| complete, not delivered (its client left)           | answered with the committed result    |
| in flight, connected, new one marked as a retry     | joined to it                          |
| in flight, connected, unmarked                      | a sibling: sampled anew               |
| delivered, failed or aborted                        | sampled anew                          |
"""

import asyncio

from budwood.trajectory_store import CallState, Store, Turn

from ..call import ChatRequest
from ..recording.generation import Finished, Generation
from ..recording.live import LiveRollout


async def find_earlier(
    store: Store, live: LiveRollout, request: ChatRequest, *, is_retry: bool
) -> Generation | Turn | None:
    """The generation to join, the call whose answer to give, or None to sample anew.

    An answer that is given is marked delivered at once, so that it is given to one client only.
    """
    turns = live.lineage.forest.same_body(request.body_key)
    if turns and await _is_waiting(store, live, turns[-1], is_retry=is_retry):
        live.lineage.mark(turns[-1].id, state=CallState.DELIVERED)
        return turns[-1]
    if is_retry:
        for generation in reversed(live.in_flight.get(request.body_key, [])):
            if generation.n_followers > 0:
                return generation
    return None


async def _is_waiting(store: Store, live: LiveRollout, turn: Turn, *, is_retry: bool) -> bool:
    """Whether a call's answer waits for its client to come back.

    A call of another process, or of this one's predecessor, may have been delivered since it was
    read. If its process died in between, only a client that says it asks again did not get it.
    """
    if turn.state is CallState.COMMITTED and turn.id in live.read_calls:
        state = (await asyncio.to_thread(store.call, turn.id)).state
        known = live.lineage.forest.turns[turn.id]
        if known.state is not CallState.COMMITTED:
            return False
        live.lineage.mark(turn.id, state=state)
        return state is CallState.UNDELIVERED or (is_retry and state is CallState.COMMITTED)
    return turn.state is CallState.UNDELIVERED


async def stored_answer(store: Store, turn: Turn) -> Finished:
    """A committed call's answer, read back from the store."""
    return await asyncio.to_thread(_read, store, turn)


def _read(store: Store, turn: Turn) -> Finished:
    call = store.call(turn.id)
    tokens = store.tokens(turn.id) if call.n_prompt is not None else None
    return Finished(
        call_id=turn.id,
        reply=call.reply or {},
        finish=call.finish or "stop",
        usage=call.usage,
        prompt_ids=tokens.prompt_ids if tokens else None,
        out_ids=tokens.out_ids if tokens else None,
        logprobs=tokens.logprobs if tokens else None,
        created=int(call.created_at.timestamp()),
    )
