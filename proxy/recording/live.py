"""The rollouts this process is serving: their lineage, calls in flight, and what they spent.

Everything here can be thrown away and read back from the store, which is the truth; a rollout
that another process also serves is caught up with before each match.
"""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from budwood.trajectory_store import (
    CallId,
    CallState,
    Rollout,
    RolloutId,
    Run,
    Store,
    Tokens,
    Turn,
)

from ..call import ChatRequest, Message, canonical_message, loads_message, reply_message
from ..call.body import common_length
from ..lineage.lineage import UNKNOWN_SPELLING, Lineage, SequenceCache, Spelling
from ..lineage.suffix import Renderer, SuffixFinder

if TYPE_CHECKING:
    from .generation import Generation

MAX_LIVE = 1024
"""Rollouts kept in memory; beyond it those that were not used for longest are let go."""

ASK_EVERY_S = 1.0
"""How long it may take to notice that another process records into the same store."""

RECENT_REQUESTS = 4
"""Bodies kept per rollout for prefix comparison: one for each lane that is likely in use."""


@dataclass(slots=True)
class LiveRollout:
    """One rollout in memory. `lock` is held around match and commit, never while generating."""

    rollout: Rollout
    run: Run
    lineage: Lineage
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    in_flight: dict[bytes, list["Generation"]] = field(default_factory=dict)
    n_in_flight: int = 0
    n_calls: int = 0
    n_tokens: int = 0
    n_synthetic: int = 0
    last_read: int | None = None
    """Up to which seq the store's calls have been filed; None before the first read."""
    read_calls: set[CallId] = field(default_factory=set)
    """Calls that came from the store: their state may have changed there since."""
    is_closed: bool = False
    n_users: int = 0
    """Requests that hold this object; it must stay the only one of its rollout meanwhile."""
    started: float = field(default_factory=time.monotonic)
    refused_doors: Counter[str] = field(default_factory=Counter)
    requests: OrderedDict[bytes, ChatRequest] = field(default_factory=OrderedDict)

    @property
    def is_idle(self) -> bool:
        """Whether nothing would be lost by letting it go."""
        return not self.n_in_flight and not self.n_users

    def reserve(self) -> None:
        """Count a call as soon as it is let in, so that those let in beside it are limited too."""
        self.n_in_flight += 1
        self.n_calls += 1

    def release(self) -> None:
        """Take a reserved call back: it could not be prompted."""
        self.n_in_flight -= 1
        self.n_calls -= 1

    def forget_read(self, turn: Turn) -> None:
        """Count a call of our own once, though it was also seen in the store before it was told."""
        if turn.id in self.read_calls:
            self.read_calls.discard(turn.id)
            self.n_calls -= 1
            self.n_tokens -= turn.n_prompt + turn.n_out

    def previous(self, raw: bytes) -> tuple[ChatRequest | None, int]:
        """The recent request that shares the longest start with `raw`, and how many bytes."""
        best, longest = None, 0
        for request in self.requests.values():
            shared = common_length(request.raw, raw)
            if shared > longest:
                best, longest = request, shared
        return best, longest

    def remember(self, request: ChatRequest) -> None:
        """Keep a request for the next comparison; the one it grew from is no longer needed."""
        first = request.chain[1 if len(request.chain) > 1 else 0]
        self.requests.pop(first, None)
        self.requests[first] = request
        if len(self.requests) > RECENT_REQUESTS:
            self.requests.popitem(last=False)

    def spent_budget(self) -> str | None:
        """Which budget of the rollout is used up, if any: `calls`, `tokens` or `wall`."""
        budgets = self.rollout.budgets
        if self.n_calls >= budgets.get("max_calls", float("inf")):
            return "calls"
        if self.n_tokens >= budgets.get("max_tokens", float("inf")):
            return "tokens"
        if time.monotonic() - self.started >= budgets.get("wall_s", float("inf")):
            return "wall"
        return None


