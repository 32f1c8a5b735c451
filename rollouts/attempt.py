"""One attempt at one task: sandbox, harness, verifier, outcome.

    rollout opened ─▶ sandbox ready ─▶ task's files in ─▶ harness runs ─▶ every process ended
      ─▶ calls recorded, rollout closed ─▶ tests in, verifier runs ─▶ outcome stored

The error boundary of a rollout is here: whatever goes wrong becomes an outcome of its own class,
stored with the rollout, and ends no other. Only what the store refuses passes, since then nothing
can be said to have happened. A rollout that is cancelled is told so before the cancel goes on.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from budwood.harness_adapters import Endpoint
from budwood.sandbox import Backend, Sandbox, Spec, Spool
from budwood.trajectory_store import RolloutId, Run, Store

from .end_state import END_STATE, keep_end_state
from .endings import Ending, Judged, interrupted, name_failure, outcome_of
from .errors import RolloutError
from .gateway import Gateway, Opened, Wanted
from .harnesses import Harness, write_artifacts
from .sandbox_place import SandboxPlace, spec_for
from .tasks import Grade, Task, fill, grade, prepare

AGENT_TIMEOUT_S = 600.0
"""Where neither the run nor the task limits agents."""
SLACK_S = 300.0
"""What a sandbox may live beyond the times of agent and verifier: copying, waiting, ending."""
KEEP_BYTES = 4 * 1024**2
"""Kept in memory of the harness's output, from each end; the whole of it is in the run's folder."""
BY = "verifier"

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What holds for all attempts of a run."""

    reward_key: str | None = None
    """The reward that counts; None: the key `reward`, or the only one."""
    pass_at: float = 1.0
    timeout_s: float | None = None
    """Seconds an agent may take; None: what the task says."""
    max_turns: int | None = None
    """Turns an agent may take; None: as many as its harness lets it."""
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    """Values for `${NAME}` in the tasks' env tables."""

    def timeout_of(self, task: Task) -> float:
        """Return the seconds that an agent may take for a task."""
        return self.timeout_s or task.config.agent.timeout_sec or AGENT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Planned:
    """One attempt that is to be made."""

    task: Task
    harness: Harness
    attempt: int
    """0, 1, ... among the attempts at this task by this harness."""

    @property
    def group_id(self) -> str:
        """Attempts that are compared with each other: the same task by the same harness."""
        return f"{self.task.name}@{self.task.checksum[-12:]}/{self.harness.name}"

    @property
    def folder_name(self) -> str:
        """A name for its files, below the run's folder."""
        task = _NOT_IN_NAMES.sub("-", self.task.name).lstrip(".") or "task"
        # Two names may look alike without their odd characters.
        return f"{task}.{self.task.checksum[-8:]}/{self.harness.name}/{self.attempt}"


@dataclass(frozen=True, slots=True)
class Tried:
    """An attempt that has an outcome in the store."""

    planned: Planned
    rollout_id: RolloutId | None
    """None where it was not even opened."""
    judged: Judged


@dataclass(frozen=True, slots=True)
class Bench:
    """All that an attempt needs and a run has once."""

    run: Run
    store: Store
    backend: Backend
    gateway: Gateway
    rules: Rules
    folder: Path
    """Where outputs and logs are kept: one folder an attempt."""


async def try_once(planned: Planned, bench: Bench, number: int) -> Tried:
    """Make an attempt and store its outcome; `number` counts the tries of it from 1.

    Raises StoreError where nothing can be stored, MissingVariable before anything starts.
    """
    one = _Try(planned, bench, number)
    try:
        judged = await one.run()
    except asyncio.CancelledError:
        await asyncio.shield(one.store_outcome(interrupted("the run was ended")))
        raise
    except Exception as error:  # the boundary: named by what it crossed
        judged = name_failure(error)
    await one.store_outcome(judged)
    return Tried(planned, one.opened.id if one.opened else None, judged)


