"""Folders of tasks as commands take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .terminal import fail

if TYPE_CHECKING:
    from budwood.rollouts.tasks import Task

Split = Literal["train", "held-out"]
SplitOption = Annotated[Split | None, typer.Option(help="Only tasks of this split; default: all.")]
RewardOption = Annotated[
    str | None,
    typer.Option("--reward", help="The reward that counts, where a verifier gives several."),
]
PassAtOption = Annotated[
    float, typer.Option("--pass-at", help="The reward from which on it is a pass.")
]
VarOption = Annotated[
    list[str] | None,
    typer.Option(
        "--var", help="A value for ${NAME} in the task's env tables.", metavar="NAME=VALUE"
    ),
]
AsLocalOption = Annotated[
    bool,
    typer.Option("--as-local", help="Let this machine's programs do for tasks with an image."),
]


def tasks_in(
    folders: Sequence[Path], workspace: Path, split: Split | None, as_local: bool
) -> list[Task]:
    """Load the tasks of all folders; what is wrong with them ends the command, all of it told."""
    from budwood.rollouts import TaskError
    from budwood.rollouts.tasks import load_tasks, require_runnable

    tasks: list[Task] = []
    errors: list[TaskError] = []
    for number, folder in enumerate(folders):
        try:
            tasks += load_tasks(folder, workspace / str(number), split=split)
        except TaskError as error:
            errors.append(error)
    for task in tasks:
        try:
            require_runnable(task, as_local=as_local)
        except TaskError as error:
            errors.append(error)
    if errors:
        fail("\n".join(map(str, errors)), 2)
    if not tasks:
        fail(f"none of these folders has a task of the split {split}", 2)
    return tasks


def variables_of(given: Sequence[str]) -> Mapping[str, str]:
    """Return the values of `--var NAME=VALUE`."""
    variables: dict[str, str] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name:
            fail(f"--var wants NAME=VALUE, found {text!r}", 2)
        variables[name] = value
    return variables
