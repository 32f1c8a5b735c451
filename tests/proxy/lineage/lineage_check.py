"""Plays an episode against a lineage and says what it got wrong.

The truth is the player's own: it made the conversations and knows which edit means something. What
is held against it, for every call:

* cosmetic edits are spliced, edits of meaning never are;
* two agents never share a lane, and a continued conversation stays in its own;
* a spliced prompt is the parent's prompt and sampled ids, then what ends the whole render;
* the decoded prompt says what the incoming messages say; a whole render is the engine's, id by id;

and at the end: each sampled token that its client got is trained exactly once, and nothing else.
"""

import json
import re
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from budwood.proxy.call import ChatRequest, parse_chat
from budwood.proxy.testing.scripted_reply import Sampled
from budwood.trajectory_store import CallState, Sequence

from .conversations import End, Episode, Start, Step
from .fake_engine import FakeEngine, invented_reply, words
from .harness_edits import COSMETIC, MEANINGFUL, Messages, text_of


class Violation(AssertionError):
    """A lineage broke a promise."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What a lineage decided about one call."""

    mode: str
    prompt_ids: "array[int]"
    lane: str
    detail: Any = None
    """Whatever the lineage needs again to commit."""


class LineageUnderTest(Protocol):
    """One rollout's lineage together with the store it files calls in."""

    async def plan(self, request: ChatRequest) -> Planned:
        """Decide the prompt of a call; changes nothing but what a started call changes."""
        ...

    async def commit(
        self, request: ChatRequest, planned: Planned, sampled: Sampled, state: CallState
    ) -> tuple[str, dict[str, Any]]:
        """File a call that has ended; return its id and the reply with our tool-call ids."""
        ...

    def mark(self, call_id: str, state: CallState) -> None:
        """Note what became of its delivery."""
        ...

    def sequences(self) -> list[Sequence]:
        """The rollout's training rows, of all lanes."""
        ...


@dataclass(slots=True, eq=False)
class Record:
    """What was really sampled in one call."""

    call_id: str
    lane: str
    prompt_ids: "array[int]"
    sampled: Sampled
    is_delivered: bool
    is_echoed: bool = False

    @property
    def sequence(self) -> list[int]:
        """Prompt and output."""
        return [*self.prompt_ids, *self.sampled.ids]


@dataclass(slots=True)
class Agent:
    """One conversation, as its harness has it."""

    name: str
    tools: list[dict[str, Any]] | None
    messages: Messages
    shown: Messages
    """What the model should read: the same, with the reasoning that the history policy restores."""
    parent: Record | None = None
    product_lane: str = ""
    recorded: list[Messages] = field(default_factory=list)
    """What was shown up to each reply, and the reply."""
    has_swapped_calls: bool = False
    """Swapping them once more would show the first answer again."""
    request: ChatRequest | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """What is right for one call."""

    is_spliced: bool
    is_echo: bool
    """The request shows the parent's answer as it was."""
    label: str


TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": {}}},
    }
    for name in ("bash", "edit", "read")
]

Make = Callable[[Episode, FakeEngine], Awaitable[LineageUnderTest]]


async def check(episode: Episode, make: Make, counts: Counter[str]) -> None:
    """Play an episode; raises Violation. `counts` says what occurred."""
    from budwood.proxy.testing.chat_template import CHAT_TEMPLATE, DROPS_THINKING

    engine = FakeEngine(DROPS_THINKING if episode.drops_thinking else CHAT_TEMPLATE)
    player = _Player(episode, engine, await make(episode, engine), counts)
    for step in episode.steps:
        await player.play(step)
    await player.finish()


