"""The prefix forest of one rollout: which recorded call an incoming conversation continues.

Every complete call is filed under one key: the hash chain over its canonical request messages
and its canonical reply (`budwood.proxy.call`). An incoming list carries the same chain, one key a
message, so the longest recorded conversation it extends is found by looking keys up from its end
backwards, whatever the number of recorded calls. The chain starts from the tools and template
arguments, so a change of these can never match.

Two calls may share a key (the same text sampled twice). The tool-call ids that the harness sends
back tell them apart, since each was issued once; where there are none the most recent is taken
and the match is marked ambiguous. Ids never decide more than that: a list that holds ids of ours
but no key of ours is a conversation that the harness has edited (`Edited`).

Plain values in and out; the store is the truth, and `lineage.py` feeds this from it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from budwood.trajectory_store import CallId, Turn

from ..call import ChatRequest, Message, extend_chain, reply_message


@dataclass(frozen=True, slots=True)
class Match:
    """The incoming messages `[:n_matched]` are the request and reply of `turn`."""

    turn: Turn
    n_matched: int
    is_ambiguous: bool


@dataclass(slots=True)
class Forest:
    """All complete calls of one rollout, by what they said and by the ids they issued."""

    turns: dict[CallId, Turn] = field(default_factory=dict)
    last_seq: int = 0
    _by_key: dict[bytes, list[Turn]] = field(default_factory=dict)
    _by_bare_key: dict[bytes, list[Turn]] = field(default_factory=dict)
    _by_issued: dict[str, Turn] = field(default_factory=dict)
    _by_body: dict[bytes, list[Turn]] = field(default_factory=dict)

    def add(self, turn: Turn) -> None:
        """File a complete call. Filing the same call again (a changed state) replaces it."""
        self.last_seq = max(self.last_seq, turn.seq)
        old = self.turns.get(turn.id)
        self.turns[turn.id] = turn
        for index, key in (
            (self._by_key, turn.chain_key),
            (self._by_bare_key, turn.bare_key),
            (self._by_body, turn.body_hash),
        ):
            if key:
                same = index.setdefault(key, [])
                if old is not None:
                    same[:] = [other for other in same if other.id != turn.id]
                same.append(turn)
                same.sort(key=lambda other: other.seq)
        for call in (turn.reply or {}).get("tool_calls") or ():
            self._by_issued[call["id"]] = turn

    def match(self, request: ChatRequest, *, bare: bool = False) -> Match | None:
        """The recorded call whose request and reply are the longest prefix of `request`.

        With `bare`, reasoning is left out of the comparison (history policy `keep-reasoning`).
        """
        index = self._by_bare_key if bare else self._by_key
        chain = request.bare_chain if bare else request.chain
        if not index:
            return None
        messages = request.messages
        for n in range(len(messages), 1, -1):
            message = messages[n - 1]
            if message.role != "assistant":
                continue
            turns = index.get(chain[n - 1])
            if turns:
                turn, ambiguous = _told_apart(turns, message)
                return Match(turn, n, ambiguous)
        return None

    def edited(self, messages: Iterable[Message]) -> Turn | None:
        """The latest call whose tool-call ids the list carries, if any."""
        found: Turn | None = None
        for message in messages:
            ids = [call.id for call in message.tool_calls]
            if message.tool_call_id:
                ids.append(message.tool_call_id)
            for issued in ids:
                turn = self._by_issued.get(issued)
                if turn is not None and (found is None or turn.seq > found.seq):
                    found = turn
        return found

    def is_of_one_lane(self, request: ChatRequest, n: int) -> bool:
        """Whether all calls that fit the first `n` messages, reasoning left out, share a lane."""
        return len({t.lane.id for t in self._by_bare_key.get(request.bare_chain[n - 1], ())}) == 1

    def recorded_reasoning(self, request: ChatRequest) -> dict[int, str]:
        """Reasoning of ours that the incoming list lacks, by message position."""
        found: dict[int, str] = {}
        for position, message in enumerate(request.messages):
            if message.role != "assistant" or message.reasoning:
                continue
            turns = self._by_bare_key.get(request.bare_chain[position])
            reasoning = (
                (_told_apart(turns, message)[0].reply or {}).get("reasoning") if turns else None
            )
            if reasoning:
                found[position] = reasoning
        return found

    def reasoning_is_ours(self, request: ChatRequest, n: int) -> bool:
        """Whether all reasoning in the first `n` messages is what was recorded there.

        Reasoning that the harness dropped is no contradiction; reasoning that it changed is.
        """
        for position, message in enumerate(request.messages[:n]):
            if message.role != "assistant" or not message.reasoning:
                continue
            sent = message.reasoning.strip()
            turns = self._by_bare_key.get(request.bare_chain[position], ())
            if not any(((t.reply or {}).get("reasoning") or "").strip() == sent for t in turns):
                return False
        return True

    def same_body(self, body_key: bytes) -> list[Turn]:
        """Complete calls with this very body, oldest first."""
        return list(self._by_body.get(body_key, ()))

    def engine_id(self, issued: str) -> str | None:
        """The engine's own id of a tool call that we issued under `issued`."""
        turn = self._by_issued.get(issued)
        if turn is None:
            return None
        for call in (turn.reply or {}).get("tool_calls") or ():
            if call["id"] == issued:
                return call.get("engine_id")
        return None


def chain_keys(request: ChatRequest, reply: dict) -> tuple[bytes, bytes]:
    """Keys of request + reply, with and without reasoning: what a child's chain will hold."""
    message = reply_message(reply)
    return (
        extend_chain(request.chain[-1], message.digest),
        extend_chain(request.bare_chain[-1], message.bare_digest),
    )


def _told_apart(turns: list[Turn], echoed: Message) -> tuple[Turn, bool]:
    """The turn whose issued ids the echoed message carries; else the latest, and whether a tie."""
    if len(turns) == 1:
        return turns[0], False
    ids = [call.id for call in echoed.tool_calls]
    if ids:
        named = [
            turn
            for turn in turns
            if [call["id"] for call in (turn.reply or {}).get("tool_calls") or ()] == ids
        ]
        if len(named) == 1:
            return named[0], False
    return turns[-1], True
