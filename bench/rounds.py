"""Several servers in turn: ratios within a round, which a noisy machine spoils least.

A single run on a shared machine says little. Trust, in this order: CPU seconds a call, ratios
within a round, medians over seven rounds or more.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from .closed_loop import Measured

METRICS = (
    "rps", "ttft_p50_ms", "ttft_p95_ms", "last_p50_ms", "last_p95_ms", "cpu_s_per_1000",
    "events_per_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Compared:
    """One metric of A and B over all rounds."""

    a: float
    """Median of A."""
    b: float
    ratio: float
    """Median of B / A within rounds."""
    ratio_low: float
    ratio_high: float
    difference: float
    """Median of B - A within rounds."""

    def __str__(self) -> str:
        """Return the ratio with its range."""
        return f"{self.ratio:.2f} [{self.ratio_low:.2f}-{self.ratio_high:.2f}]"


def compare(values_a: list[float], values_b: list[float]) -> Compared:
    """Return medians and within-round ratios of two parallel lists."""
    pairs = list(zip(values_a, values_b, strict=True))
    ratios = sorted(b / a for a, b in pairs)
    return Compared(
        statistics.median(values_a),
        statistics.median(values_b),
        statistics.median(ratios),
        ratios[0],
        ratios[-1],
        statistics.median(b - a for a, b in pairs),
    )


@dataclass(slots=True)
class Rounds:
    """What each server gave in each round."""

    figures: list[dict[str, dict[str, float]]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list[str])
    """Errors and wrong answers; figures with any are worth nothing."""

    def compare(self, a: str, b: str, metric: str) -> Compared:
        """Return one metric of two servers."""
        return compare(
            [each[a][metric] for each in self.figures], [each[b][metric] for each in self.figures]
        )


async def alternate(
    runs: Mapping[str, Callable[[], Awaitable[Measured]]], *, rounds: int, rest_s: float = 0.2
) -> Rounds:
    """Run every server in each round, the order turned by one each time."""
    out = Rounds()
    names = list(runs)
    for number in range(rounds):
        row: dict[str, dict[str, float]] = {}
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            measured = await runs[name]()
            if not measured.is_good:
                out.problems.append(f"{name}: {dict(measured.errors)} {dict(measured.diffs)}")
            row[name] = measured.figures()
            await asyncio.sleep(rest_s)
        out.figures.append(row)
    return out
