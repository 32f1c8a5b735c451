"""What a run came to, for people and for programs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .summary import share
from .terminal import Screen

if TYPE_CHECKING:
    from budwood.rollouts.report import HarnessReport, RunReport

MANY = 0.1
"""Share of tries whose verifier failed from which on it is said: the agents may cause it."""


def show(report: RunReport) -> None:
    """Write the report to stdout."""
    screen = Screen()
    ks = sorted({k for one in report.harnesses for k in one.pass_at if k > 1})
    screen.table(
        ["harness", "tasks", "attempts", "reward", "pass@1", *(f"pass@{k}" for k in ks), "exact",
         "spliced", "limits"],
        [_row(one, ks) for one in report.harnesses],
    )  # fmt: skip
    of = "" if report.n_wanted is None else f" of {report.n_wanted}"
    screen.line(f"run {report.run.id} ({report.run.name}): {report.n_counted}{of} attempts count")
    if report.failures:
        screen.line("tries that do not count:")
        for (kind, cause), n in sorted(report.failures.items()):
            screen.line(f"  {kind}: {cause}: {n}")
    n_tries = report.n_counted + sum(report.failures.values())
    if report.n_verifier_failures > max(1, MANY * n_tries):
        screen.line(
            f"In {report.n_verifier_failures} of {n_tries} tries the verifier could not look: look "
            "at its output, since an agent can cause that too.",
            style="yellow",
        )


def _row(one: HarnessReport, ks: list[int]) -> list[str]:
    counts = one.counts
    limits = ", ".join(f"{cause} {n}" for cause, n in sorted(one.causes.items()))
    return [
        one.harness,
        str(one.n_tasks),
        str(one.n_attempts),
        str(one.reward),
        str(one.passes),
        *(f"{one.pass_at[k]:.2f}" if k in one.pass_at else "-" for k in ks),
        share(counts.n_exact, counts.n_complete),
        share(counts.n_spliced, counts.n_continuing),
        limits or "none",
    ]


def as_json(report: RunReport, folder: Path) -> str:
    """Return the report as JSON."""
    harnesses: list[dict[str, Any]] = [asdict(one) for one in report.harnesses]
    failures = [
        {"class": kind, "cause": cause, "n": n}
        for (kind, cause), n in sorted(report.failures.items())
    ]
    return json.dumps(
        {
            "run": report.run.id,
            "name": report.run.name,
            "is_complete": report.is_complete,
            "n_wanted": report.n_wanted,
            "n_counted": report.n_counted,
            "harnesses": harnesses,
            "failures": failures,
            "folder": str(folder),
        },
        indent=1,
    )
