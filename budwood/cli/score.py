"""`budwood score`: rewards for recorded rollouts.

Exit codes: 0 all were scored; 1 the store did not take them, or some could not be graded again; 2
the command line, the selector or the file cannot be read (then nothing was scored).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from .event_loop import run_until_ended
from .opening import SELECTOR_HELP, StoreOption, opened
from .settings import load_settings, logs_beside
from .task_folders import VarOption, tasks_in, variables_of
from .terminal import Screen, fail

if TYPE_CHECKING:
    from budwood.rollouts.tasks import Task
    from budwood.trajectory_store import FailureClass, RolloutId, Store

COLUMNS = ("rollout", "reward", "class", "cause")


@dataclass(frozen=True)
class Score:
    """One judgement, checked."""

    rollout_id: RolloutId
    reward: float | None
    failure_class: FailureClass
    cause: str | None


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("score")(score)


def score(
    selector: Annotated[str | None, typer.Argument(help=SELECTOR_HELP)] = None,
    reward: Annotated[
        str | None, typer.Option(help="A number, or `none` for: not graded.", metavar="X")
    ] = None,
    csv_file: Annotated[
        Path | None,
        typer.Option(
            "--csv", help="File with the columns rollout and reward (and class, cause, if wanted)."
        ),
    ] = None,
    by: Annotated[str, typer.Option(help="Who judged: a verifier's name, a person.")] = "cli",
    failure_class: Annotated[
        str | None,
        typer.Option(
            "--class", help="none, policy, or whose failure it was; default: the cause's."
        ),
    ] = None,
    cause: Annotated[str | None, typer.Option(help="A cause code, such as out_of_memory.")] = None,
    verifier: Annotated[
        bool,
        typer.Option("--verifier", help="Run the tasks' verifiers on what `budwood run` has kept."),
    ] = False,
    task: Annotated[
        list[Path] | None,
        typer.Option(help="With --verifier: folder of a task or a template; may be repeated."),
    ] = None,
    reward_key: Annotated[
        str | None,
        typer.Option(help="With --verifier: the reward that counts, where there are several."),
    ] = None,
    var: VarOption = None,
    logs: Annotated[
        Path | None, typer.Option(help="With --verifier: the --logs of the run.")
    ] = None,
    store: StoreOption = None,
) -> None:
    """Give rewards to recorded rollouts.

    Each score is a new version; none is overwritten, the latest counts. With --csv a selector
    limits which rollouts the file may score. Nothing is scored unless everything can be read.
    """
    if (reward is not None) + (csv_file is not None) + verifier != 1:
        fail("give one of --reward X, --csv FILE and --verifier", 2)
    if verifier:
        if selector is None or not task:
            fail("--verifier needs a selector and --task DIR: the tasks with their verifiers", 2)
        _grade_again(selector, task, reward_key, variables_of(var or ()), logs, store)
        return
    if reward is not None and selector is None:
        fail("--reward needs a selector, for example: budwood score last --reward 1", 2)
    if not by.strip():
        fail("--by says who judged; it may not be empty", 2)
    with opened(store, read_only=False) as found:
        if csv_file is not None:
            if failure_class is not None or cause is not None:
                fail("with --csv the file says class and cause, in columns of those names", 2)
            scores = list(_from_file(found, csv_file, selector))
            if not scores:
                fail(f"{csv_file} holds no line to score", 2)
        else:
            assert reward is not None
            assert selector is not None
            judged = (_reward(reward, "--reward"), *_class(failure_class, cause, "--class"))
            scores = [Score(rollout_id, *judged) for rollout_id in found.select(selector)]
        rows: list[list[str]] = []
        for one in scores:
            kept = found.score(
                one.rollout_id,
                one.reward,
                by=by,
                failure_class=one.failure_class,
                cause=one.cause,
            )
            shown = "none" if kept.reward is None else str(kept.reward)
            rows.append([one.rollout_id, str(kept.version), shown, kept.failure_class.value])
    Screen().table(["rollout", "version", "reward", "class"], rows)


def _grade_again(
    selector: str,
    folders: list[Path],
    reward_key: str | None,
    variables: Mapping[str, str],
    logs: Path | None,
    store: str | None,
) -> None:
    from budwood.rollouts import RunRefused
    from budwood.rollouts.attempt import Rules
    from budwood.rollouts.regrade import grade_again
    from budwood.sandbox import SandboxError, backend_named

    rules = Rules(reward_key=reward_key, variables=variables)
    rows: list[list[str]] = []
    refused: list[str] = []

    async def go(found: Store, tasks: Mapping[str, Task], folder: Path) -> None:
        async with backend_named("local") as backend:
            for rollout_id in found.select(selector):
                try:
                    kept = await grade_again(found, rollout_id, tasks, backend, folder, rules)
                except (RunRefused, SandboxError) as error:
                    refused.append(str(error))
                    continue
                shown = "none" if kept.reward is None else str(kept.reward)
                rows.append([rollout_id, str(kept.version), shown, kept.failure_class.value])

    with (
        TemporaryDirectory(prefix="budwood-tasks-") as workspace,
        opened(store, read_only=False) as found,
    ):
        tasks = {one.name: one for one in tasks_in(folders, Path(workspace), None, True)}
        url = load_settings(changes={"store": {"url": store}}).store.url
        try:
            run_until_ended(go(found, tasks, logs or logs_beside(url)))
        except SandboxError as error:
            fail(str(error), 1)
    Screen().table(["rollout", "version", "reward", "class"], rows)
    if refused:
        fail("\n".join(refused), 1)


def _from_file(store: Store, path: Path, selector: str | None) -> Iterator[Score]:
    from budwood.trajectory_store import SelectorError

    allowed = None if selector is None else set(store.select(selector))
    seen: set[RolloutId] = set()
    for place, row in _lines(path):
        try:
            chosen = store.select(row["rollout"].strip())
        except SelectorError as error:
            fail(f"{place}: {error}", 2)
        if len(chosen) != 1:
            fail(f"{place}: {row['rollout']!r} names {len(chosen)} rollouts; a line scores one", 2)
        if allowed is not None and chosen[0] not in allowed:
            fail(f"{place}: {chosen[0]} is not among the rollouts of {selector!r}", 2)
        if chosen[0] in seen:
            fail(f"{place}: {chosen[0]} stands in the file twice", 2)
        seen.add(chosen[0])
        yield Score(
            chosen[0],
            _reward(row["reward"], place),
            *_class(row.get("class") or None, row.get("cause") or None, place),
        )


def _lines(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restval="")
            names = [name.strip() for name in reader.fieldnames or ()]
            if not {"rollout", "reward"} <= set(names) or not set(names) <= set(COLUMNS):
                fail(
                    f"{path}: the columns are rollout, reward and, if wanted, class and cause; "
                    f"found: {', '.join(names) or 'none'}",
                    2,
                )
            reader.fieldnames = names
            for row in reader:
                if None in row:
                    fail(f"{path}, line {reader.line_num}: more values than columns", 2)
                yield f"{path}, line {reader.line_num}", row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        fail(f"{path} cannot be read: {error}", 2)


def _reward(text: str, place: str) -> float | None:
    text = text.strip()
    if text.lower() == "none":
        return None
    try:
        value = float(text)
    except ValueError:
        fail(f"{place}: a reward is a number or none, not {text!r}", 2)
    if not math.isfinite(value):
        fail(f"{place}: a reward is a finite number or none, not {text!r}", 2)
    return value


def _class(text: str | None, cause: str | None, place: str) -> tuple[FailureClass, str | None]:
    """Return class and cause; a cause that is known brings its class, and agrees with it."""
    from budwood.trajectory_store import CAUSES, FailureClass

    known = CAUSES.get(cause) if cause is not None else None
    if text is None:
        return known or FailureClass.NONE, cause
    try:
        given = FailureClass(text.strip())
    except ValueError:
        fail(f"{place}: no class {text!r}; there are {', '.join(FailureClass)}", 2)
    if known is not None and known is not given:
        fail(f"{place}: the cause {cause} belongs to class {known}, not {given}", 2)
    return given, cause
