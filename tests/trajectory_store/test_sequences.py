"""Rows of training tokens, over random trees of calls and on a real store."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budwood.trajectory_store import (
    Call,
    CallId,
    CallState,
    FailureClass,
    Lane,
    LaneId,
    LaneKind,
    RolloutId,
)
from budwood.trajectory_store.sequences import MASKED_FLAGS, Rows, Wanted, build
from budwood.trajectory_store.tokens import Piece, to_bytes

ROLLOUT = RolloutId("ro_x")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
STATES = [*[CallState.DELIVERED] * 6, CallState.UNDELIVERED, CallState.COMMITTED]
BROKEN = [CallState.ABORTED, CallState.FAILED, CallState.LOST, CallState.SYNTHETIC]


@dataclass
class Tree:
    """Calls with their tokens; each sampled token is a number of its own."""

    calls: list[Call] = field(default_factory=list[Call])
    prompts: dict[CallId, list[int]] = field(default_factory=dict[CallId, list[int]])
    outs: dict[CallId, list[int]] = field(default_factory=dict[CallId, list[int]])
    lanes: dict[LaneId, Lane] = field(default_factory=dict[LaneId, Lane])
    linked: bool = True
    """Whether rows are stored as deltas on their parent's, or each whole."""

    def piece(self, seq: int) -> Piece:
        call = self.calls[seq - 1]
        parent = next((c for c in self.calls if c.id == call.parent), None)
        base, common = None, 0
        if self.linked and parent is not None and parent.has_ids:
            full = self.prompts[parent.id] + self.outs[parent.id]
            pairs = zip(full, self.prompts[call.id], strict=False)
            same = [a == b for a, b in pairs]
            base, common = parent.seq, same.index(False) if False in same else len(same)
        out = self.outs[call.id]
        logprobs = to_bytes(array("f", [-float(x % 7) for x in out]))
        n_prompt = len(self.prompts[call.id])
        return Piece(seq, base, common, 0, n_prompt, len(out), b"", b"", logprobs, b"", {})

    def full(self, seq: int) -> bytes:
        call = self.calls[seq - 1]
        return to_bytes(array("I", self.prompts[call.id] + self.outs[call.id]))

    def rows(self, **wanted: Any) -> Rows:
        return build(ROLLOUT, self.calls, self.lanes, self, Wanted(**wanted))

    def call(self, prompt: list[int] | None, out: list[int], **kw: Any) -> CallId:
        """Add a call."""
        seq = len(self.calls) + 1
        call_id = CallId(f"ca_{seq}")
        lane = kw.pop("lane", LaneId("la_main"))
        if lane not in self.lanes:
            self.lanes[lane] = Lane(id=lane, rollout_id=ROLLOUT, created_at=NOW)
        values: dict[str, Any] = {name: None for name in Call.__slots__}
        values |= {
            "id": call_id,
            "rollout_id": ROLLOUT,
            "seq": seq,
            "lane": lane,
            "state": CallState.DELIVERED,
            "exact": True,
            "flags": frozenset(),
            "echoed": False,
            "failure_class": FailureClass.NONE,
            "n_prompt": None if prompt is None else len(prompt),
            "n_out": None if prompt is None else len(out),
        }
        self.calls.append(Call(**values | kw))
        self.prompts[call_id], self.outs[call_id] = prompt or [], out
        return call_id


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """A rollout of branches, edits, retries, cuts, lanes and calls without ids."""
    tree = Tree(linked=draw(st.booleans()))
    fresh = iter(range(1000, 100_000))
    for kind in (LaneKind.MAIN, LaneKind.SIDE):
        lane = LaneId(f"la_{kind}")
        tree.lanes[lane] = Lane(id=lane, rollout_id=ROLLOUT, kind=kind, created_at=NOW)
    for _ in range(draw(st.integers(1, 12))):
        parent = draw(st.sampled_from([None, *tree.calls]))
        lane = parent.lane if parent else draw(st.sampled_from(list(tree.lanes)))
        prompt = list(tree.prompts[parent.id] + tree.outs[parent.id]) if parent else []
        edit = draw(st.sampled_from(["none"] * 6 + ["cut", "change"]))
        if prompt and edit == "cut":
            prompt = prompt[: draw(st.integers(0, len(prompt) - 1))]
        elif prompt and edit == "change":
            prompt[draw(st.integers(0, len(prompt) - 1))] = 1
        prompt += draw(st.lists(st.integers(2, 9), max_size=3))
        out = [next(fresh) for _ in range(draw(st.integers(0, 3)))]
        tree.call(
            None if draw(st.integers(0, 9)) == 0 else prompt,
            out,
            parent=parent.id if parent else None,
            lane=lane,
            state=draw(st.sampled_from(STATES + BROKEN[:1])),
            exact=draw(st.integers(0, 9)) > 0,
            flags=frozenset(draw(st.sampled_from([()] * 9 + [("greedy",), ("secret",)]))),
            policy_before=3,
            policy_after=draw(st.sampled_from([3] * 9 + [4])),
        )
    return tree


def may_train(tree: Tree, call: Call) -> bool:
    """Say it again, from the rules alone."""
    echoed = any(c.parent == call.id for c in tree.calls)
    return (
        call.state.is_complete
        and call.has_ids
        and call.exact
        and tree.lanes[call.lane].kind is not LaneKind.SIDE
        and (call.state is CallState.DELIVERED or echoed)
        and not call.flags & (MASKED_FLAGS | {"secret"})
        and call.policy_before == call.policy_after
        and bool(call.n_out)
    )


