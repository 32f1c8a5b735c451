"""What can go wrong before a task runs. What goes wrong in grading is a verdict, not an error.

RolloutError
├── TaskError
│   ├── BrokenTask        (also a ValueError) a folder that can't be read as a task
│   ├── UnsupportedTask   (also a ValueError) a task that asks for what this version can't do
│   └── MissingVariable   (also a LookupError) a `${NAME}` that nobody gave a value
├── PlaceFailed           the place where a task is done is gone, or can't do what it must
│   └── NoRoom            its disk is full
├── Unusable              the place is there, but can't be made ready for a task
├── GatewayFailed         the proxy can't be asked to open or close a rollout
└── RunRefused            (also a ValueError) a run that can't be begun or gone on with as it is
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from budwood.trajectory_store import FailureClass


class RolloutError(Exception):
    """Base of this room's errors."""


class TaskError(RolloutError):
    """A task can't be used as it is."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a task."""

    key: str
    """The key in `task.toml` (`verifier.timeout_sec`), or empty where the whole file is meant."""
    text: str
    """What was wanted, what was found, what to do."""

    def __str__(self) -> str:
        """Return the key and the text."""
        return f"{self.key}: {self.text}" if self.key else self.text


class BrokenTask(TaskError, ValueError):
    """A file of a task folder is missing or wrong; names the file, each key, and what to do."""

    def __init__(self, file: Path, problems: Sequence[Problem]) -> None:
        """Keep the file and what is wrong with it."""
        super().__init__(_listed(str(file), problems))
        self.file = file
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[type, tuple[Path, tuple[Problem, ...]]]:
        """Pickle by what it was made of."""
        return type(self), (self.file, self.problems)


class UnsupportedTask(TaskError, ValueError):
    """A sound task that asks for something this version can't give; names every such key."""

    def __init__(self, task: str, problems: Sequence[Problem]) -> None:
        """Keep the task's name and what it asks for."""
        super().__init__(_listed(f"task {task} can't run here", problems))
        self.task = task
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[type, tuple[str, tuple[Problem, ...]]]:
        """Pickle by what it was made of."""
        return type(self), (self.task, self.problems)


class MissingVariable(TaskError, LookupError):
    """A task wants a value from outside that was not given to it."""

    def __init__(self, key: str, name: str) -> None:
        """Keep where it stands and which variable it is."""
        super().__init__(
            f"{key}: wants the variable {name}, which was not given; give it, "
            f"or write a default into the task: ${{{name}:-value}}"
        )
        self.key = key
        self.name = name

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        """Pickle by what it was made of."""
        return type(self), (self.key, self.name)


class PlaceFailed(RolloutError):
    """A place is gone or can't do what it must: no verdict on anybody's work."""


class NoRoom(PlaceFailed):
    """The disk of a place is full: whoever filled it left no room for what comes next."""


class Unusable(RolloutError):
    """A command that only keeps house failed: the place is not as a task needs it."""


class GatewayFailed(RolloutError):
    """The proxy, or the engine behind it, can't be asked; names class and cause for the outcome."""

    def __init__(self, text: str, failure_class: FailureClass, cause: str) -> None:
        """Keep whose failure it is."""
        super().__init__(text)
        self.failure_class = failure_class
        self.cause = cause

    def __reduce__(self) -> tuple[type, tuple[str, FailureClass, str]]:
        """Pickle by what it was made of."""
        return type(self), (str(self), self.failure_class, self.cause)


class RunRefused(RolloutError, ValueError):
    """A run can't be begun or gone on with: says what is wrong and what to do."""


def _listed(head: str, problems: Sequence[Problem]) -> str:
    if len(problems) == 1:
        return f"{head}: {problems[0]}"
    return "\n".join([f"{head}:", *(f"  {problem}" for problem in problems)])