class LiveRollouts:
    """All live rollouts of one proxy process, found by id; closed and idle ones are let go."""

    def __init__(
        self,
        store: Store,
        *,
        renderer: Renderer | None,
        finder: SuffixFinder | None,
        cache_tokens: int,
    ) -> None:
        """An empty set over `store`."""
        self._store = store
        self._renderer = renderer
        self._finder = finder
        self._spelling = UNKNOWN_SPELLING
        self._sequences = SequenceCache(cache_tokens)
        self._live: OrderedDict[RolloutId, LiveRollout] = OrderedDict()
        self._opening: dict[RolloutId, asyncio.Lock] = {}
        self._shared = True
        self._ask_again = 0.0

    def __len__(self) -> int:
        """How many rollouts are in memory."""
        return len(self._live)

    def set_renderer(
        self, renderer: Renderer | None, finder: SuffixFinder | None, spelling: Spelling
    ) -> None:
        """What the probe of the engine found out; rollouts that are live already use it too."""
        self._renderer, self._finder, self._spelling = renderer, finder, spelling
        for live in self._live.values():
            live.lineage.set_renderer(renderer, finder, spelling)

    async def get(self, rollout: Rollout) -> LiveRollout:
        """The live form of a rollout, read back from the store on first sight."""
        found = self._live.get(rollout.id)
        if found is not None:
            self._live.move_to_end(rollout.id)
            return found
        lock = self._opening.setdefault(rollout.id, asyncio.Lock())
        async with lock:
            found = self._live.get(rollout.id)
            if found is None:
                found = await self._open(rollout)
                self._live[rollout.id] = found
                self._let_go()
        self._opening.pop(rollout.id, None)
        return found

    def suffix_counts(self) -> Counter[str]:
        """What finding suffixes has come to so far: spliced, refused, audits, quarantined."""
        if self._finder is None:
            return Counter()
        return self._finder.counts + Counter(quarantined=self._finder.n_quarantined)

    def known(self, rollout_id: RolloutId) -> LiveRollout | None:
        """The live form of a rollout, if it is in memory."""
        return self._live.get(rollout_id)

    def drop(self, rollout_id: RolloutId) -> None:
        """Let a closed rollout go from memory, now or when its last call has ended."""
        live = self._live.get(rollout_id)
        if live is not None:
            live.is_closed = True
            self.settle(live)

    def settle(self, live: LiveRollout) -> None:
        """A request or call of a rollout has ended: a closed one goes with its last."""
        if live.is_closed and live.is_idle and self._live.get(live.rollout.id) is live:
            del self._live[live.rollout.id]

    def _let_go(self) -> None:
        excess = len(self._live) - MAX_LIVE
        if excess > 0:
            idle = [rollout_id for rollout_id, live in self._live.items() if live.is_idle]
            for rollout_id in idle[:excess]:
                del self._live[rollout_id]

    async def _open(self, rollout: Rollout) -> LiveRollout:
        run = await asyncio.to_thread(self._store.run, rollout.run_id)
        lineage = Lineage(
            rollout.id,
            history=run.history,
            renderer=self._renderer,
            finder=self._finder,
            spelling=self._spelling,
            load_tokens=self._load_tokens,
            load_history=self._load_history,
            sequences=self._sequences,
        )
        live = LiveRollout(rollout, run, lineage)
        await self.catch_up(live)
        if rollout.budgets:
            await asyncio.to_thread(self._read_spending, live)
        return live

    def _read_spending(self, live: LiveRollout) -> None:
        """What was spent before this process saw the rollout."""
        age = datetime.now(UTC) - live.rollout.created_at
        live.started = time.monotonic() - max(0.0, age.total_seconds())
        calls = self._store.calls(live.rollout.id)
        live.n_synthetic = sum(call.state is CallState.SYNTHETIC for call in calls)
        live.n_calls = len(calls) - live.n_synthetic

    async def catch_up(self, live: LiveRollout) -> None:
        """File calls that the store holds and this process has not seen."""
        if live.last_read is not None and not await self.is_shared():
            return
        # Not from the forest's own last seq: calls of ours may have overtaken others' unseen ones.
        turns = await asyncio.to_thread(
            self._store.turns_after, live.rollout.id, live.last_read or 0
        )
        for turn in turns:
            if turn.id not in live.lineage.forest.turns:
                live.lineage.add(turn)
                live.read_calls.add(turn.id)
                live.n_calls += 1
                live.n_tokens += turn.n_prompt + turn.n_out
        live.last_read = max([live.last_read or 0, *(turn.seq for turn in turns)])

    async def is_shared(self) -> bool:
        """Whether another process records into this store; asked anew every second.

        A process that finds company waits that long before it takes calls.
        """
        now = time.monotonic()
        if now >= self._ask_again:
            self._ask_again = now + ASK_EVERY_S
            self._shared = await asyncio.to_thread(self._store.has_company)
        return self._shared

    async def _load_tokens(self, call_id: CallId) -> Tokens:
        return await asyncio.to_thread(self._store.tokens, call_id)

    async def _load_history(self, call_id: CallId) -> Sequence[Message]:
        return await asyncio.to_thread(self._history, call_id)

    def _history(self, call_id: CallId) -> Sequence[Message]:
        raws = self._store.request_messages(call_id)
        messages = [canonical_message(loads_message(raw), raw) for raw in raws]
        reply = self._store.call(call_id).reply
        return [*messages, reply_message(reply)] if reply else messages
