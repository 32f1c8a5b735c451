"""Advantages, masks and weights: by hand, and as properties of any group."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budwood.trainers import (
    AdvantageSettings,
    RowsError,
    advantages,
    grpo_batch,
    sft_batch,
)
from budwood.trajectory_store import FailureClass, RolloutId

from .sequences import attempt, ledger, sequence, split

np = pytest.importorskip("numpy")

# -- by hand -------------------------------------------------------------------------------------


def test_advantages_of_a_group_computed_by_hand():
    # mean 0.5; deviations 0.5 0.5 -0.5 -0.5; variance 1 / 3, so std 0.57735
    worth = 0.5 / (math.sqrt(1 / 3) + 1e-4)
    assert advantages([1, 1, 0, 0]) == pytest.approx([worth, worth, -worth, -worth])
    assert worth == pytest.approx(0.865875, abs=1e-6)
    # mean 1; deviations 2 -1 -1; variance 6 / 2, so std 1.73205
    assert advantages([3, 0, 0], AdvantageSettings(eps=0)) == pytest.approx(
        [1.1547005, -0.5773503, -0.5773503]
    )


def test_advantages_without_scale_and_against_the_others():
    no_std = AdvantageSettings(scale="none")
    assert advantages([3, 0, 0], no_std) == pytest.approx([2, -1, -1])
    others = AdvantageSettings(scale="none", baseline="leave_one_out")
    # 3 - 0; 0 - 1.5; 0 - 1.5
    assert advantages([3, 0, 0], others) == pytest.approx([3, -1.5, -1.5])


def test_a_group_that_says_nothing_has_no_advantages():
    assert advantages([]) is None
    assert advantages([1.0]) is None
    assert advantages([0.3, 0.3, 0.3]) is None


def test_rows_masks_and_weights_of_a_group_computed_by_hand():
    """Two rollouts: one row of 3 trained tokens, and two rows of 1 and 4 (a sub-agent's)."""
    batch = grpo_batch(
        [
            attempt("ro_a", 1.0, sequence("ro_a", [([1, 2], [3, 4]), ([5], [6])])),
            attempt(
                "ro_b",
                0.0,
                sequence("ro_b", [([1, 2], [7])]),
                sequence("ro_b", [([8], [9, 10, 11, 12])], lane="la_sub"),
            ),
        ],
        advantage=AdvantageSettings(eps=0),
    )
    # mean 0.5, std sqrt(0.5): advantages +-0.70711
    up = 0.5 / math.sqrt(0.5)
    assert batch.normaliser == 2
    a, b, sub = batch.rows
    assert a.input_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert a.loss_mask.tolist() == [False, False, True, True, False, True]
    assert a.weights == pytest.approx([0, 0, 1 / 3, 1 / 3, 0, 1 / 3])
    assert a.advantages == pytest.approx([0, 0, up, up, 0, up])
    assert a.old_logprobs == pytest.approx([0, 0, -0.4, -0.5, 0, -0.7])
    assert b.weights == pytest.approx([0, 0, 1 / 5])
    assert sub.weights == pytest.approx([0, 1 / 5, 1 / 5, 1 / 5, 1 / 5])
    assert sub.advantages == pytest.approx([0, -up, -up, -up, -up])
    assert batch.left_out == {}
    by_row = grpo_batch([attempt("ro_a", 1.0), attempt("ro_b", 0.0)], weight="row")
    assert by_row.normaliser == 2
    by_token = grpo_batch([attempt("ro_a", 1.0), attempt("ro_b", 0.0)], weight="token")
    assert by_token.normaliser == 6
    assert by_token.rows[0].weights == pytest.approx([0, 0, 1, 1, 0, 1])


def test_what_is_left_out_is_counted():
    batch = grpo_batch(
        [
            attempt("ro_1", 1.0),
            attempt("ro_2", 0.0, sequence("ro_2", [([1] * 50, [2])])),
            attempt("ro_3", None),
            attempt("ro_4", None, failure_class=FailureClass.VERIFIER),
            attempt("ro_5", 1.0, failure_class=FailureClass.ENGINE),
            attempt("ro_6", 0.0, group="equal"),
            attempt("ro_7", 0.0, group="equal"),
            attempt("ro_8", 1.0, group="single"),
            attempt("ro_9", 1.0, group=None),
            attempt("ro_p", -1.0, failure_class=FailureClass.POLICY),
        ],
        max_tokens=20,
    )
    assert {row.rollout_id for row in batch.rows} == {"ro_1", "ro_p"}
    # The one whose only row is too long is in the baseline: mean of 1, 0 and -1.
    assert batch.advantages[RolloutId("ro_1")] == pytest.approx(1 / (1 + 1e-4))
    assert batch.normaliser == 2
    assert batch.left_out == {
        "class_engine": 1,
        "class_verifier": 1,
        "group_equal": 2,
        "group_single": 1,
        "no_rows": 1,
        "reward_none": 1,
        "too_long": 1,
        "ungrouped": 1,
    }


def test_a_token_trained_twice_or_without_its_logprob_is_refused():
    once = sequence("ro_a", [([1], [2])])
    with pytest.raises(RowsError, match="trained twice"):
        grpo_batch([attempt("ro_a", 1.0, once, replace(once, branch=1)), attempt("ro_b", 0.0)])
    with pytest.raises(RowsError, match="given twice"):
        grpo_batch([attempt("ro_a", 1.0), attempt("ro_a", 0.0)])
    unknown = attempt("ro_a", 1.0, sequence("ro_a", [([1], [2])], logprobs=[float("nan")]))
    with pytest.raises(RowsError, match="no logprob"):
        grpo_batch([unknown, attempt("ro_b", 0.0)])
    assert sft_batch([unknown]).n_trained == 1


def test_imitation_counts_each_rollout_once_and_needs_no_reward():
    batch = sft_batch(
        [attempt("ro_a", None), attempt("ro_b", None, sequence("ro_b", [([1], [2])]))]
    )
    assert batch.normaliser == 2
    assert [row.weights.sum() for row in batch.rows] == pytest.approx([1, 1])
    assert set(batch.rows[0].advantages.tolist()) == {0.0, 1.0}


def test_shuffled_advantages_are_the_same_values_in_another_place():
    group = [attempt(f"ro_{i}", float(i)) for i in range(6)]
    true = grpo_batch(group)
    control = grpo_batch(group, shuffle=random.Random(1))
    assert sorted(control.advantages.values()) == sorted(true.advantages.values())
    assert control.advantages != true.advantages
    again = grpo_batch(group[::-1], shuffle=random.Random(1))
    assert again.advantages == control.advantages


# -- properties ----------------------------------------------------------------------------------

tokens = st.lists(st.integers(0, 999), min_size=1, max_size=4)
turns = st.lists(st.tuples(tokens, tokens), min_size=1, max_size=4)
rewards = st.sampled_from([0.0, 0.25, 1.0, -1.0])


@st.composite
def groups(draw):
    """One to three groups of rollouts with one to three rows each."""
    made = []
    for group in range(draw(st.integers(1, 3))):
        for member in range(draw(st.integers(1, 5))):
            name = f"ro_{group}{member}"
            lanes = draw(st.lists(turns, min_size=1, max_size=3))
            rows = [sequence(name, t, lane=f"la_{i}") for i, t in enumerate(lanes)]
            made.append(attempt(name, draw(rewards), *rows, group=f"g{group}"))
    return made


settings_of = st.sampled_from(
    [
        AdvantageSettings(),
        AdvantageSettings(scale="none"),
        AdvantageSettings(baseline="leave_one_out"),
    ]
)
without_rows = st.sampled_from(["rollout", "token"])
modes = st.sampled_from(["rollout", "row", "token"])


@given(groups(), settings_of, modes, st.randoms(use_true_random=False))
def test_the_order_of_rollouts_and_rows_changes_nothing(made, advantage, weight, order):
    before = ledger(grpo_batch(made, advantage=advantage, weight=weight))
    mixed = []
    for one in order.sample(made, len(made)):
        rows = list(one.sequences)
        order.shuffle(rows)
        mixed.append(replace(one, sequences=tuple(rows)))
    assert ledger(grpo_batch(mixed, advantage=advantage, weight=weight)) == before


@given(groups(), settings_of, without_rows, st.data())
def test_a_lane_split_in_two_changes_nothing(made, advantage, weight, data):
    before = ledger(grpo_batch(made, advantage=advantage, weight=weight))
    cut = []
    for one in made:
        rows = []
        for row in one.sequences:
            at = data.draw(st.integers(0, len(row.calls) - 1))
            rows += split(row, at) if at else [row]
        cut.append(replace(one, sequences=tuple(rows)))
    assert ledger(grpo_batch(cut, advantage=advantage, weight=weight)) == before


@given(
    groups(),
    settings_of,
    modes,
    st.lists(st.sampled_from([*FailureClass]), max_size=4),
    st.randoms(use_true_random=False),
)
def test_rollouts_whose_reward_is_none_or_whose_class_does_not_count_change_nothing(
    made, advantage, weight, classes, order
):
    before = grpo_batch(made, advantage=advantage, weight=weight)
    more = list(made)
    for number, failure in enumerate(classes):
        reward = None if failure.counts else 1.0
        one = attempt(f"ro_x{number}", reward, group="g0", failure_class=failure)
        more.insert(order.randrange(len(more) + 1), one)
    after = grpo_batch(more, advantage=advantage, weight=weight)
    assert ledger(after) == ledger(before)
    assert after.normaliser == before.normaliser


@given(groups(), settings_of, modes, tokens)
def test_more_context_before_a_row_changes_no_token_s_part(made, advantage, weight, context):
    """The tokens before the first sampled one are context, however many there are."""
    before = ledger(grpo_batch(made, advantage=advantage, weight=weight))
    longer = []
    for one in made:
        rows = []
        for row in one.sequences:
            n = len(context)
            ids = row.input_ids[:0]
            ids.extend(context)
            nan = row.logprobs[:0]
            nan.extend([float("nan")] * n)
            calls = tuple(
                replace(c, start_out=c.start_out + n, end_out=c.end_out + n) for c in row.calls
            )
            rows.append(
                replace(
                    row,
                    input_ids=ids + row.input_ids,
                    loss_mask=bytes(n) + row.loss_mask,
                    logprobs=nan + row.logprobs,
                    calls=calls,
                )
            )
        longer.append(replace(one, sequences=tuple(rows)))
    assert ledger(grpo_batch(longer, advantage=advantage, weight=weight)) == before


@given(groups(), settings_of, modes)
def test_the_weights_sum_to_the_normaliser_and_groups_that_say_nothing_add_nothing(
    made, advantage, weight
):
    batch = grpo_batch(made, advantage=advantage, weight=weight)
    total = sum(float(row.weights.sum()) for row in batch.rows)
    assert total == pytest.approx(batch.normaliser)
    more = [*made, *(attempt(f"ro_e{i}", 0.5, group="equal") for i in range(3))]
    after = grpo_batch(more, advantage=advantage, weight=weight)
    assert ledger(after) == ledger(batch)
    assert after.normaliser == batch.normaliser
    if weight == "rollout":
        for rollout_id in {row.rollout_id for row in batch.rows}:
            own = sum(float(r.weights.sum()) for r in batch.rows if r.rollout_id == rollout_id)
            assert own == pytest.approx(1)