@settings(max_examples=400)
@given(trees())
def test_each_trainable_token_is_trained_exactly_once_and_no_other(tree: Tree) -> None:
    rows = tree.rows()
    trained = Counter(
        token
        for row in rows.sequences
        for token, bit in zip(row.input_ids, row.loss_mask, strict=True)
        if bit
    )
    wanted = [t for call in tree.calls if may_train(tree, call) for t in tree.outs[call.id]]
    assert trained == Counter(wanted)
    assert sum(rows.dropped.values()) == sum(not may_train(tree, c) for c in tree.calls)


@settings(max_examples=400)
@given(trees())
def test_a_row_is_what_was_read_and_sampled_at_each_of_its_calls(tree: Tree) -> None:
    for row in tree.rows().sequences:
        ids = list(row.input_ids)
        for boundary in row.calls:
            prompt, out = tree.prompts[boundary.call_id], tree.outs[boundary.call_id]
            assert ids[: boundary.start_out] == prompt
            assert ids[boundary.start_out : boundary.end_out] == out
        sampled = {i for b in row.calls for i in range(b.start_out, b.end_out)}
        for i, logprob in enumerate(row.logprobs):
            assert math.isnan(logprob) == (i not in sampled)
            assert logprob == -float(ids[i] % 7) or i not in sampled
        assert row.loss_mask[-1] == 1
        assert row.calls[-1].end_out == len(ids)
        assert row.n_trained == sum(b.end_out - b.start_out for b in row.calls if b.is_trained)


@given(trees())
def test_rows_do_not_depend_on_how_tokens_are_stored(tree: Tree) -> None:
    linked, whole = (replace(tree, linked=is_linked) for is_linked in (True, False))
    assert [r.call_ids for r in linked.rows().sequences] == [
        r.call_ids for r in whole.rows().sequences
    ]


def spans(row: Any) -> Mapping[str, bool]:
    return {b.call_id: b.is_trained for b in row.calls}


def test_a_shared_prefix_is_trained_in_the_longest_branch() -> None:
    tree = Tree()
    a = tree.call([1], [10])
    b = tree.call([1, 10, 2], [20], parent=a)
    short = tree.call([1, 10, 3], [30], parent=a)
    c = tree.call([1, 10, 2, 20, 4], [40], parent=b)
    long, other = tree.rows().sequences
    assert spans(long) == {a: True, b: True, c: True}
    assert spans(other) == {a: False, short: True}
    assert other.dropped == {"shared_prefix": 1}
    assert (long.branch, other.branch) == (0, 1)


def test_an_inexact_output_is_context_unless_asked_for() -> None:
    tree = Tree()
    a = tree.call([1], [10], exact=False)
    b = tree.call([1, 10, 2], [20], parent=a)
    (row,) = tree.rows().sequences
    assert spans(row) == {a: False, b: True}
    assert (row.is_exact, row.dropped) == (True, {"inexact": 1})
    (row,) = tree.rows(include_inexact=True).sequences
    assert spans(row) == {a: True, b: True}
    assert not row.is_exact


def test_a_call_without_ids_ends_the_row() -> None:
    tree = Tree()
    a = tree.call([1], [10])
    text = tree.call(None, [], parent=a)
    b = tree.call([1, 10, 2, 7, 3], [20], parent=text)
    assert [spans(row) for row in tree.rows().sequences] == [{a: True}, {b: True}]
    assert tree.rows().dropped == {"no_ids": 1}


def test_a_child_that_reads_other_tokens_begins_a_new_row() -> None:
    tree = Tree()
    a = tree.call([1], [10, 11])
    b = tree.call([1, 10], [20], parent=a)
    c = tree.call([1, 10, 12, 2], [30], parent=a)
    assert [list(row.call_ids) for row in tree.rows().sequences] == [[a], [b], [c]]


def test_an_undelivered_answer_is_trained_only_if_a_child_shows_it() -> None:
    tree = Tree()
    a = tree.call([1], [10], state=CallState.UNDELIVERED)
    assert tree.rows().dropped == {"undelivered": 1}
    b = tree.call([1, 10, 2], [20], parent=a)
    (row,) = tree.rows().sequences
    assert spans(row) == {a: True, b: True}


def test_flags_can_be_allowed_and_secrets_asked_for() -> None:
    tree = Tree()
    tree.call([1], [10], flags=frozenset({"greedy"}))
    tree.call([2], [20], flags=frozenset({"secret"}))
    assert tree.rows().dropped == {"greedy": 1, "secret": 1}
    assert len(tree.rows(allow=frozenset({"greedy"})).sequences) == 1
    assert len(tree.rows(include_secret=True).sequences) == 1


@pytest.mark.parametrize("state", BROKEN)
def test_calls_that_did_not_complete_are_counted_by_their_state(state: CallState) -> None:
    tree = Tree()
    tree.call([1], [10], state=state)
    assert (tree.rows().sequences, tree.rows().dropped) == ([], {state.value: 1})


def test_a_store_gives_rows_of_what_it_holds(hand: Any) -> None:
    a = hand.call([1, 2], [3, 4])
    b = hand.call([1, 2, 3, 4, 5], [6], parent=a, prompt_base=a, prompt_common=4)
    side = hand.call([9], [8], lane=hand.lane(LaneKind.SIDE))
    (row,) = hand.store.sequences(hand.rollout_id)
    assert row.call_ids == (a, b)
    assert list(row.input_ids) == [1, 2, 3, 4, 5, 6]
    assert list(row.loss_mask) == [0, 0, 1, 1, 0, 1]
    assert row.lane == hand.lane()
    rows = hand.store.rows(hand.rollout_id, lanes=("main", "side"))
    assert [r.call_ids for r in rows.sequences] == [(a, b), (side,)]
    assert hand.store.rows(hand.rollout_id).dropped == {"lane": 1}
