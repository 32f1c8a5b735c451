"""A run: every attempt at every task by every harness, each to an outcome that counts.

The same command goes on with a run that was interrupted. A run is known in the store by its name
and by the digest of all that decides about its figures (`Plan.described`). What has an outcome that
counts is finished and never run again; a rollout that was open when its process died says
`interrupted` and never counts. An outcome that is not the policy's doing is tried again, `retries`
times in one go; where the engine was the cause, only once it answers again.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from budwood.sandbox import Backend
from budwood.trajectory_store import FailureClass, History, Purpose, Rollout, Run, Store

from .attempt import BY, Bench, Planned, Rules, Tried, try_once
from .endings import interrupted
from .errors import RunRefused
from .gateway import Gateway
from .harnesses import Harness
from .tasks import Task, fill
from .tasks.grading import verifier_env

ENGINE_WAIT_S = 900.0
"""How long a retry waits for an engine that is gone: one that starts on a busy machine takes
minutes."""
PAUSE_S = 1.0
"""Before a retry; twice as long before each further one."""
WAITS_FOR_ENGINE = (FailureClass.ENGINE, FailureClass.OURS)
"""What heals when the engine, or the proxy, is back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run shall do."""

    name: str
    tasks: Sequence[Task]
    harnesses: Sequence[Harness]
    attempts: int = 1
    purpose: Purpose = Purpose.EVAL
    history: History = History.AS_SENT
    rules: Rules = field(default_factory=Rules)
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What else decides about the figures (sampling, the way to the engine); JSON."""
    is_new: bool = False
    """Begin anew even where the same run is in the store."""

    def all(self) -> Iterator[Planned]:
        """Yield every attempt: the first of each task, then the second of each, ..."""
        for attempt in range(self.attempts):
            for task in self.tasks:
                for harness in self.harnesses:
                    yield Planned(task, harness, attempt)

    def described(self, gateway: Gateway) -> dict[str, Any]:
        """Return all that decides about the figures, as JSON keeps it."""
        return {
            "tasks": {task.name: task.checksum for task in self.tasks},
            "harnesses": {one.name: one.installation.version for one in self.harnesses},
            "attempts": self.attempts,
            "purpose": self.purpose.value,
            "history": self.history.value,
            "model": asdict(gateway.served.told),
            "served": gateway.served.name,
            "spelling": gateway.served.spelling,
            "rules": {**asdict(self.rules), "variables": sorted(self.rules.variables)},
            **self.settings,
        }


@dataclass(frozen=True, slots=True)
class Finished:
    """A run that came to its end."""

    run: Run
    n_before: int
    """Attempts that were finished before."""
    tried: Sequence[Tried]
    """What was tried now and is not tried again, in the order of its ends."""
    n_retries: int


OnTried = Callable[[Tried, bool], None]
"""Told of each try, and whether the attempt is tried again."""


async def carry_out(
    plan: Plan,
    store: Store,
    backend: Backend,
    gateway: Gateway,
    folder: Path,
    *,
    concurrency: int = 1,
    retries: int = 2,
    on_begin: Callable[[Run, int, int], None] | None = None,
    on_tried: OnTried | None = None,
) -> Finished:
    """Bring every attempt of a plan to an outcome and return what came of it.

    folder: below it each run has one of its own, for outputs and logs.
    on_begin: told (run, attempts in all, attempts that are finished already).
    Raises RunRefused where the same run is going on elsewhere, MissingVariable, StoreError.
    Cancelled, it stores what it was doing as interrupted, and ends.
    """
    require_sound(plan)
    run = await asyncio.to_thread(run_of, plan, store, gateway)
    run_folder = folder / run.id
    with only_one(run_folder):
        await asyncio.to_thread(close_left_open, store, run)
        done = await asyncio.to_thread(finished_keys, store, run)
        missing = [one for one in plan.all() if key_of(one) not in done]
        n_all = plan.attempts * len(plan.tasks) * len(plan.harnesses)
        if on_begin is not None:
            on_begin(run, n_all, n_all - len(missing))
        bench = Bench(run, store, backend, gateway, plan.rules, run_folder)
        work = _Work(bench, retries, on_tried)
        await work.all(missing, concurrency)
    return Finished(run, n_all - len(missing), work.tried, work.n_retries)


