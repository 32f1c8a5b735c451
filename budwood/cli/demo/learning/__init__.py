"""The demo's second half: from tasks to a better model, on real sandboxes and real vLLM.

    lazy teacher ─▶ recordings ─▶ SFT ─┬─▶ rollouts ⇄ GRPO ─────────▶ held-out variants
                                       └─▶ the same, advantages shuffled ─▶ held-out variants

The base model copies names (`proxy/testing/copying_model.py`) and knows nothing else. It imitates
recordings of a teacher that is lazy at two tasks of five; SFT stops early, after a fixed number of
steps. What is left to reinforcement learning is to find out that lazy answers earn nothing. It sees
react and pi; mini-swe-agent is only tried afterwards.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..acts import conversation
from ..engine import engine_of
from ..screen import DemoFailed, Place, teacher_running
from .lab import MAX_TOKENS, TEMPERATURE, Lab, lab, weights_folder
from .lessons import Lessons, lessons
from .verdict import BEFORE, CONTROL, RL, SFT, Stage, Verdict, stage_of

if TYPE_CHECKING:
    from budwood.proxy.engine.launch import RunningEngine
    from budwood.trainers import WeightSync
    from budwood.trajectory_store import RolloutId, Run, Store

MODEL = "budwood-copying"
MAX_MODEL_LEN = 16_384
ENGINE_FLAGS = ("--override-generation-config", f'{{"max_new_tokens": {MAX_TOKENS}}}')
"""A limit for harnesses that set none: what knows nothing would talk to its window's end."""
CHEAP, ALL = ("react", "pi"), ("react", "pi", "mini-swe-agent")
"""Two CPU-seconds for three rollouts, and with the harness that takes four for one."""
LESSONS = {"react": 8, "pi": 8, "mini-swe-agent": 2}
"""Variants of each template that the teacher is recorded at, by harness. GRPO gets the others: it
needs no teacher, and at what was imitated there is little chance left in what the model does."""
EXAMS = {BEFORE: 1, SFT: 2, RL: 2, CONTROL: 1}
"""Attempts at each held-out variant by the cheap harnesses."""
MINI_EXAMS = 1
"""Held-out variants of each template that mini-swe-agent is tried at."""
STEPS, TASKS_A_STEP, GROUP = 4, 4, 4
"""Of GRPO: optimizer steps, tasks of each by two harnesses, attempts that are compared."""
SFT_CONFIG = """\
# Imitation of the teacher, stopped early: a fixed number of epochs.
model = "{model}"
output = "{output}"
from_text = true
rows_per_step = 16
epochs = {epochs}
data = {{ selector = "run=teacher" }}
optimizer = {{ learning_rate = 2e-3, schedule = "linear", warmup_steps = 20, weight_decay = 0.1, \
beta2 = 0.95 }}
checkpoint = {{ every = 1000 }}
"""
EPOCHS = 24
RL_RATE = 4e-4


def run(place: Place) -> Verdict:
    """Run it; return the table. Raises DemoFailed."""
    from budwood.trajectory_store import Store

    clock = place.clock
    clock.say(
        "second half: tasks, rollouts in sandboxes, SFT, GRPO, new weights into running vLLM; "
        "about 15 minutes on 2 idle cores"
    )
    os.environ["OMP_NUM_THREADS"] = "1"  # small matrices lose time to thread hand-offs
    found = lessons(place.folder / "tasks")
    with Store.open(place.folder / "learning.db") as store:
        _record_teacher(place, store, found)
        base = _make_base(place, store)
        with (
            _sft(place, base) as trained,
            engine_of(
                place,
                base,
                name=MODEL,
                max_model_len=MAX_MODEL_LEN,
                dev_routes=True,
                extra=ENGINE_FLAGS,
            ) as engine,
        ):
            return asyncio.run(_learn(place, store, found, engine, base, trained))


