"""Shows that a task can be done and is not done by itself.

The oracle (the task's own solution) must pass, and a no-op must fail by an honest verdict; a
verifier that breaks where nothing was done would hide every failed attempt. Both run on fresh
places, as often as asked: a task that answers now this, now that is no task to train on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal

from budwood.trajectory_store import FailureClass

from ..errors import RolloutError
from .folder import Task
from .grading import Grade, grade
from .place import SOLUTION, ExecResult, Place, keep_house, prepare
from .variables import fill

Kind = Literal["oracle", "no-op"]
OpenPlace = Callable[[Task], AbstractAsyncContextManager[Place]]
"""Opens a fresh, empty place for a task, and ends it. It may raise UnsupportedTask."""
SOLUTION_TIMEOUT_S = 600.0
"""Where the task sets no limit for agents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of the oracle, or of nothing, and its grade."""

    kind: Kind
    grade: Grade
    solved: ExecResult | None = None
    """How the oracle ended; None for a no-op."""

    @property
    def problem(self) -> str | None:
        """What is wrong with it, None if it ended as it should."""
        verdict = self.grade.verdict
        if verdict.failure_class is not FailureClass.NONE:
            what = f"the verifier failed ({verdict.cause}): {verdict.why}"
            return f"{self.kind}: {what}{self._looked()}"
        if self.kind == "oracle" and not verdict.is_pass:
            what = f"reward {verdict.reward:g}, wanted {verdict.pass_at:g}"
            return f"oracle: {what}{self._ended()}{self._looked()}"
        if self.kind == "no-op" and verdict.is_pass:
            return f"no-op: reward {verdict.reward:g} though nothing was done"
        return None

    def _ended(self) -> str:
        if self.solved is None or self.solved.exit_code == 0:
            return ""
        how = "did not end in its time"
        if self.solved.exit_code is not None:
            how = f"ended with {self.solved.exit_code}"
        elif self.solved.signal is not None:
            how = f"was ended by signal {self.solved.signal}"
        said = self.solved.said.strip()[-200:]
        return f"; solve.sh {how}: {said}" if said else f"; solve.sh {how}"

    def _looked(self) -> str:
        said = self.grade.output.decode("utf-8", "replace").strip()[-200:]
        return f"; test.sh said: {said}" if said else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What `check` saw of one task."""

    task: str
    checksum: str
    trials: tuple[Trial, ...]
    """Empty where the task could not be checked."""
    problems: tuple[str, ...]
    """What is wrong with the task, each thing once; empty if it is sound."""

    @property
    def is_sound(self) -> bool:
        """True where every oracle passed and every no-op failed honestly."""
        return not self.problems

    @property
    def was_checked(self) -> bool:
        """False where the place failed, or the task could not be run in it."""
        return bool(self.trials)


async def check_all(
    tasks: Sequence[Task],
    open_place: OpenPlace,
    *,
    concurrency: int = 1,
    on_report: Callable[[CheckReport], None] | None = None,
    repeats: int = 1,
    variables: Mapping[str, str] | None = None,
    reward_key: str | None = None,
    pass_at: float = 1.0,
) -> list[CheckReport]:
    """Check many tasks, `concurrency` at a time; return their reports in the tasks' order.

    A task that could not be checked stops no other: its report says why. Other arguments as in
    `check`.
    """
    places = asyncio.Semaphore(concurrency)

    async def one(task: Task) -> CheckReport:
        async with places:
            try:
                report = await check(
                    task,
                    open_place,
                    repeats=repeats,
                    variables=variables,
                    reward_key=reward_key,
                    pass_at=pass_at,
                )
            except RolloutError as error:
                why = f"could not be checked: {error}"
                report = CheckReport(
                    task=task.name, checksum=task.checksum, trials=(), problems=(why,)
                )
        if on_report is not None:
            on_report(report)
        return report

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(one(task)) for task in tasks]
    return [done.result() for done in running]


async def check(
    task: Task,
    open_place: OpenPlace,
    *,
    repeats: int = 1,
    variables: Mapping[str, str] | None = None,
    reward_key: str | None = None,
    pass_at: float = 1.0,
) -> CheckReport:
    """Run the oracle and a no-op `repeats` times each, one after the other, and report.

    The caller has made sure that the task can run there (`require_runnable`). Other arguments as in
    `grade`; raises what it and `open_place` raise.
    """
    if repeats < 1:
        raise ValueError(f"repeats: wants 1 or more, found {repeats}")
    given = variables or {}
    kinds: tuple[Kind, ...] = ("no-op",) if task.solution_dir is None else ("oracle", "no-op")
    trials: list[Trial] = []
    for kind in kinds * repeats:
        async with open_place(task) as place:
            await prepare(task, place)
            solved = await _solve(task, place, given) if kind == "oracle" else None
            graded = await grade(
                task, place, variables=given, reward_key=reward_key, pass_at=pass_at
            )
        trials.append(Trial(kind=kind, grade=graded, solved=solved))
    return CheckReport(
        task=task.name,
        checksum=task.checksum,
        trials=tuple(trials),
        problems=tuple(_problems(task, trials)),
    )


async def _solve(task: Task, place: Place, variables: Mapping[str, str]) -> ExecResult:
    """Run the solution as the agent would run, and take it away again."""
    assert task.solution_dir is not None
    config = task.config
    env = {
        "DEBIAN_FRONTEND": "noninteractive",
        **fill(config.environment.env, variables, table="environment"),
        **fill(config.solution.env, variables, table="solution"),
    }
    await place.put_tree(task.solution_dir, SOLUTION)
    await keep_house(place, 'chmod +x -- "$1"', f"{SOLUTION}/solve.sh")
    solved = await place.exec(
        [f"{SOLUTION}/solve.sh"],
        env=env,
        cwd=task.workdir,
        timeout_s=config.agent.timeout_sec or SOLUTION_TIMEOUT_S,
    )
    await keep_house(place, 'find "$1" -mindepth 1 -delete', SOLUTION)
    return solved


def _problems(task: Task, trials: list[Trial]) -> list[str]:
    problems = []
    if task.solution_dir is None:
        problems.append("solution/solve.sh is missing: nothing shows that the task can be done")
    problems += [trial.problem for trial in trials if trial.problem]
    for kind in ("oracle", "no-op"):
        rewards = [trial.grade.verdict.reward for trial in trials if trial.kind == kind]
        if len(set(rewards)) > 1:
            problems.append(f"{kind}: not the same each time: rewards {rewards}")
    return list(dict.fromkeys(problems))