@dataclass(slots=True)
class _Player:
    episode: Episode
    engine: FakeEngine
    lineage: LineageUnderTest
    counts: Counter[str]
    agents: dict[int, Agent] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    owners: dict[str, str] = field(default_factory=dict)
    pending: dict[str, Callable[[], Awaitable[None]]] = field(default_factory=dict)
    n_steps: int = 0
    has_twin: bool = False

    async def play(self, step: Step) -> None:
        self.n_steps += 1
        chance = Random(f"{step.seed} {self.n_steps}")  # no text occurs twice by chance
        agent = self.agents.get(step.lane)
        if agent is None:
            agent = self.agents[step.lane] = self._opened(step, chance)
            expected = Expected(False, False, "first")
        else:
            await self._settle(agent.name)
            expected = self._continued(agent, step, chance)
        agent.request = self._request(agent, chance)
        planned = await self._planned(agent, expected)
        for name in list(self.pending):
            await self._settle(name)
        if step.end is End.ABORTED:
            sampled = self._sampled(agent, step, chance, cut=True)
            await self.lineage.commit(agent.request, planned, sampled, CallState.ABORTED)
            planned = await self._planned(agent, expected)
        if step.end is End.RESAMPLED:
            await self._commit(agent, step, chance, planned, expected)
            planned = await self._planned(agent, expected)
        if step.overlaps:
            self.pending[agent.name] = lambda: self._answered(
                agent, step, chance, planned, expected
            )
        else:
            await self._answered(agent, step, chance, planned, expected)

    async def _settle(self, name: str) -> None:
        waiting = self.pending.pop(name, None)
        if waiting is not None:
            await waiting()

    # -- what the harness sends

    def _opened(self, step: Step, chance: Random) -> Agent:
        start, first = step.start, next(iter(self.agents.values()), None)
        system = {"role": "system", "content": f"You are an agent. {words(chance, 3)}"}
        if start in (Start.SAME_SYSTEM, Start.TWIN) and first is not None:
            system = deepcopy(first.shown[0])
        messages = [system, {"role": "user", "content": words(chance, 5)}]
        if start is Start.TWIN and first is not None:
            messages = deepcopy(first.shown[:2])
            self.has_twin = True
        tools = None if start is Start.SIDE else TOOLS
        return Agent(f"agent {step.lane}", tools, messages, deepcopy(messages))

    def _continued(self, agent: Agent, step: Step, chance: Random) -> Expected:
        assert agent.parent is not None
        meaning = next((name for name in step.edits if name in MEANINGFUL), None)
        label = "none"
        for name in step.edits:
            if name == "ids_renamed" and self.has_twin:
                continue  # where two answers read alike, only ids tell them apart
            if name in COSMETIC:
                edited = COSMETIC[name](agent.messages, chance)
                label = label if edited is None else "cosmetic"
                agent.messages = edited or agent.messages
        is_restored = False
        if meaning == "calls_swapped":
            meaning = None if agent.has_swapped_calls else meaning
            agent.has_swapped_calls = True
        if meaning is not None:
            edited = MEANINGFUL[meaning](agent.messages, chance)
            if edited is not None:
                label = meaning
                is_restored = meaning == "reasoning_dropped" and self.episode.keeps_reasoning
                agent.messages = edited
                if not is_restored:
                    kept = self._recorded_start(agent)
                    agent.shown = [*kept, *deepcopy(edited[len(kept) :])]
        before = agent.messages
        tail = self._tail(agent, step, chance)
        agent.messages = [*before, *tail]
        agent.shown = [*agent.shown, *deepcopy(tail)]
        self.counts[f"edit {label}"] += 1
        is_same = label in ("none", "cosmetic") or is_restored
        ended = agent.parent.sampled.finish != "length"
        edits = self._template_edits(before, tail) and not self.episode.keeps_reasoning
        return Expected(is_same and ended and not edits, is_same, label)

    def _recorded_start(self, agent: Agent) -> Messages:
        """What was recorded of the messages: the longest, reasoning left out but not changed."""
        if not self.episode.keeps_reasoning:
            return []
        sent = agent.messages
        for recorded in sorted(agent.recorded, key=len, reverse=True):
            pairs = list(zip(recorded, sent, strict=False))
            if len(pairs) == len(recorded) and all(
                _said(old) == _said(new) and _thought(new) in ("", _thought(old))
                for old, new in pairs
            ):
                return recorded
        return []

    def _tail(self, agent: Agent, step: Step, chance: Random) -> Messages:
        calls = agent.messages[-1].get("tool_calls") or []
        tail = [
            {"role": "tool", "tool_call_id": call["id"], "content": words(chance, 4)}
            for call in calls
        ]
        if step.user_follows or not calls:
            tail.append({"role": "user", "content": words(chance, 4)})
        return tail

    def _template_edits(self, before: Messages, tail: Messages) -> bool:
        """Whether the template drops reasoning because of this tail."""
        if not self.episode.drops_thinking or all(m["role"] != "user" for m in tail):
            return False
        users = [i for i, message in enumerate(before) if message["role"] == "user"]
        current = before[users[-1] + 1 :] if users else before
        return any(_thought(message) for message in current)

    def _request(self, agent: Agent, chance: Random) -> ChatRequest:
        body: dict[str, Any] = {"model": "m", "messages": agent.messages, "stream": True}
        if agent.tools is not None:
            body["tools"] = agent.tools
        separators = chance.choice([(",", ":"), (", ", ": ")])
        raw = json.dumps(body, ensure_ascii=chance.random() < 0.5, separators=separators)
        return parse_chat(raw.encode(), agent.request)

    # -- what the lineage makes of it

    async def _planned(self, agent: Agent, expected: Expected) -> Planned:
        assert agent.request is not None
        planned = await self.lineage.plan(agent.request)
        self._check_mode(planned, expected)
        self._check_lane(agent, planned, expected)
        if planned.mode == "spliced":
            self._check_spliced(agent, planned)
        else:
            whole = self.engine.text(_viewed(_restored(agent)), agent.tools)
            if self.engine.tokenizer.encode(whole) != list(planned.prompt_ids):
                got = self.engine.tokenizer.decode(planned.prompt_ids)
                raise Violation(
                    f"a whole render is not what the template makes of the messages:"
                    f" {_first_difference(whole, got)}"
                )
        return planned

    def _check_mode(self, planned: Planned, expected: Expected) -> None:
        is_spliced = planned.mode == "spliced"
        self.counts["spliced" if is_spliced else "rendered"] += 1
        if is_spliced != expected.is_spliced:
            want = "spliced" if expected.is_spliced else "rendered whole"
            raise Violation(f"edit {expected.label}: {want} was right, it is {planned.mode}")

    def _check_lane(self, agent: Agent, planned: Planned, expected: Expected) -> None:
        owner = self.owners.setdefault(planned.lane, agent.name)
        if owner != agent.name:
            raise Violation(f"{owner} and {agent.name} share a lane")
        if expected.is_echo and planned.lane != agent.product_lane:
            raise Violation(f"{agent.name} was continued in another lane")
        agent.product_lane = planned.lane

    def _check_spliced(self, agent: Agent, planned: Planned) -> None:
        assert agent.parent is not None
        before, ids = agent.parent.sequence, list(planned.prompt_ids)
        if ids[: len(before)] != before:
            raise Violation("a spliced prompt does not begin with what was read and sampled")
        suffix = ids[len(before) :]
        whole = self.engine.text(_viewed(agent.shown), agent.tools)
        whole_ids = self.engine.tokenizer.encode(whole)
        if not suffix or whole_ids[-len(suffix) - 1 :] != [before[-1], *suffix]:
            raise Violation("the suffix is not what ends the whole render")
        if self.episode.drops_thinking:
            return  # the render of today lacks what the prompts of yesterday showed
        decoded = self.engine.tokenizer.decode(ids)
        if read_prompt(decoded) != read_prompt(whole):
            raise Violation("the decoded prompt does not say what the messages say")

    # -- what comes of it

    def _sampled(self, agent: Agent, step: Step, chance: Random, *, cut: bool) -> Sampled:
        if agent.tools is None:
            reply = invented_reply(chance, reasons=step.reasons, n_calls=0, says=True)
        else:
            reply = invented_reply(
                chance, reasons=step.reasons, n_calls=step.n_calls, says=step.says
            )
        limit = None
        if cut:
            whole = self.engine.sample(reply, step.seed, tools=True, max_tokens=None)
            limit = 1 + chance.randrange(max(1, len(whole.ids) - 1))
        spelling = chance.getrandbits(32)
        tools = agent.tools is not None
        return self.engine.sample(reply, spelling, tools=tools, max_tokens=limit)

    async def _commit(
        self, agent: Agent, step: Step, chance: Random, planned: Planned, expected: Expected
    ) -> dict[str, Any]:
        assert agent.request is not None
        sampled = self._sampled(agent, step, chance, cut=step.end is End.CUT_BY_LENGTH)
        call_id, reply = await self.lineage.commit(
            agent.request, planned, sampled, CallState.COMMITTED
        )
        arrived = step.end is not End.ECHOED
        if step.end in (End.ECHOED, End.ANSWERED_LATER):
            self.lineage.mark(call_id, CallState.UNDELIVERED)
        if arrived:
            self.lineage.mark(call_id, CallState.DELIVERED)
        if expected.is_echo and agent.parent is not None:
            agent.parent.is_echoed = True
        self.records.append(Record(call_id, agent.name, planned.prompt_ids, sampled, arrived))
        return reply

    async def _answered(
        self, agent: Agent, step: Step, chance: Random, planned: Planned, expected: Expected
    ) -> None:
        reply = await self._commit(agent, step, chance, planned, expected)
        message = as_harness_has_it(reply)
        agent.messages = [*agent.messages, message]
        agent.shown = [*agent.shown, deepcopy(message)]
        agent.recorded.append(agent.shown)
        agent.parent = self.records[-1]

    async def finish(self) -> None:
        """Check the training rows."""
        for name in list(self.pending):
            await self._settle(name)
        trained: Counter[str] = Counter()
        by_id = {record.call_id: record for record in self.records}
        for row in self.lineage.sequences():
            n_in_row = 0
            for boundary in row.calls:
                if not boundary.is_trained:
                    continue
                record = by_id.get(str(boundary.call_id))
                if record is None:
                    raise Violation("a call that was never answered is trained")
                span = slice(boundary.start_out, boundary.end_out)
                trained[record.call_id] += 1
                n_in_row += len(record.sampled.ids)
                self._check_row(row, span, record)
            if row.n_trained != n_in_row:
                raise Violation("tokens are trained that nobody sampled")
        for record in self.records:
            want = int(record.is_delivered or record.is_echoed)
            if trained[record.call_id] != want:
                raise Violation(f"a call is trained {trained[record.call_id]} times for {want}")
        self.counts["calls"] += len(self.records)
        self.counts["trained tokens"] += sum(
            len(record.sampled.ids) for record in self.records if trained[record.call_id]
        )

    def _check_row(self, row: Sequence, span: slice, record: Record) -> None:
        if list(row.input_ids[span]) != record.sampled.ids:
            raise Violation("a trained token is not the sampled one")
        if row.loss_mask[span] != b"\x01" * len(record.sampled.ids):
            raise Violation("a sampled token is masked")
        if row.logprobs[span] != array("f", record.sampled.logprobs):
            raise Violation("a logprob is not the recorded one")
        if list(row.input_ids[: span.start]) != list(record.prompt_ids):
            raise Violation("a token is trained after another prompt than it was sampled from")