def _record_teacher(place: Place, store: Store, found: Lessons) -> None:
    clock = place.clock
    taught = {name: found.first_of_each(n, found.train) for name, n in LESSONS.items()}
    numbers = ", ".join(f"{len(tasks)} by {name}" for name, tasks in taught.items())
    clock.say(f"recording the teacher at training variants, each in a fresh sandbox: {numbers}")
    words = [str(task.folder) for task in found.train]

    async def record(url: str) -> None:
        async with lab(place, store, url) as bench:
            for harness, tasks in taught.items():
                await bench.rollouts("teacher", tasks, [harness])

    module = "budwood.cli.demo.learning.teacher"
    with teacher_running(place.environment(), *words, module=module) as url:
        asyncio.run(record(url))
    rewards = Counter(store.outcome(rollout.id).reward for rollout in _of(store, "teacher"))
    n = rewards.total()
    clock.more(f"{n} recordings, {rewards[1.0]} earned a reward: at the others it was lazy")


def _make_base(place: Place, store: Store) -> Path:
    from budwood.proxy.testing.copying_model import make

    by_harness: dict[str, list[dict[str, Any]]] = {name: [] for name in ALL}
    for rollout in _of(store, "teacher"):
        by_harness[str(rollout.harness)].append(conversation(store, rollout.id))
    folder = place.folder / MODEL
    place.clock.say("making a model of 3 layers that copies names and knows nothing else")
    make(folder, by_harness)
    return folder


