"""Training rows from a tree of calls.

A row runs along one branch of a lane: the prompt and output of a call, then what each later call
added. A call continues its parent's row only where its prompt begins with all tokens that its
parent read and sampled; that is checked on the ids, whatever lineage says. Otherwise, and after a
call without ids, a new row begins.

Loss mask 1 stands on the outputs of calls that are exact, and delivered or shown by a later call
to have arrived. Where rows share a beginning, the longest one trains it and in the others it is
context, so each sampled token is trained exactly once. An output that may not be trained is context
as well. A row ends with its last trained output.

    call    prompt          output    in rows
    a       P               x         P x|p2 y|p3 z     the longest: trains x, y, z
    b       P x p2          y
    c       P x p2 y p3     z
    d       P x q2          w         P x|q2 w          trains w; x is context here
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from .ids import CallId, LaneId, RolloutId
from .records import Boundary, Call, Lane, Sequence
from .secrets import FLAG
from .tokens import Piece, floats_from_bytes, ids_from_bytes

MASKED_FLAGS = frozenset({"constrained", "greedy", "mixed"})
"""Flags of outputs that were not sampled from the policy's own distribution, or not from one."""
SHARED = "shared_prefix"
"""The reason in a row for outputs that a longer row trains."""


class CallTokens(Protocol):
    """Proved token arrays of calls, by seq."""

    def piece(self, seq: int) -> Piece:
        """Return what a call's row adds to its base."""
        ...

    def full(self, seq: int) -> bytes:
        """Return prompt + output, little-endian u32."""
        ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which calls may be trained."""

    lanes: frozenset[str] = frozenset({"main", "sub-agent"})
    include_inexact: bool = False
    include_secret: bool = False
    allow: frozenset[str] = frozenset()
    """Flags of `MASKED_FLAGS` that are trained all the same (`greedy` for imitation)."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A rollout's rows, and the calls whose output is in none of them trained, by reason."""

    sequences: list[Sequence]
    dropped: dict[str, int]


@dataclass(slots=True, eq=False)
class _Node:
    call: Call
    seq: int
    start: int
    """Tokens before the output: the prompt's length."""
    end: int
    reason: str | None
    """Why the output is not trained; None where it is."""
    parent: _Node | None = None
    children: list[_Node] = field(default_factory=list["_Node"])
    reach: int = 0
    """Length at the last trained output at or after this call; 0 where there is none."""

    def heir(self) -> _Node | None:
        """Return the child whose branch is longest."""
        ahead = [child for child in self.children if child.reach]
        return max(ahead, key=lambda child: (child.reach, child.seq), default=None)


def build(
    rollout_id: RolloutId,
    calls: Iterable[Call],
    lanes: Mapping[LaneId, Lane],
    tokens: CallTokens,
    wanted: Wanted,
) -> Rows:
    """Return the rows of a rollout's calls."""
    calls = list(calls)
    dropped: Counter[str] = Counter()
    echoed = {call.parent for call in calls if call.parent is not None}
    nodes: dict[CallId, _Node] = {}
    for call in calls:
        why = _excluded(call, lanes, wanted)
        if why is None:
            nodes[call.id] = node = _node(call, call.id in echoed, wanted)
            why = node.reason
        if why is not None:
            dropped[why] += 1
    ordered = sorted(nodes.values(), key=lambda node: node.seq)
    _connect(ordered, nodes, tokens)
    rows = [_row(rollout_id, lanes, tokens, *branch) for branch in _branches(ordered)]
    return Rows(_numbered(rows), dict(dropped))


def _excluded(call: Call, lanes: Mapping[LaneId, Lane], wanted: Wanted) -> str | None:
    """Return why a call is in no row at all, not even as context."""
    if not call.state.is_complete:
        return call.state.value
    if call.lane not in lanes or lanes[call.lane].kind.value not in wanted.lanes:
        return "lane"
    if not call.has_ids or call.seq is None:
        return "no_ids"
    if FLAG in call.flags and not wanted.include_secret:
        return FLAG
    return None


