"""Outcomes: what a rollout was worth, and whose fault it was if it failed.

A reward is a number or none; none is not zero. A failure is named by the boundary it crossed. Only
`none` and `policy` say something about the policy: they alone are trained and scored. All others
are retried (the same attempt) and never count.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

from .ids import RolloutId


class FailureClass(StrEnum):
    """The boundary that a failure crossed."""

    NONE = "none"
    POLICY = "policy"
    ENVIRONMENT = "environment"
    ENGINE = "engine"
    HARNESS = "harness"
    VERIFIER = "verifier"
    STORE = "store"
    OURS = "ours"

    @property
    def counts(self) -> bool:
        """True where the outcome says something about the policy: it is trained and scored."""
        return self in (FailureClass.NONE, FailureClass.POLICY)

    @property
    def is_retried(self) -> bool:
        """True where the same attempt is run again instead."""
        return not self.counts


MEANINGS = MappingProxyType(
    {
        FailureClass.NONE: "nothing failed",
        FailureClass.POLICY: "the agent's own doing: limits reached, memory or disk used up, "
        "answers refused",
        FailureClass.ENVIRONMENT: "the sandbox or what it offers broke",
        FailureClass.ENGINE: "the server that generates tokens failed or answered wrongly",
        FailureClass.HARNESS: "the agent program failed, or hung up, by itself",
        FailureClass.VERIFIER: "the check of the result could not be done",
        FailureClass.STORE: "the record could not be made durable",
        FailureClass.OURS: "a defect of this software",
    }
)
"""What each class says, for people."""

CAUSES = MappingProxyType(
    {
        # policy
        "budget_calls": FailureClass.POLICY,
        "budget_tokens": FailureClass.POLICY,
        "budget_wall": FailureClass.POLICY,
        "context_overflow": FailureClass.POLICY,
        "refused": FailureClass.POLICY,
        "out_of_memory": FailureClass.POLICY,
        "out_of_disk": FailureClass.POLICY,
        "out_of_time": FailureClass.POLICY,
        "out_of_turns": FailureClass.POLICY,
        "out_of_output": FailureClass.POLICY,
        "out_of_processes": FailureClass.POLICY,
        # environment
        "sandbox_lost": FailureClass.ENVIRONMENT,
        "sandbox_start": FailureClass.ENVIRONMENT,
        # engine
        "unreachable": FailureClass.ENGINE,
        "rate_limited": FailureClass.ENGINE,
        "refused_request": FailureClass.ENGINE,
        "server_error": FailureClass.ENGINE,
        "cut": FailureClass.ENGINE,
        "bad_event": FailureClass.ENGINE,
        "missing_done": FailureClass.ENGINE,
        "missing_finish": FailureClass.ENGINE,
        "missing_usage": FailureClass.ENGINE,
        "missing_ids": FailureClass.ENGINE,
        "count_mismatch": FailureClass.ENGINE,
        "stall": FailureClass.ENGINE,
        # harness
        "client_gone": FailureClass.HARNESS,
        "bad_request": FailureClass.HARNESS,
        "exit_code": FailureClass.HARNESS,
        "no_calls": FailureClass.HARNESS,
        # verifier
        "verifier_error": FailureClass.VERIFIER,
        "no_room": FailureClass.VERIFIER,
        "verifier_timeout": FailureClass.VERIFIER,
        "verifier_killed": FailureClass.VERIFIER,
        "verifier_not_run": FailureClass.VERIFIER,
        "verifier_tool_missing": FailureClass.VERIFIER,
        "verifier_no_network": FailureClass.VERIFIER,
        "reward_missing": FailureClass.VERIFIER,
        "reward_empty": FailureClass.VERIFIER,
        "reward_unreadable": FailureClass.VERIFIER,
        "reward_not_finite": FailureClass.VERIFIER,
        "reward_unnamed": FailureClass.VERIFIER,
        "no_tests": FailureClass.VERIFIER,
        "no_test_report": FailureClass.VERIFIER,
        # store
        "store_busy": FailureClass.STORE,
        "store_full": FailureClass.STORE,
        "store_corrupt": FailureClass.STORE,
        "store_error": FailureClass.STORE,
        # ours
        "crash": FailureClass.OURS,
        "interrupted": FailureClass.OURS,
        "proxy_unreachable": FailureClass.OURS,
        "proxy_refused": FailureClass.OURS,
        "shutdown": FailureClass.OURS,
        "internal": FailureClass.OURS,
    }
)
"""Cause code to class. A code not listed is kept as it came; the class given with it counts."""


def class_of(cause: str) -> FailureClass:
    """Return the class of a known cause code, `ours` for one that nobody has named."""
    return CAUSES.get(cause, FailureClass.OURS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One judgement of a rollout; version 0 (never stored) stands for "not graded"."""

    rollout_id: RolloutId
    version: int
    """1, 2, ...: later ones supersede, none is overwritten."""
    reward: float | None
    failure_class: FailureClass
    cause: str | None
    by: str
    """Who judged: a verifier's name, `cli`, a person."""
    created_at: datetime | None
