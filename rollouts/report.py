"""What a run came to, read from the store: rewards with intervals, pass@k, failures, exactness.

Only outcomes that count are in rewards and pass@k: one of each attempt, the latest. All others are
in the table of failures, tries that were made good included.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from budwood.trajectory_store import FailureClass, Outcome, Rollout, Run, Store

from .estimates import Interval, interval_over_tasks, pass_at_k
from .run import Key, is_counted, key_of_rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Calls of the rollouts that count."""

    n_calls: int
    n_complete: int
    n_exact: int
    n_continuing: int
    """Complete calls that continue or edit an earlier one's conversation."""
    n_spliced: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessReport:
    """One harness's share of a run."""

    harness: str
    n_tasks: int
    n_attempts: int
    """Those with an outcome that counts."""
    n_passed: int
    reward: Interval | None
    """Mean over tasks of their mean rewards."""
    passes: Interval | None
    """pass@1: mean over tasks of their share of passes."""
    pass_at: Mapping[int, float]
    """k → pass@k over the tasks that have k attempts."""
    causes: Mapping[str, int]
    """Causes of class `policy`, of outcomes that count."""
    counts: Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """A run as it is in the store now."""

    run: Run
    harnesses: Sequence[HarnessReport]
    n_wanted: int | None
    """Attempts that the run's plan has; None for a run that has no plan."""
    n_counted: int
    failures: Mapping[tuple[str, str], int]
    """(class, cause) → tries that do not count."""

    @property
    def is_complete(self) -> bool:
        """Whether every attempt of the plan has an outcome that counts."""
        return self.n_wanted is None or self.n_counted >= self.n_wanted

    @property
    def n_verifier_failures(self) -> int:
        """Tries whose work nobody could look at. Many of them may be the agent's doing."""
        return sum(n for (kind, _), n in self.failures.items() if kind == FailureClass.VERIFIER)


def report_of(store: Store, run: Run, *, ks: Sequence[int] = (), pass_at: float = 1.0) -> RunReport:
    """Return what a run came to.

    ks: the k of pass@k; none: 1 and the most attempts that a task has.
    pass_at: the reward from which an attempt passes.
    """
    failures: Counter[tuple[str, str]] = Counter()
    counted: dict[Key, tuple[Rollout, Outcome]] = {}
    for rollout in store.rollouts(run.id):
        outcome = store.outcome(rollout.id)
        if is_counted(store, rollout):
            counted[key_of_rollout(rollout)] = (rollout, outcome)
        elif outcome.version:
            failures[outcome.failure_class.value, outcome.cause or "unknown"] += 1
    by_harness: dict[str, list[tuple[Rollout, Outcome]]] = defaultdict(list)
    for rollout, outcome in counted.values():
        by_harness[str(rollout.harness)].append((rollout, outcome))
    return RunReport(
        run=run,
        harnesses=[
            _of_harness(store, name, found, ks, pass_at)
            for name, found in sorted(by_harness.items())
        ],
        n_wanted=_wanted(run),
        n_counted=len(counted),
        failures=failures,
    )


def _of_harness(
    store: Store,
    name: str,
    found: Sequence[tuple[Rollout, Outcome]],
    ks: Sequence[int],
    pass_at: float,
) -> HarnessReport:
    rewards: dict[str, list[float]] = defaultdict(list)
    for rollout, outcome in found:
        assert outcome.reward is not None
        rewards[key_of_rollout(rollout)[0]].append(outcome.reward)
    passes = {task: [float(r >= pass_at) for r in given] for task, given in rewards.items()}
    most = max(len(given) for given in rewards.values())
    wanted = sorted(set(ks) or {1, most})
    return HarnessReport(
        harness=name,
        n_tasks=len(rewards),
        n_attempts=len(found),
        n_passed=int(sum(map(sum, passes.values()))),
        reward=interval_over_tasks(list(rewards.values())),
        passes=interval_over_tasks(list(passes.values())),
        pass_at={k: value for k in wanted if (value := _pass_at(passes, k)) is not None},
        causes=Counter(
            outcome.cause or "unknown"
            for _, outcome in found
            if outcome.failure_class is FailureClass.POLICY
        ),
        counts=_counts(store, [rollout for rollout, _ in found]),
    )


def _pass_at(passes: Mapping[str, Sequence[float]], k: int) -> float | None:
    tasks = [
        pass_at_k(len(given), int(sum(given)), k) for given in passes.values() if len(given) >= k
    ]
    return fmean(tasks) if tasks else None


def _counts(store: Store, rollouts: Sequence[Rollout]) -> Counts:
    n_calls = n_complete = n_exact = n_continuing = n_spliced = 0
    for rollout in rollouts:
        for call in store.calls(rollout.id):
            n_calls += 1
            if call.state.is_complete:
                n_complete += 1
                n_exact += call.exact
                if call.parent or call.edit_of:
                    n_continuing += 1
                    n_spliced += call.prompt_mode == "spliced"
    return Counts(
        n_calls=n_calls,
        n_complete=n_complete,
        n_exact=n_exact,
        n_continuing=n_continuing,
        n_spliced=n_spliced,
    )


def _wanted(run: Run) -> int | None:
    plan = run.settings.get("plan")
    if not isinstance(plan, dict):
        return None
    return len(plan["tasks"]) * len(plan["harnesses"]) * int(plan["attempts"])