def _node(call: Call, is_echoed: bool, wanted: Wanted) -> _Node:
    assert call.seq is not None
    assert call.n_prompt is not None
    assert call.n_out is not None
    end = call.n_prompt + call.n_out
    return _Node(call, call.seq, call.n_prompt, end, _masked(call, is_echoed, wanted))


def _masked(call: Call, is_echoed: bool, wanted: Wanted) -> str | None:
    """Return why a call's output is context only."""
    if not call.exact and not wanted.include_inexact:
        return "inexact"
    flags = set(call.flags)
    if _policy(call) is None and call.policy_after is not None:
        flags.add("mixed")
    masking = sorted((flags & MASKED_FLAGS) - wanted.allow)
    if masking:
        return masking[0]
    if not (call.is_delivered or is_echoed):
        return "undelivered"
    return None if call.n_out else "empty"


def _policy(call: Call) -> int | None:
    """Return the version that sampled the call; None where unknown or more than one."""
    if call.policy_after is None:
        return call.policy_before
    return call.policy_before if call.policy_before == call.policy_after else None


def _connect(ordered: list[_Node], nodes: Mapping[CallId, _Node], tokens: CallTokens) -> None:
    for node in ordered:
        parent = nodes.get(node.call.parent) if node.call.parent else None
        if parent is None or parent.seq >= node.seq or parent.call.lane != node.call.lane:
            continue
        if _extends(node, parent, tokens):
            node.parent = parent
            parent.children.append(node)
    for node in reversed(ordered):
        own = node.end if node.reason is None else 0
        node.reach = max([own, *(child.reach for child in node.children)])


def _extends(node: _Node, parent: _Node, tokens: CallTokens) -> bool:
    if node.start < parent.end:
        return False
    piece = tokens.piece(node.seq)
    if piece.base == parent.seq and piece.common == parent.end:
        return True  # compared when it was written, proved by checksum since
    return tokens.full(node.seq).startswith(tokens.full(parent.seq))


def _branches(ordered: list[_Node]) -> list[tuple[list[_Node], int]]:
    """Return each branch from its root, with the index of the first call that it trains."""
    found: list[tuple[list[_Node], int]] = []
    for node in ordered:
        if not node.reach or (node.parent and node.parent.heir() is node):
            continue
        before: list[_Node] = []
        above = node.parent
        while above is not None:
            before.append(above)
            above = above.parent
        branch = before[::-1]
        at: _Node | None = node
        while at is not None:
            branch.append(at)
            at = at.heir()
        found.append((branch, len(before)))
    return found


def _row(
    rollout_id: RolloutId,
    lanes: Mapping[LaneId, Lane],
    tokens: CallTokens,
    branch: list[_Node],
    first_trained: int,
) -> Sequence:
    last = branch[-1]
    mask = bytearray(last.end)
    logprobs = array("f", [float("nan")]) * last.end
    dropped: Counter[str] = Counter()
    boundaries: list[Boundary] = []
    is_exact = True
    for i, node in enumerate(branch):
        why = node.reason or (SHARED if i < first_trained else None)
        if why is None:
            mask[node.start : node.end] = b"\x01" * (node.end - node.start)
            is_exact &= node.call.exact
        else:
            dropped[why] += 1
        known = tokens.piece(node.seq).logprobs
        if known:
            logprobs[node.start : node.end] = floats_from_bytes(known)
        boundaries.append(
            Boundary(node.call.id, node.start, node.end, _policy(node.call), why is None)
        )
    return Sequence(
        rollout_id=rollout_id,
        lane=lanes[last.call.lane],
        branch=0,
        call_ids=tuple(node.call.id for node in branch),
        input_ids=ids_from_bytes(tokens.full(last.seq)),
        loss_mask=bytes(mask),
        logprobs=logprobs,
        calls=tuple(boundaries),
        is_exact=is_exact,
        dropped=dict(dropped),
    )


def _numbered(rows: list[Sequence]) -> list[Sequence]:
    """Number the rows of each lane, in the order of the first call that only they hold."""
    counts: Counter[LaneId] = Counter()
    numbered: list[Sequence] = []
    for row in rows:
        numbered.append(replace(row, branch=counts[row.lane.id]))
        counts[row.lane.id] += 1
    return numbered
