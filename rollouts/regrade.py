"""Grades again what runs have kept: the verifier of today on the working directory of then.

For a verifier that was mended, or another bar. The task is known by its name; its tests may have
changed meanwhile. What was no reward before may become one: a verifier that was broken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from budwood.sandbox import Backend, Spec
from budwood.trajectory_store import FailureClass, Outcome, RolloutId, Store

from .attempt import BY, Rules
from .end_state import END_STATE, put_end_state
from .endings import Judged
from .errors import RunRefused
from .sandbox_place import SandboxPlace, limits_of
from .tasks import Task, Verdict, grade, prepare


async def grade_again(
    store: Store,
    rollout_id: RolloutId,
    tasks: Mapping[str, Task],
    backend: Backend,
    folder: Path,
    rules: Rules,
) -> Outcome:
    """Grade one rollout again in a fresh sandbox, and return the outcome, which is stored.

    tasks: by name. folder: that of all runs, as `carry_out` was given it.
    Raises RunRefused where the task or what the agent left is missing, or the rollout failed before
    its verifier could say anything; SandboxError, StoreError.
    """
    rollout = await asyncio.to_thread(store.rollout, rollout_id)
    before = await asyncio.to_thread(store.outcome, rollout_id)
    task = tasks.get(rollout.task or "")
    if task is None:
        names = ", ".join(sorted(tasks)) or "none"
        raise RunRefused(f"{rollout_id}: its task {rollout.task} is not among those given: {names}")
    if not before.failure_class.counts and before.failure_class is not FailureClass.VERIFIER:
        raise RunRefused(
            f"{rollout_id}: it failed by {before.failure_class} ({before.cause}): there is nothing "
            "to grade; run it again"
        )
    kept = folder / rollout.run_id / str(rollout.labels.get("folder")) / END_STATE
    if not kept.is_file():
        raise RunRefused(f"{rollout_id}: what it left is not kept ({kept}); name its run's --logs")
    spec = Spec(workdir=task.workdir, limits=replace(limits_of(task), deadline_s=None))
    async with await backend.create(spec) as sandbox:
        place = SandboxPlace(sandbox)
        # Not the task's own files: what the agent removed must stay removed.
        await prepare(task, place, with_files=False)
        await put_end_state(sandbox, task.workdir, kept)
        graded = await grade(
            task, place, variables=rules.variables,
            reward_key=rules.reward_key, pass_at=rules.pass_at,
        )  # fmt: skip
    judged = _judged(before, graded.verdict)
    return await asyncio.to_thread(
        lambda: store.score(
            rollout_id, judged.reward, by=f"{BY} {task.checksum}",
            failure_class=judged.failure_class, cause=judged.cause,
        )
    )  # fmt: skip


def _judged(before: Outcome, verdict: Verdict) -> Judged:
    """Return the new outcome: a limit that the agent ran into stays beside its new reward."""
    failed: Outcome | Verdict = verdict
    if verdict.reward is not None and before.failure_class is FailureClass.POLICY:
        failed = before
    return Judged(reward=verdict.reward, failure_class=failed.failure_class, cause=failed.cause)
