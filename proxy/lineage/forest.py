"""The prefix forest of one rollout: which recorded call an incoming conversation continues.

Every complete call is filed under one key: the hash chain over its canonical request messages
and its canonical reply (`budwood.proxy.call`). An incoming list carries the same chain, one key a
message, so the longest recorded conversation it extends is found by looking keys up from its end
backwards, whatever the number of recorded calls. The chain starts from the tools and template
arguments, so a change of these can never match.

Two calls may share a key (the same text sampled twice). The tool-call ids that the harness sends
back, of these calls and of those before them, tell them apart, since each was issued once; where
they don't, the most recent is taken and the match is marked ambiguous. Ids never decide more than
that: a list that holds ids of ours but no key of ours is a conversation that the harness has
edited (`edited`).

Plain values in and out; the store is the truth, and `lineage.py` feeds this from it.
"""

from collections.abc import Iterable, Iterator, Sequence
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

        With `bare`, reasoning is left out of the comparison.
        """
        for n, turns in self.fitting(request, bare=bare):
            return self.told_apart(turns, request, n)
        return None

    def fitting(
        self, request: ChatRequest, *, bare: bool = False
    ) -> Iterator[tuple[int, Sequence[Turn]]]:
        """The calls whose request and reply are the first n messages, with n, longest first."""
        index = self._by_bare_key if bare else self._by_key
        chain = request.bare_chain if bare else request.chain
        if not index:
            return
        for n in range(len(request.messages), 1, -1):
            if request.messages[n - 1].role != "assistant":
                continue
            turns = index.get(chain[n - 1])
            if turns:
                yield n, turns

    def told_apart(self, turns: Sequence[Turn], request: ChatRequest, n: int) -> Match:
        """The one of `turns`, which all fit the first `n` messages, that these come from.

        That is the one with the fewest replies on its way that ids prove to be another's; else one
        that fits with its reasoning as well; else the latest.
        """
        if len(turns) == 1:
            return Match(turns[0], n, is_ambiguous=False)
        n_wrong = {turn.id: self._n_wrong(turn, request) for turn in turns}
        fewest = min(n_wrong.values())
        best = [turn for turn in turns if n_wrong[turn.id] == fewest]
        whole = [turn for turn in best if turn.chain_key == request.chain[n - 1]]
        return Match((whole or best)[-1], n, is_ambiguous=len(best) > 1)

    def path(self, turn: Turn) -> Iterator[tuple[Turn, Turn | None]]:
        """A call and those that it continues, each with the one before it, up to the first."""
        here: Turn | None = turn
        while here is not None:
            before = self.turns.get(here.parent) if here.parent else None
            yield here, before
            here = before

    def _n_wrong(self, turn: Turn, request: ChatRequest) -> int:
        """How many replies up to `turn` stand in `request` with ids that another call issued."""
        n = 0
        for each, _ in self.path(turn):
            ids = [call.id for call in request.messages[each.n_messages].tool_calls]
            issuers = [self._by_issued[issued].id for issued in ids if issued in self._by_issued]
            n += any(issuer != each.id for issuer in issuers)
        return n

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