def _first_difference(want: str, got: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(want, got, strict=False)) if a != b), 0)
    return f"...{want[max(0, at - 30) : at + 40]!r} for {got[max(0, at - 30) : at + 40]!r}"


def _reasoning(message: dict[str, Any]) -> str:
    return message.get("reasoning") or message.get("reasoning_content") or ""


def _thought(message: dict[str, Any]) -> str:
    return _reasoning(message).strip()


def _said(message: dict[str, Any]) -> tuple[str, str, list[Any]]:
    """What a message says, reasoning left out, however it is spelled."""
    text = text_of(message)
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return (
        message["role"],
        text.strip() if message["role"] == "assistant" else text,
        [(call["name"], _comparable(call["arguments"])) for call in calls],
    )


def as_harness_has_it(reply: dict[str, Any]) -> dict[str, Any]:
    """Return the message that a harness keeps of a reply."""
    message: dict[str, Any] = {"role": "assistant", "content": reply["content"]}
    if reply.get("reasoning"):
        message["reasoning"] = message["reasoning_content"] = reply["reasoning"]
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": call["arguments"]},
        }
        for call in reply.get("tool_calls") or ()
    ]
    return message | ({"tool_calls": calls} if calls else {})


def _restored(agent: Agent) -> Messages:
    """The messages as sent, with the reasoning that the history policy puts back."""
    return [
        {**sent, "reasoning": _reasoning(shown)}
        if sent["role"] == "assistant" and _thought(shown) and not _thought(sent)
        else sent
        for sent, shown in zip(agent.messages, agent.shown, strict=True)
    ]


