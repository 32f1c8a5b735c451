"""The rule by which a verifier's run becomes a reward, or a failure of the verifier.

Reward 0 means that somebody looked and found nothing done. A verifier that could not look is a
failure of class `verifier` with reward none, which is retried and never trained. It could not look,
in this order, if

1. its time was up: `verifier_timeout`;
2. a signal ended it, or it could not be started (126, 127): `verifier_killed`, `verifier_not_run`;
3. its CTRF report says that no test was collected: `no_tests`;
4. its reward is missing, empty, unreadable or not finite: `reward_missing`, `reward_empty`,
   `reward_unreadable`, `reward_not_finite`; or several are there and none is named:
   `reward_unnamed`;
5. it gave nothing (reward ≤ 0), and its script asks for a CTRF report that is not there:
   `no_test_report`;
6. it gave nothing, and before any test ran a program was missing, or the network:
   `verifier_tool_missing`, `verifier_no_network`.

Where the disk was full when it ended, the cause is `no_room` instead.

Any other exit code says nothing, as in Harbor. An honest 0 from a plain script stays 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from budwood.trajectory_store import FailureClass

from .evidence import n_tests, network_missing, report_path, tool_missing
from .place import ExecResult
from .rewards import BadReward, pick, read_rewards

_MAX_SIGNAL = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that a verifier left behind; None for a file that is not there."""

    ended: ExecResult
    script: str
    """The text of `tests/test.sh`."""
    reward_json: bytes | None = None
    reward_txt: bytes | None = None
    report: bytes | None = None
    """The CTRF report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What an attempt was worth, or why nobody can say. What `Store.score` takes."""

    reward: float | None
    """The reward that counts; None where the verifier failed."""
    rewards: Mapping[str, float] = field(default_factory=dict[str, float])
    """All rewards by key."""
    failure_class: FailureClass = FailureClass.NONE
    cause: str | None = None
    """The code of what went wrong, None if nothing did."""
    why: str = ""
    """The same in words."""
    pass_at: float = 1.0

    @property
    def is_pass(self) -> bool:
        """True where the reward reaches the bar of the run."""
        return self.reward is not None and self.reward >= self.pass_at


def judge(evidence: Evidence, *, reward_key: str | None = None, pass_at: float = 1.0) -> Verdict:
    """Return the verdict of the rule above.

    reward_key: the reward that counts for this run; None: the key `reward`, or the only one.
    pass_at: the reward from which an attempt passes.
    """
    try:
        _require_run(evidence.ended)
        _require_tests(evidence.report)
        rewards = read_rewards(evidence.reward_json, evidence.reward_txt)
        reward = pick(rewards, reward_key)
        if reward <= 0:
            _require_that_it_looked(evidence)
    except BadReward as error:
        if evidence.ended.is_full:
            return failed_verifier("no_room", f"the disk was full when test.sh ended; {error}")
        return failed_verifier(error.cause, str(error))
    return Verdict(reward=reward, rewards=rewards, pass_at=pass_at)


def failed_verifier(cause: str, why: str) -> Verdict:
    """Return the verdict where nobody could look."""
    return Verdict(reward=None, failure_class=FailureClass.VERIFIER, cause=cause, why=why)


def _require_run(ended: ExecResult) -> None:
    code = ended.exit_code
    if ended.timed_out:
        raise BadReward("verifier_timeout", "test.sh did not end in its time")
    # A shell or a container reports a child that a signal ended as 128 + signal.
    signal = ended.signal or (code - 128 if code and 128 < code <= 128 + _MAX_SIGNAL else None)
    if signal:
        raise BadReward("verifier_killed", f"test.sh was ended by signal {signal}")
    if code in (126, 127):
        what = "could not be executed" if code == 126 else "or a program it ends with is missing"
        raise BadReward("verifier_not_run", f"test.sh ended with {code}: it {what}")


def _require_tests(report: bytes | None) -> None:
    if n_tests(report) == 0:
        raise BadReward("no_tests", "the CTRF report says that no test was collected")


def _require_that_it_looked(evidence: Evidence) -> None:
    has_run_tests = bool(n_tests(evidence.report))
    if has_run_tests:
        return
    path = report_path(evidence.script)
    if path is not None:
        text = f"test.sh gave nothing and asks for a CTRF report in {path}, which can't be read"
        raise BadReward("no_test_report", text)
    output = evidence.ended.said
    if line := tool_missing(output):
        raise BadReward("verifier_tool_missing", f"test.sh missed a program: {line}")
    if line := network_missing(output):
        raise BadReward("verifier_no_network", f"test.sh did not reach the network: {line}")
