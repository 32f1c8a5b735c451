"""The tasks that the demo trains on, and the ones that it is judged on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from budwood.rollouts import TaskError
from budwood.rollouts.tasks import Task, load_tasks

from ..installed import CHECKOUT
from ..screen import DemoFailed

FOLDER = CHECKOUT / "examples" / "tasks"
TEMPLATES = (
    "count-lines",
    "find-word",
    "pack-folder",
    "repair-script",
    "sort-unique",
    "sum-column",
)
"""Those whose command is short enough for a model of three layers."""


@dataclass(frozen=True)
class Lessons:
    """Tasks by what they are for."""

    train: Sequence[Task]
    held_out: Sequence[Task]

    def some(self, n: int, step: int, *, after: int) -> list[Task]:
        """Return tasks of a training step, the same ones each time it is asked for.

        after: of each template only the variants after this one.
        """
        left = [task for task in self.train if _number(task) > after]
        return random.Random(f"lessons/{step}").sample(left, n)

    def first_of_each(self, n: int, tasks: Sequence[Task]) -> list[Task]:
        """Return the first n variants of each template."""
        return [task for task in tasks if _number(task) <= n]


def _number(task: Task) -> int:
    """Return the number of a variant among those of its split."""
    return int(task.name.rpartition("-")[2])


def require_templates() -> None:
    """Raise DemoFailed where the example tasks are not: an installed Budwood has none."""
    if not FOLDER.is_dir():
        raise DemoFailed(
            f"the example tasks are not in {FOLDER}: they are part of a checkout of Budwood, "
            "where `make demo-train` trains on them"
        )


def lessons(workspace: Path) -> Lessons:
    """Write the variants of all templates below `workspace`; raises DemoFailed."""
    require_templates()
    try:
        tasks = [task for name in TEMPLATES for task in load_tasks(FOLDER / name, workspace)]
    except TaskError as error:
        raise DemoFailed(str(error)) from error
    return Lessons(
        [task for task in tasks if task.split == "train"],
        [task for task in tasks if task.split == "held-out"],
    )