@contextmanager
def _sft(place: Place, base: Path) -> Iterator[subprocess.Popen[str]]:
    """Train in a process of its own, while the engine starts and is tried."""
    output = weights_folder(place, "sft")
    config = place.folder / "sft.toml"
    config.write_text(SFT_CONFIG.format(model=base, output=output, epochs=EPOCHS), "utf-8")
    store = place.folder / "learning.db"
    words = ["train", "sft", config.name, "--store", store.name]
    place.clock.say(f"$ budwood {' '.join(words)}")
    log = (place.logs / "sft.txt").open("w")
    with log:
        process = subprocess.Popen(
            [sys.executable, "-m", "budwood", *words],
            cwd=place.folder,
            env={**place.environment(), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


async def _learn(
    place: Place,
    store: Store,
    found: Lessons,
    engine: RunningEngine,
    base: Path,
    sft: subprocess.Popen[str],
) -> Verdict:
    from budwood.trainers import Served, SyncSettings, WeightSync

    async with lab(place, store, engine.url) as bench:
        settings = SyncSettings(
            engines=(engine.url,),
            proxies=(bench.gateway.admin_url,),
            admin_secret=bench.gateway.admin_secret,  # type: ignore[arg-type]
        )
        async with WeightSync(settings, serving=Served(base, 0, "base")) as sync:
            school = _School(place, store, found, bench, sync)
            await school.exam(BEFORE)
            await school.take(await _ended(place, sft))
            await school.exam(SFT)
            await school.reinforce(RL)
            await school.exam(RL)
            await school.reinforce(CONTROL)
            await school.exam(CONTROL)
            return school.verdict()


async def _ended(place: Place, sft: subprocess.Popen[str]) -> Path:
    """Wait for the end of SFT; return its weights."""
    code = await asyncio.to_thread(sft.wait)
    said = (place.logs / "sft.txt").read_text("utf-8")
    if code:
        raise DemoFailed(f"`budwood train sft` ended with {code}:\n{said[-2000:]}")
    steps = [line for line in said.splitlines() if line.startswith("step ")]
    place.clock.say(f"SFT is done: {steps[-1]}")
    left_out = json.loads((weights_folder(place, "sft") / "run.json").read_text("utf-8"))[
        "left_out"
    ]
    if left_out:
        raise DemoFailed(f"SFT left out recordings: {left_out}")
    return weights_folder(place, "sft") / "model"


class _School:
    """Trains and examines one model after the other on one engine."""

    def __init__(
        self, place: Place, store: Store, found: Lessons, bench: Lab, sync: WeightSync
    ) -> None:
        self._place, self._store, self._found = place, store, found
        self._bench, self._sync = bench, sync
        self._stages: dict[str, Stage] = {}
        self._training: dict[str, list[float]] = {}
        self._difference = 0.0
        self._n_complete = self._n_exact = 0
        self._sft = Path()

    async def take(self, weights: Path) -> None:
        """Have the engine serve the imitator."""
        self._sft = weights
        pushed = await self._sync.push(weights, 0, label="sft")
        self._place.clock.more(f"vLLM serves it; it stood still for {pushed.paused_s:.1f} s")

    async def exam(self, name: str) -> None:
        """Try what is served at the held-out variants."""
        clock, held = self._place.clock, self._found.held_out
        few = self._found.first_of_each(MINI_EXAMS, held)
        runs = [
            await self._bench.rollouts(f"exam {name}", few, ["mini-swe-agent"]),
            await self._bench.rollouts(f"exam {name}", held, CHEAP, attempts=EXAMS[name]),
        ]
        stage = self._stages[name] = stage_of(self._store, name, runs)
        each = ", ".join(f"{one} {stage.interval(one)}" for one in sorted(stage.rewards))
        clock.say(f"{name}: held-out reward {stage.mean:.2f} of {len(stage.all)} rollouts ({each})")

    async def reinforce(self, name: str) -> None:
        """Do a few steps of GRPO from the imitator on, with its own rollouts; or the control."""
        from budwood.trainers import OnlineConfig, train_online

        is_control = name == CONTROL
        output = weights_folder(self._place, "grpo-control" if is_control else "grpo")
        config = OnlineConfig.model_validate(
            {
                "model": str(self._sft),
                "output": output,
                "steps": STEPS,
                "temperature": TEMPERATURE,
                "optimizer": {"learning_rate": RL_RATE, "beta2": 0.95},
                "hardware": {"device": "cpu"},
                "mismatch": {"max_mean": 1e-4, "max_single": 1e-3},
                "shuffle_advantages": is_control,
                "checkpoint": {"every": STEPS},
            }
        )
        self._place.clock.say(
            f"GRPO, {STEPS} steps of {TASKS_A_STEP * len(CHEAP) * GROUP} rollouts by react and pi"
            + (", advantages shuffled" if is_control else "")
        )
        means = self._training.setdefault("control" if is_control else "RL", [])

        async def make_rollouts(step: int) -> Sequence[RolloutId]:
            from budwood.trajectory_store import Purpose

            run = await self._bench.rollouts(
                f"{output.name} step {step}",
                self._found.some(TASKS_A_STEP, step, after=max(LESSONS.values())),
                CHEAP,
                attempts=GROUP,
                purpose=Purpose.TRAIN,
            )
            stage = stage_of(self._store, run.name, [run])
            means.append(stage.mean)
            self._n_complete += stage.n_complete
            self._n_exact += stage.n_exact
            return [rollout.id for rollout in self._store.rollouts(run.id)]

        trained = await train_online(
            self._store, config, make_rollouts, self._sync, say=self._place.clock.more
        )
        if trained.mismatch is not None:
            self._difference = max(self._difference, trained.mismatch.largest)
        self._place.clock.more(f"report: {trained.report}")

    def verdict(self) -> Verdict:
        """Return what came of it."""
        return Verdict(
            stages=self._stages,
            n_complete=self._n_complete,
            n_exact=self._n_exact,
            largest_difference=self._difference,
            training=self._training,
        )


def _of(store: Store, name: str) -> list[Any]:
    """Return the rollouts of all runs of a name that count."""
    from budwood.rollouts.run import is_counted

    runs: list[Run] = [run for run in store.runs() if run.name == name]
    return [
        rollout for run in runs for rollout in store.rollouts(run.id) if is_counted(store, rollout)
    ]


def check_installed() -> None:
    """Raise DemoFailed where rollouts cannot be made here."""
    if sys.platform != "linux" or shutil.which("bwrap") is None:
        raise DemoFailed(
            "rollouts need sandboxes, and sandboxes need Linux and bubblewrap: install the package "
            "`bubblewrap` (apt, dnf), see docs/sandbox.md"
        )