class _Try:
    def __init__(self, planned: Planned, bench: Bench, number: int) -> None:
        self._planned = planned
        self._bench = bench
        self._number = number
        self._folder = bench.folder / planned.folder_name / str(number)
        self.opened: Opened | None = None
        self._is_closed = False
        self._labels: dict[str, Any] = {}

    async def run(self) -> Judged:
        """Return the outcome; raises what the boundaries raise."""
        task, harness, bench = self._planned.task, self._planned.harness, self._bench
        env = fill(task.config.environment.env, bench.rules.variables, table="environment")
        await asyncio.to_thread(self._folder.mkdir, parents=True, exist_ok=True)
        # First, so that a sandbox that does not start has a rollout that says so.
        self.opened = await bench.gateway.open(self._wanted())
        async with AsyncExitStack() as stack:
            sandbox = await bench.backend.create(self._spec(env))
            await stack.enter_async_context(sandbox)
            place = SandboxPlace(sandbox)
            await prepare(task, place)
            endpoint = self._endpoint(sandbox, self.opened)
            prepared = await harness.lay_out(
                sandbox, task.instruction, endpoint,
                max_turns=bench.rules.max_turns, timeout_s=self._timeout_s,
            )  # fmt: skip
            done = await sandbox.run(
                list(prepared.argv), env=prepared.env, cwd=task.workdir, stdin=prepared.stdin,
                deadline_s=self._timeout_s, keep_bytes=KEEP_BYTES, spool=Spool(self._folder),
            )  # fmt: skip
            await sandbox.kill_all()
            artifacts = await harness.artifacts(sandbox)
            await asyncio.to_thread(write_artifacts, self._folder / "harness", artifacts)
            result = harness.read_result(done, artifacts)
            calls = await self._close()
            await keep_end_state(sandbox, task.workdir, self._folder / END_STATE)
            graded = await grade(
                task, place, variables=bench.rules.variables,
                reward_key=bench.rules.reward_key, pass_at=bench.rules.pass_at,
            )  # fmt: skip
            await self._keep_verdict(graded)
        ending = Ending(
            exit=done.exit, status=result.status, said=result.why, calls=calls,
            verdict=graded.verdict,
        )  # fmt: skip
        self._labels |= {
            "folder": str(self._folder.relative_to(bench.folder)),
            "harness_status": result.status.value,
            "limits_hit": sorted(limit.value for limit in done.exit.limits_hit),
            "rewards": dict(graded.verdict.rewards),
        }
        return outcome_of(ending)

    async def store_outcome(self, judged: Judged) -> None:
        """Close the rollout if it is open, and store what it was worth; nothing if none was."""
        if self.opened is None:
            return
        if not self._is_closed:
            try:
                await self._close()
            except RolloutError:
                # The proxy is gone; the store is ours all the same.
                await asyncio.to_thread(self._bench.store.close_rollout, self.opened.id)
        labels = self._labels | ({"why": judged.why[:2000]} if judged.why else {})
        rollout_id = self.opened.id
        await asyncio.to_thread(self._bench.store.label_rollout, rollout_id, labels)
        await asyncio.to_thread(
            lambda: self._bench.store.score(
                rollout_id, judged.reward, by=BY,
                failure_class=judged.failure_class, cause=judged.cause,
            )
        )  # fmt: skip

    def _spec(self, env: Mapping[str, str]) -> Spec:
        task = self._planned.task
        return spec_for(
            task,
            socket=self._bench.gateway.socket,
            binds=self._planned.harness.installation.binds,
            env=env,
            lives_s=self._timeout_s + task.config.verifier.timeout_sec + SLACK_S,
        )

    @property
    def _timeout_s(self) -> float:
        return self._bench.rules.timeout_of(self._planned.task)

    def _wanted(self) -> Wanted:
        planned, rules = self._planned, self._bench.rules
        budgets = {}
        if rules.max_turns is not None and planned.harness.turns_are_counted_by_proxy:
            budgets["max_calls"] = rules.max_turns
        return Wanted(
            run=self._bench.run,
            group_id=planned.group_id,
            attempt=planned.attempt,
            task=planned.task.name,
            harness=planned.harness.name,
            harness_version=planned.harness.installation.version,
            labels={"try": self._number, "checksum": planned.task.checksum}
            | ({"split": planned.task.split} if planned.task.split else {}),
            budgets=budgets,
        )

    def _endpoint(self, sandbox: Sandbox, opened: Opened) -> Endpoint:
        told = self._bench.gateway.served.told
        return Endpoint(
            base_url=f"http://{sandbox.proxy_address}/r/{opened.secret}/v1",
            secret=opened.secret,
            model=told.model,
            context_window=told.context_window,
            max_output=told.max_output,
        )

    async def _close(self) -> Sequence[Any]:
        assert self.opened is not None
        calls = await self._bench.gateway.close(self.opened)
        self._is_closed = True
        return calls

    async def _keep_verdict(self, graded: Grade) -> None:
        def write() -> None:
            (self._folder / "verifier.txt").write_bytes(graded.output)
            if graded.report is not None:
                (self._folder / "ctrf.json").write_bytes(graded.report)

        await asyncio.to_thread(write)
