"""Goals and what was measured, as lines to read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Goal:
    """One figure that is wished for."""

    code: str
    what: str
    limit: float
    unit: str = ""
    at_least: bool = False
    """The figure shall be at least `limit`; else at most."""

    def is_met(self, figure: float) -> bool:
        """Whether a figure reaches the goal."""
        return figure >= self.limit if self.at_least else figure <= self.limit

    def line(self, figure: float | None, detail: str = "") -> str:
        """Return what to print; figures inform, they fail nothing."""
        sign = "≥" if self.at_least else "≤"
        goal = f"{sign} {self.limit:g}{self.unit}"
        if figure is None:
            return (
                f"{self.code:<4} {self.what:<52} {'—':>10}   goal {goal:<10} not measured {detail}"
            )
        verdict = "met" if self.is_met(figure) else "MISSED"
        found = f"{figure:.2f}{self.unit}"
        return f"{self.code:<4} {self.what:<52} {found:>10}   goal {goal:<10} {verdict:<7} {detail}"


def heading(title: str) -> str:
    """Return a title with a line below it."""
    return f"\n{title}\n{'-' * len(title)}"
