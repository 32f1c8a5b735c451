"""The table that the demo ends with, and the promises that it holds the figures to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..summary import Summary, share

if TYPE_CHECKING:
    from budwood.trajectory_store import RolloutId

MAX_DIFFERENCE = 1e-3
"""Between a recorded logprob and the same token scored again, in float32."""


@dataclass(frozen=True)
class Column:
    """The figures of one recorded rollout."""

    title: str
    rollout_id: RolloutId
    summary: Summary
    is_done: bool
    """The folder holds what the task asked for."""
    n_repaired: int
    """Outputs whose parsed form, written again by the template, is not what was sampled."""
    n_rows: int
    """Rows in the export."""
    n_trained: int
    """Tokens that the export trains."""
    difference: float | None
    """Largest between recorded and scored-again logprobs; None: there is no model to score with."""
    n_scored: int
    replay: str
    """`identical`, or what differs."""
    n_inexact_before: int = 0
    """Calls of earlier attempts, which went astray, that are not exact."""

    @property
    def broken(self) -> list[str]:
        """Return the promises that these figures break, in words."""
        s = self.summary
        found = [
            (not self.is_done, "the task was not done"),
            (s.n_complete != s.n_calls, f"{s.n_calls - s.n_complete} calls are not complete"),
            (s.n_exact != s.n_complete, f"exact only {share(s.n_exact, s.n_complete)}"),
            (
                self.n_inexact_before != 0,
                f"{self.n_inexact_before} calls of a stray attempt inexact",
            ),
            (s.n_continuing == 0, "no call continued another, so splicing was not shown"),
            (s.n_breaks != 0, f"{s.n_breaks} prefix breaks"),
            (s.n_lanes != 1, f"{s.n_lanes} lanes where there is one agent"),
            (self.n_rows != 1, f"{self.n_rows} rows exported where one conversation was held"),
            (
                self.n_trained != s.n_sampled_tokens,
                f"{self.n_trained} of {s.n_sampled_tokens} sampled tokens are trained",
            ),
            (
                self.difference is not None and not self.difference <= MAX_DIFFERENCE,
                f"a logprob differs by {self.difference}",
            ),
            (
                self.difference is not None and self.n_scored != self.n_trained,
                f"{self.n_scored} of {self.n_trained} trained tokens were scored again",
            ),
            (self.replay != "identical", f"replay: {self.replay}"),
        ]
        return [f"{self.title}: {words}" for is_broken, words in found if is_broken]


def table(columns: list[Column]) -> list[str]:
    """Return the table in lines, aligned, for a terminal and a log alike."""
    rows: list[tuple[str, ...]] = [
        ("", *(c.title for c in columns)),
        ("task done", *("yes" if c.is_done else "NO" for c in columns)),
        ("calls", *(str(c.summary.n_calls) for c in columns)),
        ("lanes", *(str(c.summary.n_lanes) for c in columns)),
        ("exact", *(share(c.summary.n_exact, c.summary.n_complete) for c in columns)),
        ("spliced", *(share(c.summary.n_spliced, c.summary.n_continuing) for c in columns)),
        ("prefix breaks", *(str(c.summary.n_breaks) for c in columns)),
        ("parser-repaired outputs", *(str(c.n_repaired) for c in columns)),
        ("tokens trained / sampled", *(_trained(c) for c in columns)),
        ("largest logprob difference", *(_difference(c) for c in columns)),
        ("replay", *(c.replay for c in columns)),
    ]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _trained(column: Column) -> str:
    return f"{column.n_trained} / {column.summary.n_sampled_tokens}"


def _difference(column: Column) -> str:
    if column.difference is None:
        return "scripted: no model to ask"
    return f"{column.difference:.1e} of {column.n_scored} tokens"
