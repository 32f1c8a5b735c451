"""One rollout's lineage: for each call, the tokens that come before what will be sampled.

A prompt is either the recorded tokens of an earlier call, its sampled tokens and a short suffix
(`spliced`), or a whole render by the engine (`rendered`). Both are sent as ids. Splicing happens
only where the incoming history is provably the recorded one (`forest.py`) and where the model's
own template does not edit it because of the new messages (`suffix/`); everything else is a whole
render in the same lane, a new branch, with its reason (`reasons.py`). Design: `proxy.md` 6.

`plan` is called under the rollout's lock and never while tokens are generated; it changes
nothing. `commit` files a finished call after the store has it.
"""

from array import array
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import blake2b
from typing import NamedTuple

from budwood.trajectory_store import (
    CallId,
    History,
    Lane,
    LaneId,
    PromptMode,
    RolloutId,
    Tokens,
    Turn,
    new_lane_id,
)

from ..call import ChatRequest
from ..engine import Prompt
from .edits import name_edit
from .forest import Forest, Match
from .lane import LaneFacts, label_lanes
from .reasons import Reason
from .suffix import Renderer, RenderRejected, SuffixFinder, repaired
from .thoughts import LoadHistory, Thought, Thoughts

MAX_UNANSWERED = 256
"""Bodies of failed or cut calls whose lanes are remembered for a retry."""

LoadTokens = Callable[[CallId], Awaitable[Tokens]]


@dataclass(slots=True)
class Plan:
    """How one call will be prompted, and where it stands in the forest.

    `prompt` is None where the engine renders (`messages` are then the real ones).
    `prompt.ids[:prompt_common]` equals the same slice of `prompt_base`'s prompt and output.
    """

    lane_id: LaneId
    opens_lane: bool
    parent: Turn | None
    edit_of: Turn | None
    turn_index: int
    mode: PromptMode
    prompt: Prompt | None
    prompt_base: CallId | None
    prompt_common: int
    messages: list[dict]
    reasons: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)


class Spelling(NamedTuple):
    """How an engine turns messages into ids: ids of one spelling are never continued in another."""

    template_hash: str | None
    tokenizer_hash: str | None


UNKNOWN_SPELLING = Spelling(None, None)


class SequenceCache:
    """Prompt + output of recent calls as ready-made prompts; bounded by tokens, least used out.

    Only saves reads: whatever is missing is loaded from the store.
    """

    def __init__(self, max_tokens: int) -> None:
        """An empty cache that holds at most `max_tokens` ids over all its entries."""
        self._max_tokens = max_tokens
        self._n_tokens = 0
        self._entries: OrderedDict[CallId, Prompt] = OrderedDict()

    def get(self, call_id: CallId) -> Prompt | None:
        """The cached sequence of a call, if it is still held."""
        found = self._entries.get(call_id)
        if found is not None:
            self._entries.move_to_end(call_id)
        return found

    def put(self, call_id: CallId, sequence: Prompt) -> None:
        """Hold a call's sequence, letting the least used go."""
        old = self._entries.pop(call_id, None)
        if old is not None:
            self._n_tokens -= len(old)
        self._entries[call_id] = sequence
        self._n_tokens += len(sequence)
        while self._n_tokens > self._max_tokens and len(self._entries) > 1:
            _, dropped = self._entries.popitem(last=False)
            self._n_tokens -= len(dropped)


