"""What attempts say about a policy: pass@k without bias, and intervals that respect tasks.

Attempts at one task are alike, so n attempts at t tasks say less than n independent ones. The
interval of a mean over tasks takes that into account: it is Wilson's, for as many independent
attempts as have the variance that the tasks' own means show, but never fewer than there are tasks
nor more than there are attempts. Where all agree, nothing is known of the variance, and the tasks
are counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, variance


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its interval of confidence."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return it as people read it: `0.67 [0.41, 0.86]`."""
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the chance that of k of the n attempts at least one is among the c that passed.

    The unbiased estimate 1 - C(n-c, k) / C(n, k) of Chen et al. 2021 (arXiv 2107.03374, eq. 1).
    Raises ValueError unless 0 <= c <= n and 1 <= k <= n.
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"wants 0 <= c <= n and 1 <= k <= n, found n={n}, c={c}, k={k}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def interval_over_tasks(
    rewards_by_task: Sequence[Sequence[float]], *, confidence: float = 0.95
) -> Interval | None:
    """Return the mean over tasks of their mean rewards in [0, 1]; None where there is none.

    rewards_by_task: for each task the rewards of its attempts; tasks without one are left out.
    Rewards outside [0, 1] are taken at the nearer end for the interval's width, not for the mean.
    """
    tasks = [task for task in rewards_by_task if task]
    if not tasks:
        return None
    means = [fmean(task) for task in tasks]
    mean = fmean(means)
    n_attempts = sum(len(task) for task in tasks)
    share = min(max(mean, 0.0), 1.0)
    n_effective = float(len(tasks))
    if 0.0 < share < 1.0 and len(tasks) > 1:
        seen = variance(means) / len(tasks)
        alike = share * (1.0 - share) / seen if seen > 0.0 else float(n_attempts)
        n_effective = min(max(alike, float(len(tasks))), float(n_attempts))
    low, high = _wilson(share, n_effective, confidence)
    return Interval(mean, min(low, mean), max(high, mean))


def _wilson(share: float, n: float, confidence: float) -> tuple[float, float]:
    """Return Wilson's interval of a share seen in n trials (Wilson 1927)."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2.0)
    centre = (share + z * z / (2.0 * n)) / (1.0 + z * z / n)
    half = z / (1.0 + z * z / n) * math.sqrt(share * (1.0 - share) / n + z * z / (4.0 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)
