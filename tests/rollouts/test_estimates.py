"""pass@k without bias, and intervals that respect tasks."""

import itertools
import math
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budwood.rollouts.estimates import interval_over_tasks, pass_at_k

SHARES = st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=6), min_size=1)


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.data())
def test_pass_at_k_is_the_share_of_all_choices_of_k_with_a_pass(attempts, data):
    k = data.draw(st.integers(1, len(attempts)))
    choices = list(itertools.combinations(attempts, k))
    expected = fmean(any(choice) for choice in choices)
    assert math.isclose(pass_at_k(len(attempts), sum(attempts), k), expected, abs_tol=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4)])
def test_pass_at_k_refuses_what_can_not_be(n, c, k):
    with pytest.raises(ValueError, match="wants"):
        pass_at_k(n, c, k)


@given(SHARES)
def test_an_interval_holds_its_mean_over_tasks_and_stays_in_bounds(tasks):
    found = interval_over_tasks(tasks)
    assert found is not None
    assert math.isclose(found.value, fmean(map(fmean, tasks)))
    assert 0.0 <= found.low <= found.value <= found.high <= 1.0


@given(SHARES, st.integers(2, 4))
def test_attempts_that_only_repeat_their_task_make_no_interval_narrower(tasks, times):
    # Copies of an attempt say nothing new of the task.
    once = interval_over_tasks([[task[0]] for task in tasks])
    copied = interval_over_tasks([[task[0]] * times for task in tasks])
    assert once is not None
    assert copied is not None
    assert math.isclose(once.low, copied.low)
    assert math.isclose(once.high, copied.high)


def test_wilsons_interval_for_independent_tasks():
    # 8 of 10, z = 1.96: the textbook's (0.4902, 0.9433).
    found = interval_over_tasks([[1.0]] * 8 + [[0.0]] * 2)
    assert found is not None
    assert (round(found.low, 4), round(found.high, 4)) == (0.4902, 0.9433)


def test_where_all_agree_the_tasks_are_counted_and_nothing_is_certain():
    found = interval_over_tasks([[1.0] * 100] * 3)
    assert found is not None
    assert found.high == 1.0
    assert found.low < 0.5


def test_tasks_without_an_attempt_are_left_out():
    assert interval_over_tasks([[], []]) is None
    assert interval_over_tasks([[1.0], []]) == interval_over_tasks([[1.0]])
