"""The table of rewards that the demo ends with, and what must be true of it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

from budwood.rollouts.estimates import Interval, interval_over_tasks
from budwood.rollouts.run import is_counted

if TYPE_CHECKING:
    from budwood.trajectory_store import Run, Store

BEFORE, SFT, RL, CONTROL = "before", "after SFT", "after RL", "control"
STAGES = (BEFORE, SFT, RL, CONTROL)
MIN_ROLLOUTS = 36
MAX_DIFFERENCE = 1e-3
"""Between recorded and recomputed logprobs, in nats, before any step."""
LUCK = 0.01
"""How often a right build may fail by luck, at most; also the level of the control's test."""


@dataclass(frozen=True)
class Stage:
    """The rewards of one stage on held-out variants."""

    rewards: Mapping[str, Mapping[str, Sequence[float]]]
    """Harness → task → rewards."""
    n_complete: int
    n_exact: int

    @property
    def all(self) -> list[float]:
        """The rewards of all rollouts."""
        return [r for tasks in self.rewards.values() for given in tasks.values() for r in given]

    @property
    def mean(self) -> float:
        """The mean over tasks of their mean rewards, as the table shows it."""
        return self.interval().value

    @property
    def error(self) -> float:
        """Standard error of the mean over new samples of the same tasks.

        As of rollouts that are all alike. What differs between tasks is no chance here, since all
        stages are of the same tasks: the true error is smaller.
        """
        # One success and one failure more (Agresti and Coull 1998): no error is 0.
        n = len(self.all) + 2
        share = (self.mean * len(self.all) + 1) / n
        return math.sqrt(share * (1 - share) / n)

    def interval(self, harness: str | None = None) -> Interval:
        """Return the mean over tasks and its interval, of one harness or of all."""
        tasks: dict[str, list[float]] = defaultdict(list)
        for name, own in self.rewards.items():
            if harness in (None, name):
                for task, given in own.items():
                    tasks[task] += given
        found = interval_over_tasks(list(tasks.values()))
        assert found is not None
        return found


def stage_of(store: Store, runs: Sequence[Run]) -> Stage:
    """Read a stage from the store."""
    rewards: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    n_complete = n_exact = 0
    for run in runs:
        for rollout in store.rollouts(run.id):
            if not is_counted(store, rollout):
                continue
            reward = store.outcome(rollout.id).reward
            assert reward is not None
            rewards[str(rollout.harness)][str(rollout.task)].append(reward)
            for call in store.calls(rollout.id):
                n_complete += call.state.is_complete
                n_exact += call.state.is_complete and call.exact
    return Stage(rewards, n_complete, n_exact)


@dataclass(frozen=True)
class Verdict:
    """All stages, and what training measured."""

    stages: Mapping[str, Stage]
    n_complete: int
    """Calls of the training rollouts."""
    n_exact: int
    largest_difference: float
    """Between recorded and recomputed logprobs, over all steps."""
    training: Mapping[str, Sequence[float]]
    """`after RL` or `control` → mean reward of each step's rollouts."""

    @property
    def luck(self) -> float:
        """The chance that a build whose true rewards are those seen fails the order by luck."""
        pairs = ((BEFORE, SFT), (SFT, RL))
        return sum(1 - NormalDist().cdf(self.sigmas(low, high)) for low, high in pairs)

    def sigmas(self, low: str, high: str) -> float:
        """Return the difference of two stages in standard errors of it."""
        a, b = self.stages[low], self.stages[high]
        return (b.mean - a.mean) / math.hypot(a.error, b.error)

    @property
    def broken(self) -> list[str]:
        """Return the promises that the figures break, in words."""
        means = {name: stage.mean for name, stage in self.stages.items()}
        limit = NormalDist().inv_cdf(1 - LUCK)
        n_complete, n_exact = self.exactness
        few = [name for name, s in self.stages.items() if len(s.all) < MIN_ROLLOUTS]
        found = [
            (bool(few), f"fewer than {MIN_ROLLOUTS} rollouts: {', '.join(few)}"),
            (not means[SFT] > means[BEFORE], "SFT did not raise the reward"),
            (not means[RL] > means[SFT], "RL did not raise the reward"),
            (
                self.sigmas(SFT, CONTROL) > limit,
                "the control rose: something else than the rewards was learnt from",
            ),
            (not means[RL] > means[CONTROL], "the control is as good as RL"),
            (n_exact != n_complete, f"only {n_exact} of {n_complete} calls are exact"),
            (
                not self.largest_difference <= MAX_DIFFERENCE,
                f"recorded and recomputed logprobs differ by {self.largest_difference:.2g}",
            ),
        ]
        return [words for is_broken, words in found if is_broken]

    @property
    def exactness(self) -> tuple[int, int]:
        """All complete calls of the model, and those of them that are exact."""
        return (
            self.n_complete + sum(stage.n_complete for stage in self.stages.values()),
            self.n_exact + sum(stage.n_exact for stage in self.stages.values()),
        )

    def lines(self) -> list[str]:
        """Return the table in lines, and the arithmetic behind the judgement."""
        harnesses = sorted(self.stages[BEFORE].rewards)
        rows = [["reward on held-out variants", *STAGES]]
        for harness in (*harnesses, None):
            cells = [str(self.stages[name].interval(harness)) for name in STAGES]
            rows.append([harness or "all", *cells])
        rows.append(["rollouts", *(str(len(self.stages[name].all)) for name in STAGES)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = [
            "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
        n_complete, n_exact = self.exactness
        return [
            *table,
            "",
            *(
                f"reward of each training step, {name}: {' '.join(f'{r:.2f}' for r in means)}"
                for name, means in self.training.items()
            ),
            f"exact calls: {n_exact} of {n_complete}; largest difference between recorded and "
            f"recomputed logprobs: {self.largest_difference:.1e}",
            *self._arithmetic(),
        ]

    def _arithmetic(self) -> list[str]:
        parts = [
            f"{low} to {high} {self.stages[high].mean - self.stages[low].mean:+.2f} is "
            f"{self.sigmas(low, high):.1f} standard errors"
            for low, high in ((BEFORE, SFT), (SFT, RL), (SFT, CONTROL))
        ]
        return [
            f"by chance: {'; '.join(parts)}.",
            f"With these rewards as the true ones, the order would come out wrong in "
            f"{self.luck:.2g} of runs (the normal tails of the first two, added).",
        ]