class Lineage:
    """The forest of one rollout and the rules that turn a request into a prompt."""

    def __init__(
        self,
        rollout_id: RolloutId,
        *,
        history: History,
        renderer: Renderer | None,
        finder: SuffixFinder | None,
        spelling: Spelling = UNKNOWN_SPELLING,
        load_tokens: LoadTokens,
        load_history: LoadHistory,
        sequences: SequenceCache,
    ) -> None:
        """A lineage without calls; `add` what the store holds. No renderer: the engine renders."""
        self.rollout_id = rollout_id
        self.history = history
        self.forest = Forest()
        self._thoughts = Thoughts(self.forest, load_history)
        self._renderer = renderer
        self._finder = finder
        self._spelling = spelling
        self._load_tokens = load_tokens
        self._load_history = load_history
        self._sequences = sequences
        self._facts: dict[LaneId, LaneFacts] = {}
        self._lanes: dict[LaneId, Lane] = {}
        self._stored: dict[LaneId, Lane] = {}
        self._unanswered: OrderedDict[bytes, LaneId] = OrderedDict()
        self._clock = 0

    def set_renderer(
        self, renderer: Renderer | None, finder: SuffixFinder | None, spelling: Spelling
    ) -> None:
        """Render through these from now on: an engine was met, or another one took its place."""
        self._renderer, self._finder, self._spelling = renderer, finder, spelling

    # -- planning ---------------------------------------------------------------------------

    async def plan(self, request: ChatRequest) -> Plan:
        """The prompt of a call and its place; raises RenderRejected if the engine refuses it."""
        plan, match = await self.place(request)
        await self.fill(plan, request, match)
        return plan

    async def place(self, request: ChatRequest) -> tuple[Plan, Match | None]:
        """Where a call stands in the forest, and what it continues; no prompt yet."""
        match, dropped = await self._match(request)
        edit_of = None
        unmatched = request.messages[match.n_matched :] if match else request.messages
        if match is None or any(message.role == "assistant" for message in unmatched):
            edit_of = self.forest.edited(unmatched)
            if match is not None and edit_of is match.turn:
                edit_of = None
            if edit_of is None:
                edit_of = self._without_reasoning(request, match)
        plan = self._at(request, match, edit_of)
        for position, thought in dropped.items():
            plan.messages[position] = {**plan.messages[position], **thought.wire}
        if edit_of is not None:
            plan.reasons.append(await self._name_edit(edit_of, request))
        elif match is None:
            is_first = all(message.role != "assistant" for message in request.messages)
            plan.reasons.append(Reason.FIRST_CALL if is_first else Reason.UNKNOWN_HISTORY)
        if match is not None and match.is_ambiguous:
            plan.flags.append(Reason.AMBIGUOUS)
        return plan, match

    async def fill(self, plan: Plan, request: ChatRequest, match: Match | None) -> None:
        """Give a placed call its prompt; raises RenderRejected if the engine refuses it."""
        if self._renderer is None or any(message.media for message in request.messages):
            plan.reasons.append(Reason.NO_RENDER if self._renderer is None else Reason.MEDIA)
            return
        if match is not None and plan.edit_of is None and await self._splice(plan, request, match):
            return
        await self._render(plan, request)

    def _without_reasoning(self, request: ChatRequest, match: Match | None) -> Turn | None:
        """The call that the list continues but for its reasoning, where only one lane has it."""
        bare = self.forest.match(request, bare=True)
        if bare is None or (match is not None and bare.n_matched <= match.n_matched):
            return None
        return bare.turn if self.forest.is_of_one_lane(request, bare.n_matched) else None

    async def _match(self, request: ChatRequest) -> tuple[Match | None, dict[int, Thought]]:
        """The call that is continued, and the reasoning in it that the request lacks.

        Under `keep-reasoning`, reasoning that the harness dropped is no contradiction; reasoning
        that it changed is.
        """
        if self.history is not History.KEEP_REASONING:
            return self.forest.match(request), {}
        for n, turns in self.forest.fitting(request, bare=True):
            shown = {turn.id: await self._thoughts.shown(turn, request) for turn in turns}
            fitting = [turn for turn in turns if shown[turn.id] is not None]
            if fitting:
                match = self.forest.told_apart(fitting, request, n)
                thoughts = shown[match.turn.id] or {}
                return match, {i: t for i, t in thoughts.items() if not request.messages[i].thought}
        return None, {}

    def _at(self, request: ChatRequest, match: Match | None, edit_of: Turn | None) -> Plan:
        origin = edit_of or (match.turn if match else None)
        lane_id = origin.lane.id if origin else self._unanswered.get(request.body_key)
        return Plan(
            lane_id=lane_id or new_lane_id(),
            opens_lane=lane_id is None,
            parent=match.turn if match else None,
            edit_of=edit_of,
            turn_index=match.turn.turn_index + 1 if match else 0,
            mode=PromptMode.ENGINE_RENDERED,
            prompt=None,
            prompt_base=None,
            prompt_common=0,
            messages=self._engine_messages(request),
        )

    def _engine_messages(self, request: ChatRequest) -> list[dict]:
        """The messages as the engine shall see them: its own tool-call ids put back."""
        return [self._with_engine_ids(message.wire) for message in request.messages]

    def _with_engine_ids(self, wire: dict) -> dict:
        calls, answers = wire.get("tool_calls"), wire.get("tool_call_id")
        if calls:
            renamed = [{**c, "id": self.forest.engine_id(c["id"]) or c["id"]} for c in calls]
            return {**wire, "tool_calls": renamed}
        if answers:
            return {**wire, "tool_call_id": self.forest.engine_id(answers) or answers}
        return wire

    async def _splice(self, plan: Plan, request: ChatRequest, match: Match) -> bool:
        """Fill `plan` with recorded tokens and a suffix; False (with a reason) where it can't."""
        refusal = _refusal(match, request, self._spelling)
        if refusal is not None:
            plan.reasons.append(refusal)
            return False
        assert self._finder is not None
        assert match.turn.stop_id is not None
        n = match.n_matched
        suffix = await self._finder.find(
            plan.messages[: n - 1],
            plan.messages[n - 1],
            plan.messages[n:],
            match.turn.stop_id,
            request.tools,
            request.template,
            keep_reasoning=self.history is History.KEEP_REASONING,
        )
        if suffix.ids is None:
            plan.reasons.append(suffix.reason or Reason.TEMPLATE_EDITS)
            return False
        if suffix.audit:
            full = await self._whole(plan, request)
            if not self._finder.check_audit(suffix, full.ids, match.turn.stop_id):
                plan.reasons.append("quarantined")
                return False
        if suffix.repaired and "repaired" not in plan.flags:
            plan.flags.append("repaired")
        if suffix.verdict not in ("none", "cosmetic"):
            plan.flags.append(f"verdict_{suffix.verdict}")
        sequence = await self._sequence(match.turn.id)
        plan.mode = PromptMode.SPLICED
        plan.prompt = sequence.extended(suffix.ids)
        plan.prompt_base = match.turn.id
        plan.prompt_common = len(sequence)
        return True

    async def _render(self, plan: Plan, request: ChatRequest) -> None:
        plan.mode = PromptMode.RENDERED
        plan.prompt = await self._whole(plan, request)
        base = plan.edit_of or plan.parent
        if base is not None and base.n_out:
            sequence = await self._sequence(base.id)
            plan.prompt_base = base.id
            plan.prompt_common = common_prefix(sequence.ids, plan.prompt.ids)

    async def _whole(self, plan: Plan, request: ChatRequest) -> Prompt:
        """The whole conversation, rendered; messages that the template refuses are repaired."""
        assert self._renderer is not None
        try:
            ids = await self._renderer.render(plan.messages, request.tools, request.template)
        except RenderRejected:
            mended = repaired(plan.messages)
            if mended is None:
                raise
            ids = await self._renderer.render(mended, request.tools, request.template)
            plan.flags.append("repaired")
        return Prompt(ids)

    async def _sequence(self, call_id: CallId) -> Prompt:
        found = self._sequences.get(call_id)
        if found is None:
            tokens = await self._load_tokens(call_id)
            found = Prompt(tokens.prompt_ids).extended(tokens.out_ids)
            self._sequences.put(call_id, found)
        return found

    async def _name_edit(self, edit_of: Turn, request: ChatRequest) -> Reason:
        before = await self._load_history(edit_of.id)
        same_tools = edit_of.template_key == request.template_key
        return name_edit(before, request.messages, same_tools=same_tools)

    # -- filing ------------------------------------------------------------------------------

    def open_lane(self, plan: Plan, request: ChatRequest) -> Lane:
        """The lane of a planned call, opened or touched; call once when the call starts."""
        self._clock += 1
        facts = self._facts.get(plan.lane_id)
        if facts is None:
            facts = LaneFacts(
                id=plan.lane_id,
                offers_tools=bool(request.tools),
                agent_key=agent_key(request),
                first=self._clock,
                last=self._clock,
            )
            self._facts[plan.lane_id] = facts
        facts.last = self._clock
        self.relabel()
        return self._lanes[plan.lane_id]

    def relabel(self) -> None:
        """Bring every lane's kind up to date with what is known now."""
        for lane_id, label in label_lanes(self._facts.values()).items():
            facts, old = self._facts[lane_id], self._lanes.get(lane_id)
            self._lanes[lane_id] = Lane(
                id=lane_id,
                rollout_id=self.rollout_id,
                kind=label.kind,
                segment=label.segment,
                parent_lane=label.parent_lane,
                created_at=old.created_at if old else datetime.now(UTC),
                offers_tools=facts.offers_tools,
                agent_key=facts.agent_key,
            )

    def lane(self, lane_id: LaneId) -> Lane:
        """The lane as it is labelled now."""
        return self._lanes[lane_id]

    def unstored(self) -> tuple[Lane, ...]:
        """Lanes whose label differs from what the store has of them."""
        return tuple(lane for lane in self._lanes.values() if self._stored.get(lane.id) != lane)

    def stored(self, lanes: Iterable[Lane]) -> None:
        """Note that the store has these lanes as they are here."""
        self._stored.update((lane.id, lane) for lane in lanes)

    def gave_no_answer(self, request: ChatRequest, lane_id: LaneId) -> None:
        """A call failed or was cut: the same body again goes on in its lane."""
        self._unanswered[request.body_key] = lane_id
        if len(self._unanswered) > MAX_UNANSWERED:
            self._unanswered.popitem(last=False)

    def add(self, turn: Turn) -> None:
        """File a complete call that the store holds (read back, or just committed)."""
        self.forest.add(turn)
        self._clock = max(self._clock, turn.seq)
        facts = self._facts.get(turn.lane.id)
        if facts is None:
            self._facts[turn.lane.id] = LaneFacts(
                turn.lane.id, turn.lane.offers_tools, turn.lane.agent_key, turn.seq, turn.seq
            )
        else:
            facts.last = max(facts.last, turn.seq)
        self._lanes.setdefault(turn.lane.id, turn.lane)
        self._stored.setdefault(turn.lane.id, turn.lane)

    def remember(self, turn: Turn, sequence: Prompt) -> None:
        """Keep the ready-made prompt + output of a call that will probably be continued."""
        self._sequences.put(turn.id, sequence)

    def mark(self, call_id: CallId, **changes: object) -> None:
        """Note a changed state of a filed call."""
        turn = self.forest.turns.get(call_id)
        if turn is not None:
            self.forest.add(replace(turn, **changes))