class _Work:
    """The attempts of one go; the runner's only state."""

    def __init__(self, bench: Bench, retries: int, on_tried: OnTried | None) -> None:
        self._bench = bench
        self._retries = retries
        self._on_tried = on_tried
        self._tries = Counter(_tries_before(bench.store, bench.run))
        self.tried: list[Tried] = []
        self.n_retries = 0

    async def all(self, attempts: Sequence[Planned], concurrency: int) -> None:
        """Bring attempts to an outcome, `concurrency` at a time."""
        left = iter(attempts)

        async def worker() -> None:
            for one in left:
                await self._one(one)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(attempts))):
                group.create_task(worker())

    async def _one(self, planned: Planned) -> None:
        for left in range(self._retries, -1, -1):
            self._tries[key_of(planned)] += 1
            tried = await try_once(planned, self._bench, self._tries[key_of(planned)])
            again = not tried.judged.counts and left > 0
            if self._on_tried is not None:
                self._on_tried(tried, again)
            if not again:
                self.tried.append(tried)
                return
            self.n_retries += 1
            await asyncio.sleep(PAUSE_S * 2 ** (self._retries - left))
            if tried.judged.failure_class in WAITS_FOR_ENGINE:
                await self._until_engine_is_up()

    async def _until_engine_is_up(self) -> None:
        try:
            async with asyncio.timeout(ENGINE_WAIT_S):
                await self._bench.gateway.until_up()
        except TimeoutError:
            return  # the next try says what is up


Key = tuple[str, str, int]
"""What an attempt is, whatever its task's folder is called: checksum, harness, number."""


def key_of(planned: Planned) -> Key:
    """Return what an attempt is known by in its run."""
    return planned.task.checksum, planned.harness.name, planned.attempt


def key_of_rollout(rollout: Rollout) -> Key:
    """Return the key of the attempt that a stored rollout is a try of."""
    return str(rollout.labels.get("checksum")), str(rollout.harness), rollout.attempt


def require_sound(plan: Plan) -> None:
    """Raise RunRefused where attempts could not be told apart, MissingVariable where one is."""
    for what, names in (
        ("task", [task.name for task in plan.tasks]),
        ("harness", [harness.name for harness in plan.harnesses]),
    ):
        twice = [name for name, n in Counter(names).items() if n > 1]
        if twice:
            raise RunRefused(f"named twice: {what} {', '.join(twice)}; name each once")
    if not plan.tasks or not plan.harnesses or plan.attempts < 1:
        raise RunRefused("a run needs one task, one harness and one attempt at least")
    for task in plan.tasks:
        fill(task.config.environment.env, plan.rules.variables, table="environment")
        verifier_env(task, plan.rules.variables)


def run_of(plan: Plan, store: Store, gateway: Gateway) -> Run:
    """Return the run of a plan: the one in the store, else a new one."""
    described = plan.described(gateway)
    text = json.dumps(described, sort_keys=True)
    fingerprint = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    if not plan.is_new:
        for run in reversed(store.runs()):
            if run.name == plan.name and run.settings.get("fingerprint") == fingerprint:
                return run
    return store.open_run(
        plan.name,
        purpose=plan.purpose,
        history=plan.history,
        settings={"fingerprint": fingerprint, "plan": described},
        versions={"python": platform.python_version(), "engine": gateway.served.engine},
    )


def close_left_open(store: Store, run: Run) -> None:
    """Close the rollouts that a dead process left without an outcome; they never count."""
    left = [one for one in store.rollouts(run.id) if store.outcome(one.id).version == 0]
    for rollout in left:
        store.close_rollout(rollout.id)
        judged = interrupted("its process died")
        store.score(rollout.id, None, by=BY, failure_class=judged.failure_class, cause=judged.cause)


def finished_keys(store: Store, run: Run) -> set[Key]:
    """Return the attempts that have an outcome that counts."""
    return {
        key_of_rollout(rollout) for rollout in store.rollouts(run.id) if is_counted(store, rollout)
    }


def is_counted(store: Store, rollout: Rollout) -> bool:
    """Whether a rollout's latest outcome says something about the policy."""
    outcome = store.outcome(rollout.id)
    return outcome.reward is not None and outcome.failure_class.counts


def _tries_before(store: Store, run: Run) -> Mapping[Key, int]:
    return Counter(key_of_rollout(rollout) for rollout in store.rollouts(run.id))


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold a run's folder for this process; raises RunRefused where another holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunRefused(
                f"this run is going on in another process ({folder}): wait for its end, or give "
                "this one another name (--name)"
            ) from error
        yield
    finally:
        os.close(lock)