def _viewed(messages: Messages) -> Messages:
    """The messages as an engine hands them to its template."""
    out: Messages = []
    for message in messages:
        view: dict[str, Any] = {"role": message["role"], "content": text_of(message)}
        thought = _reasoning(message)
        if thought:
            view["reasoning"] = thought
        calls = [
            {"function": {"name": c["function"]["name"], "arguments": _object(c["function"])}}
            for c in message.get("tool_calls") or ()
        ]
        out.append(view | ({"tool_calls": calls} if calls else {}))
    return out


def _object(function: dict[str, Any]) -> str:
    text = function["arguments"]
    return text if isinstance(_value(text), dict) and text.strip() else "{}"


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


_CALL = re.compile(r'<tool_call>\s*\{"name": "([^"]*)", "arguments": (.*?)\}\s*</tool_call>', re.S)


def read_prompt(text: str) -> list[Any]:
    """What a rendered conversation says, told back from its text: spelling is left out."""
    out: list[Any] = []
    for segment in text.split("<|im_start|>")[1:]:
        role, _, body = segment.partition("\n")
        body = body.removesuffix("\n").removesuffix("<|im_end|>")
        if role != "assistant":
            out.append((role, body))
            continue
        thought = ""
        if body.startswith("<think>"):
            thought, _, body = body.removeprefix("<think>").partition("</think>")
        calls = [(name, _comparable(arguments)) for name, arguments in _CALL.findall(body)]
        out.append((role, thought.strip(), _CALL.sub("", body).strip(), calls))
    return out


def _comparable(text: str) -> str:
    """Arguments by value: true is not 1, 1.0 is."""
    found = _value(text)
    if not isinstance(found, dict):
        return "{}"
    return json.dumps(_numbers_alike(found), sort_keys=True)


def _numbers_alike(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _numbers_alike(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_numbers_alike(each) for each in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