def _refusal(match: Match, request: ChatRequest, spelling: Spelling) -> Reason | None:
    """Why a matched call can't be continued by splicing, before any template is asked."""
    tail = request.messages[match.n_matched :]
    if not tail:
        return Reason.EMPTY_TAIL
    if any(message.role == "assistant" for message in tail):
        return Reason.FOREIGN_ASSISTANT
    turn = match.turn
    if not turn.n_out:
        return Reason.PARENT_WITHOUT_IDS
    if turn.stop_id is None or turn.finish not in ("stop", "tool_calls"):
        return Reason.PARENT_CUT
    if Spelling(turn.template_hash, turn.tokenizer_hash) != spelling:
        return Reason.ENGINE_CHANGED
    return None


def agent_key(request: ChatRequest) -> bytes:
    """Digest of what makes an agent: its tools and template arguments, and its system text."""
    digest = blake2b(request.template_key, digest_size=16)
    for message in request.messages:
        if message.role not in ("system", "developer"):
            break
        digest.update(message.digest)
    return digest.digest()


def common_prefix(a: "array[int]", b: "array[int]") -> int:
    """How many leading ids two arrays share: a binary search over memory comparisons."""
    left, right, size = a.tobytes(), b.tobytes(), a.itemsize
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low * size : middle * size] == right[low * size : middle * size]:
            low = middle
        else:
            high = middle - 1
    return low
