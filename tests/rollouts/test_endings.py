"""Whose doing the end of a rollout was, row by row, and what a reward may stand beside."""

from dataclasses import dataclass

import pytest

from budwood.harness_adapters import Status
from budwood.rollouts import GatewayFailed, PlaceFailed, Unusable
from budwood.rollouts.endings import Ending, Judged, interrupted, name_failure, outcome_of
from budwood.rollouts.tasks import Verdict
from budwood.sandbox import Cause, Exit, Limit, Lost, NoCapacity, StartFailed
from budwood.trajectory_store import CAUSES, FailureClass, StoreBusy, StoreError, StoreFull


@dataclass
class Call:
    failure_class: FailureClass = FailureClass.NONE
    cause: str | None = None


FINE = Call()
CUT = Call(FailureClass.ENGINE, "cut")
GONE = Call(FailureClass.HARNESS, "client_gone")
TOO_LONG = Call(FailureClass.POLICY, "context_overflow")
SPENT = Call(FailureClass.POLICY, "budget_calls")
PASSED, HONEST_0 = Verdict(reward=1.0), Verdict(reward=0.0)
BROKEN = Verdict(reward=None, failure_class=FailureClass.VERIFIER, cause="reward_missing")
NO_ROOM = Verdict(reward=None, failure_class=FailureClass.VERIFIER, cause="no_room")
EXITED, CRASHED = Exit(0, None, Cause.EXITED), Exit(1, None, Cause.EXITED)


def ended(cause, *limits):
    return Exit(None, 9, cause, frozenset(limits))


def judged(calls, status=Status.DONE, exit=EXITED, verdict=PASSED):
    found = outcome_of(Ending(exit=exit, status=status, calls=calls, verdict=verdict))
    return found.reward, found.failure_class.value, found.cause


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (judged([FINE]), (1.0, "none", None)),
        (judged([FINE], verdict=HONEST_0), (0.0, "none", None)),
        # A harness that went on after a failed call has no failure.
        (judged([CUT, FINE]), (1.0, "none", None)),
        (judged([FINE, CUT]), (1.0, "none", None)),
        (judged([FINE, CUT], Status.FAILED, CRASHED), (None, "engine", "cut")),
        (judged([FINE, CUT], exit=ended(Cause.DEADLINE)), (None, "engine", "cut")),
        (judged([FINE, GONE], exit=ended(Cause.DEADLINE)), (1.0, "policy", "out_of_time")),
        (judged([FINE, CUT, GONE], exit=ended(Cause.DEADLINE)), (None, "engine", "cut")),
        (judged([FINE], exit=ended(Cause.OUTPUT)), (1.0, "policy", "out_of_output")),
        (
            judged([FINE], Status.FAILED, ended(Cause.MEMORY), HONEST_0),
            (0.0, "policy", "out_of_memory"),
        ),
        (
            judged([FINE], exit=Exit(0, None, Cause.EXITED, frozenset({Limit.DISK}))),
            (1.0, "policy", "out_of_disk"),
        ),
        (
            judged([FINE], exit=Exit(0, None, Cause.EXITED, frozenset({Limit.PIDS}))),
            (1.0, "policy", "out_of_processes"),
        ),
        (judged([FINE], Status.LIMIT, verdict=HONEST_0), (0.0, "policy", "out_of_turns")),
        (judged([FINE, SPENT], verdict=HONEST_0), (0.0, "policy", "budget_calls")),
        (
            judged([FINE, TOO_LONG], Status.FAILED, CRASHED, HONEST_0),
            (0.0, "policy", "context_overflow"),
        ),
        (judged([FINE], Status.FAILED, CRASHED), (None, "harness", "exit_code")),
        (judged([], Status.DONE), (None, "harness", "no_calls")),
        (judged([], Status.FAILED, CRASHED), (None, "harness", "no_calls")),
        (judged([FINE], verdict=BROKEN), (None, "verifier", "reward_missing")),
        # An agent that leaves no room for the verifier does not get another try.
        (
            judged([FINE], exit=ended(Cause.EXITED, Limit.DISK), verdict=BROKEN),
            (0.0, "policy", "out_of_disk"),
        ),
        (judged([FINE], verdict=NO_ROOM), (0.0, "policy", "out_of_disk")),
        # Work that nobody could look at has no reward, whatever limit was reached.
        (
            judged([FINE], exit=ended(Cause.DEADLINE), verdict=BROKEN),
            (None, "verifier", "reward_missing"),
        ),
    ],
)
def test_the_first_boundary_that_broke_names_the_outcome(found, wanted):
    assert found == wanted


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (StartFailed("no namespaces"), ("environment", "sandbox_start")),
        (NoCapacity("full", 5.0), ("environment", "sandbox_start")),
        (Unusable("no room"), ("environment", "sandbox_start")),
        (Lost("process 1 is gone"), ("environment", "sandbox_lost")),
        (PlaceFailed("gone"), ("environment", "sandbox_lost")),
        (StoreBusy("locked"), ("store", "store_busy")),
        (StoreFull("full"), ("store", "store_full")),
        (StoreError("bad"), ("store", "store_error")),
        (
            GatewayFailed("gone", FailureClass.OURS, "proxy_unreachable"),
            ("ours", "proxy_unreachable"),
        ),
        (ZeroDivisionError("x"), ("ours", "internal")),
    ],
)
def test_an_error_is_a_failure_of_its_boundary_and_never_a_reward(error, wanted):
    found = name_failure(error)
    assert (found.failure_class.value, found.cause) == wanted
    assert found.reward is None
    assert not found.counts
    assert found.why


def test_an_agent_that_takes_the_sandbox_down_with_its_memory_gets_0():
    lost = Lost("no memory left", Limit.MEMORY)
    at_work = PlaceFailed("gone")
    at_work.__cause__ = lost
    for error in (lost, at_work):
        found = name_failure(error)
        assert (found.reward, found.failure_class.value, found.cause) == (
            0.0, "policy", "out_of_memory",
        )  # fmt: skip
        assert found.why


def test_every_cause_is_one_that_the_store_knows_with_its_class():
    causes = {"out_of_time", "out_of_output", "out_of_memory", "out_of_disk", "out_of_processes"}
    for cause in causes | {"out_of_turns"}:
        assert CAUSES[cause] is FailureClass.POLICY
    for found in (interrupted("x"), name_failure(Lost("x")), name_failure(ValueError("x"))):
        assert CAUSES[found.cause or ""] is found.failure_class


def test_only_a_reward_beside_none_or_policy_counts():
    assert Judged(reward=0.0, failure_class=FailureClass.NONE, cause=None).counts
    assert not Judged(reward=None, failure_class=FailureClass.NONE, cause=None).counts
