"""`budwood task`: tasks, before anything is trained on them.

Exit codes of `check`: 0 every task is sound; 1 one is not; 2 the command line or a folder cannot be
read, or a task asks for what is not supported (then nothing was run); 3 one could not be checked;
130 Ctrl-C or SIGTERM ended it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .event_loop import run_until_ended
from .task_folders import (
    AsLocalOption,
    PassAtOption,
    RewardOption,
    SplitOption,
    VarOption,
    tasks_in,
    variables_of,
)
from .terminal import Screen, fail

if TYPE_CHECKING:
    from collections.abc import Callable

    from budwood.rollouts.tasks import CheckReport, Trial

NOT_SOUND, NOT_CHECKED, INTERRUPTED = 1, 3, 130
BACKEND = "local"
"""The sandboxes that tasks are checked in."""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    task = typer.Typer(help="Check tasks.", no_args_is_help=True)
    task.callback()(lambda: None)
    task.command("check")(check)
    app.add_typer(task, name="task")


def check(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders of tasks, or of templates.", metavar="DIR...")
    ],
    repeats: Annotated[int, typer.Option(help="How often each task is checked.", min=1)] = 1,
    split: SplitOption = None,
    reward: RewardOption = None,
    pass_at: PassAtOption = 1.0,
    var: VarOption = None,
    as_local: AsLocalOption = False,
    concurrency: Annotated[int, typer.Option(help="How many at a time.", min=1)] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Run each task's own solution, which must pass, and nothing at all, which must fail.

    Of a template every variant is checked. A verifier that breaks is neither pass nor failure, and
    the task not sound. Ends with 0 if all are sound, 1 if one is not, 3 if one could not be
    checked.
    """
    from budwood.rollouts.sandbox_place import places_of
    from budwood.rollouts.tasks import check_all
    from budwood.sandbox import StartFailed, backend_named

    with TemporaryDirectory(prefix="budwood-tasks-") as workspace:
        variables = variables_of(var or [])
        tasks = tasks_in(folders, Path(workspace), split, as_local)
        with _progress(len(tasks)) as advance:
            reports: list[CheckReport] = []

            async def run() -> None:
                async with backend_named(BACKEND) as backend:
                    reports[:] = await check_all(
                        tasks,
                        places_of(backend),
                        concurrency=concurrency,
                        on_report=advance,
                        repeats=repeats,
                        variables=variables,
                        reward_key=reward,
                        pass_at=pass_at,
                    )

            try:
                run_until_ended(run())
            except StartFailed as error:
                fail(f"no sandbox to check tasks in: {error}", NOT_CHECKED)
    if not reports:
        fail("ended before all tasks were checked", INTERRUPTED)
    if as_json:
        ok = all(report.is_sound for report in reports)
        rows = [_as_json(report) for report in reports]
        typer.echo(json.dumps({"ok": ok, "backend": BACKEND, "tasks": rows}, indent=1))
    else:
        _show(reports)
    raise typer.Exit(_exit_code(reports))


@contextmanager
def _progress(total: int) -> Iterator[Callable[[CheckReport], None]]:
    """Show on a terminal how many tasks are done; yields what is told of each."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("checking tasks"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=total)
        yield lambda _: progress.advance(bar)


def _show(reports: list[CheckReport]) -> None:
    screen = Screen()
    screen.table(
        ["task", "oracle", "no-op", "state"],
        [
            [report.task, _ended(report, "oracle"), _ended(report, "no-op"), _state(report)]
            for report in reports
        ],
    )
    for report in reports:
        for problem in report.problems:
            screen.line(f"{report.task}: {problem}", style="red")
    n_sound = sum(report.is_sound for report in reports)
    screen.line(f"{n_sound} of {len(reports)} tasks are sound")


def _ended(report: CheckReport, kind: str) -> str:
    """Say how the trials of a kind ended: `3/3 passed`, `1/1 failed`, `1/3 broke`."""
    trials = [trial for trial in report.trials if trial.kind == kind]
    counts = {
        how: sum(_how(trial) == how for trial in trials) for how in ("passed", "failed", "broke")
    }
    return ", ".join(f"{n}/{len(trials)} {how}" for how, n in counts.items() if n) or "not run"


def _how(trial: Trial) -> str:
    if trial.grade.verdict.reward is None:
        return "broke"
    return "passed" if trial.grade.verdict.is_pass else "failed"


def _state(report: CheckReport) -> str:
    if not report.was_checked:
        return "not checked"
    return "sound" if report.is_sound else "not sound"


def _exit_code(reports: list[CheckReport]) -> int:
    if not all(report.was_checked for report in reports):
        return NOT_CHECKED
    return 0 if all(report.is_sound for report in reports) else NOT_SOUND


def _as_json(report: CheckReport) -> dict[str, Any]:
    return {
        "task": report.task,
        "checksum": report.checksum,
        "state": _state(report),
        "problems": list(report.problems),
        "trials": [
            {
                "kind": trial.kind,
                "ended": _how(trial),
                "reward": trial.grade.verdict.reward,
                "rewards": dict(trial.grade.verdict.rewards),
                "class": trial.grade.verdict.failure_class.value,
                "cause": trial.grade.verdict.cause,
                "why": trial.grade.verdict.why,
                "output": trial.grade.output.decode("utf-8", "replace"),
                "solution_exit_code": trial.solved.exit_code if trial.solved else None,
            }
            for trial in report.trials
        ],
    }
