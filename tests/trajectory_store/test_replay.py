"""Matching, differences and verdicts of a replay, on plain values."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budwood.trajectory_store import CallId
from budwood.trajectory_store.difference import canonical, first_difference
from budwood.trajectory_store.replay import (
    Divergence,
    Kind,
    RecordedCall,
    Replay,
    Request,
    Verdict,
)


def asked(*texts: str, **fields) -> Request:
    roles = ("user", "assistant")
    messages = tuple({"role": roles[i % 2], "text": text} for i, text in enumerate(texts))
    return Request(messages, None, fields)


def call(name: str, request: Request, kind: Kind = Kind.ANSWERED, lane: str = "main"):
    return RecordedCall(CallId(name), lane, request, kind, {"content": name}, "stop")


def test_the_same_requests_in_another_order_are_identical():
    calls = [
        call("a", asked("x")),
        call("b", asked("y"), lane="side"),
        call("c", asked("x", "a", "z")),
    ]
    replay = Replay(calls)
    assert [replay.take(c.request) for c in reversed(calls)] == calls[::-1]
    assert replay.verdict()[0] is Verdict.IDENTICAL


def test_the_same_request_sampled_twice_gets_both_answers_in_order():
    calls = [call("a", asked("x")), call("b", asked("x"))]
    replay = Replay(calls)
    assert [replay.take(asked("x")), replay.take(asked("x"))] == calls
    assert replay.verdict()[0] is Verdict.IDENTICAL


def test_a_changed_tool_output_is_found_at_that_call_with_its_diff():
    replay = Replay([call("a", asked("x")), call("b", asked("x", "a", "line 1\nline 2"))])
    replay.take(asked("x"))
    found = replay.take(asked("x", "a", "line 1\nline 3"))
    assert isinstance(found, Divergence)
    assert found.number == 2
    verdict, text = replay.verdict()
    assert verdict is Verdict.DIFFERS
    assert "call 2 (b, main): message 2 (user), text differs" in text
    assert "-line 2" in text
    assert "+line 3" in text


def test_a_divergence_is_measured_against_the_nearest_open_call():
    calls = [call("a", asked("other lane")), call("b", asked("x", "y", "old"))]
    found = Replay(calls).take(asked("x", "y", "new"))
    assert isinstance(found, Divergence)
    assert found.nearest is calls[1]


def test_fewer_calls_name_the_first_that_is_missing():
    replay = Replay([call("a", asked("x")), call("b", asked("y"))])
    replay.take(asked("x"))
    verdict, text = replay.verdict()
    assert verdict is Verdict.FEWER_OR_MORE
    assert "1 of 2" in text
    assert "call 2 (b, main)" in text


def test_a_call_more_than_recorded_is_said_so():
    replay = Replay([call("a", asked("x"))])
    replay.take(asked("x"))
    replay.take(asked("x"))
    assert replay.verdict() == (
        Verdict.FEWER_OR_MORE,
        "the harness made a call more than was recorded",
    )


def test_failed_and_cut_calls_need_not_be_made_again():
    calls = [
        call("a", asked("x"), Kind.FAILED),
        call("b", asked("x")),
        call("c", asked("y"), Kind.CUT),
    ]
    replay = Replay(calls)
    assert replay.take(asked("x")) is calls[1]
    assert replay.verdict()[0] is Verdict.IDENTICAL
    assert replay.take(asked("y")) is calls[2]
    assert replay.verdict()[0] is Verdict.IDENTICAL


def test_an_ignored_pattern_is_forgiven_and_nothing_else():
    replay = Replay(
        [call("a", asked("in /tmp/ab12 at 10")), call("b", asked("z"))],
        ignore=[re.compile(r"/tmp/\w+")],
    )
    assert isinstance(replay.take(asked("in /tmp/zz99 at 10")), RecordedCall)
    assert isinstance(replay.take(asked("q /tmp/zz99 at 11")), Divergence)


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        (asked("x", temperature=1), asked("x", temperature=0.5), "a field beside the messages"),
        (Request((), tools=[{"a": 1}]), Request((), tools=[{"a": 2}]), "tools"),
        (asked("x", "y"), asked("x"), "the number of messages (2 recorded, 1 now)"),
    ],
)
def test_each_kind_of_difference_is_named(old, new, where):
    found = Replay([call("a", old)]).take(new)
    assert isinstance(found, Divergence)
    assert found.difference is not None
    assert found.difference.where == where


def test_numbers_compare_by_value_and_booleans_are_no_numbers():
    assert canonical({"b": 1, "a": 1.0}) == canonical({"a": 1, "b": 1.0})
    assert canonical([True]) != canonical([1])
    assert first_difference([{"role": "user", "x": True}], [{"role": "user", "x": 1}]) is not None


def test_empty_fields_equal_absent_ones():
    assert (
        first_difference([{"role": "user", "text": "", "tool_calls": []}], [{"role": "user"}])
        is None
    )


@given(st.lists(st.lists(st.text(max_size=3), min_size=1, max_size=4), max_size=8), st.randoms())
def test_a_shuffled_replay_is_always_identical_and_serves_equal_requests(texts, rng):
    calls = [call(str(i), asked(*t)) for i, t in enumerate(texts)]
    replay = Replay(calls)
    shuffled = calls[:]
    rng.shuffle(shuffled)
    for one in shuffled:
        served = replay.take(one.request)
        assert isinstance(served, RecordedCall)
        assert served.request == one.request
    assert replay.verdict()[0] is Verdict.IDENTICAL
    assert replay.is_over
