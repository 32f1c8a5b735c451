"""How a rollout ended → its outcome: the one place where a failure gets its class.

A rollout passes several boundaries, and the first that broke names the failure:

1. the sandbox: gone, or never there (`name_failure`, from the error);
2. the engine, the store or the proxy: the harness gave up, or its time ran out, while its last
   call had failed there;
3. the agent's own limits: time, output, memory, processes, disk, turns, budgets, context: class
   `policy`, and what it left behind is graded like any other work;
4. the harness: it gave up by itself, or made no call;
5. the verifier: it could not look.

A reward stands only beside `none` and `policy` (`FailureClass.counts`). An agent that fills
its disk or its memory, so that nobody can look at its work, gets 0: it could else have each failure
tried again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from budwood.harness_adapters import Status
from budwood.sandbox import Cause, Exit, Limit, Lost, NoCapacity, SandboxError, StartFailed
from budwood.trajectory_store import FailureClass, StoreBusy, StoreError, StoreFull

from .errors import GatewayFailed, PlaceFailed, Unusable
from .tasks import Verdict


class CallFacts(Protocol):
    """What is asked of a recorded call; `budwood.trajectory_store.Call` is one."""

    @property
    def failure_class(self) -> FailureClass:
        """Whose failure it was; `none` where it did not fail."""
        ...

    @property
    def cause(self) -> str | None:
        """The code of what failed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """All that is known once harness and verifier have ended."""

    exit: Exit
    """How the harness's process ended."""
    status: Status
    """What the harness says of itself, as its adapter reads it."""
    said: str = ""
    """The same in words."""
    calls: Sequence[CallFacts]
    """Its model calls in their order."""
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """An outcome: what `Store.score` takes, and why in words."""

    reward: float | None
    failure_class: FailureClass
    cause: str | None
    why: str = ""

    @property
    def counts(self) -> bool:
        """Whether it says something about the policy; else the attempt is tried again."""
        return self.failure_class.counts and self.reward is not None


_ENDED_BY: Mapping[Cause, str] = MappingProxyType(
    {
        Cause.DEADLINE: "out_of_time",
        Cause.OUTPUT: "out_of_output",
        Cause.MEMORY: "out_of_memory",
    }
)
_RAN_INTO: Mapping[Limit, str] = MappingProxyType(
    {
        Limit.MEMORY: "out_of_memory",
        Limit.DISK: "out_of_disk",
        Limit.PIDS: "out_of_processes",
        Limit.OUTPUT: "out_of_output",
    }
)
_BUDGET = "budget_"


def outcome_of(ending: Ending) -> Judged:
    """Return the outcome of a rollout that came to its end."""
    gave_up = ending.status is Status.FAILED or ending.exit.cause is Cause.DEADLINE
    last = _last_fault(ending.calls)
    if gave_up and last is not None and not last.failure_class.counts:
        why = f"the harness ended after a model call failed ({last.cause})"
        return _nobody(last.failure_class, last.cause, why)
    limit = _limit(ending)
    if limit is None:
        if not ending.calls:
            return _nobody(FailureClass.HARNESS, "no_calls", ending.said or "it made no model call")
        if ending.status is Status.FAILED and last is not None:  # of class policy
            limit = last.cause
        elif ending.status is Status.FAILED:
            return _nobody(FailureClass.HARNESS, "exit_code", ending.said or _how(ending.exit))
    verdict = ending.verdict
    if verdict.reward is None and (limit == "out_of_disk" or verdict.cause == "no_room"):
        why = f"it left no room in which its work could be looked at ({verdict.cause})"
        return Judged(reward=0.0, failure_class=FailureClass.POLICY, cause="out_of_disk", why=why)
    if verdict.reward is None:
        return _nobody(verdict.failure_class, verdict.cause, verdict.why)
    if limit is None:
        return Judged(reward=verdict.reward, failure_class=FailureClass.NONE, cause=None)
    return Judged(reward=verdict.reward, failure_class=FailureClass.POLICY, cause=limit)


def name_failure(error: BaseException) -> Judged:
    """Return the outcome of a rollout that an error ended: nobody's reward, with one exception."""
    why = f"{error}" or type(error).__name__
    at_fault = error.__cause__ if isinstance(error, PlaceFailed) else error
    if isinstance(at_fault, Lost) and at_fault.limit is Limit.MEMORY:
        return Judged(reward=0.0, failure_class=FailureClass.POLICY, cause="out_of_memory", why=why)
    if isinstance(error, StartFailed | NoCapacity | Unusable):
        return _nobody(FailureClass.ENVIRONMENT, "sandbox_start", why)
    if isinstance(error, SandboxError | PlaceFailed):
        return _nobody(FailureClass.ENVIRONMENT, "sandbox_lost", why)
    if isinstance(error, StoreError):
        causes = {StoreBusy: "store_busy", StoreFull: "store_full"}
        return _nobody(FailureClass.STORE, causes.get(type(error), "store_error"), why)
    if isinstance(error, GatewayFailed):
        return _nobody(error.failure_class, error.cause, why)
    return _nobody(FailureClass.OURS, "internal", f"{type(error).__name__}: {why}")


def interrupted(why: str) -> Judged:
    """Return the outcome of a rollout that was not let come to its end."""
    return _nobody(FailureClass.OURS, "interrupted", why)


def _last_fault(calls: Sequence[CallFacts]) -> CallFacts | None:
    """Return the last call if it failed; what the end of the harness cut is no fault."""
    for call in reversed(calls):
        if call.cause == "client_gone":
            continue
        return call if call.failure_class is not FailureClass.NONE else None
    return None


def _limit(ending: Ending) -> str | None:
    """Return the limit that the agent ran into, if any."""
    if ending.exit.cause in _ENDED_BY:
        return _ENDED_BY[ending.exit.cause]
    for limit, cause in _RAN_INTO.items():
        if limit in ending.exit.limits_hit:
            return cause
    for call in ending.calls:
        if call.cause is not None and call.cause.startswith(_BUDGET):
            return call.cause
    return "out_of_turns" if ending.status is Status.LIMIT else None


def _how(exit: Exit) -> str:
    if exit.code is not None:
        return f"the harness ended with {exit.code}"
    return f"the harness was ended by signal {exit.signal}"


def _nobody(failure_class: FailureClass, cause: str | None, why: str) -> Judged:
    return Judged(reward=None, failure_class=failure_class, cause=cause, why=why)
