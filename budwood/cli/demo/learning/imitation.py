"""The demo's teacher recorded, the base model, and its imitation of the recordings by SFT."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from budwood.proxy.testing.copying_model import make
from budwood.rollouts.run import is_counted
from budwood.trajectory_store import Store

from ..acts import conversation
from ..screen import DemoFailed, Place, teacher_running
from .lab import lab
from .lessons import Lessons
from .school import TAUGHT

TEACHER = "teacher"
"""Name of the runs that hold its recordings."""
EPOCHS = 24
CONFIG = """\
# Imitation of the teacher, stopped early: a fixed number of epochs.
model = "{model}"
output = "{output}"
from_text = true
rows_per_step = 16
epochs = {epochs}
data = {{ selector = "run={teacher}" }}
optimizer = {{ learning_rate = 2e-3, schedule = "linear", warmup_steps = 20, weight_decay = 0.1, \
beta2 = 0.95 }}
checkpoint = {{ every = 1000 }}
"""


def record_teacher(place: Place, store: Store, found: Lessons) -> None:
    """Have the teacher do training variants by all harnesses; raises DemoFailed."""
    taught = {name: found.first_of_each(n, found.train) for name, n in TAUGHT.items()}
    numbers = ", ".join(f"{len(tasks)} by {name}" for name, tasks in taught.items())
    place.clock.say(f"recording the teacher at tasks, each in a fresh sandbox: {numbers}")
    words = [str(task.folder) for task in found.train]

    async def record(url: str) -> None:
        async with lab(place, store, url) as bench:
            for harness, tasks in taught.items():
                await bench.rollouts(TEACHER, tasks, [harness])

    module = "budwood.cli.demo.learning.teacher"
    with teacher_running(place.environment(), *words, module=module) as url:
        asyncio.run(record(url))
    rewards = Counter(store.outcome(rollout.id).reward for rollout in _recordings(store))
    place.clock.more(
        f"{rewards.total()} recordings, {rewards[1.0]} earned a reward: at the others it was lazy"
    )


def make_base(store: Store, folder: Path) -> None:
    """Make the model that copies names and knows nothing else."""
    by_harness: dict[str, list[dict[str, Any]]] = {}
    for rollout in _recordings(store):
        own = by_harness.setdefault(str(rollout.harness), [])
        own.append(conversation(store, rollout.id))
    make(folder, by_harness)


class Imitation:
    """SFT in a process of its own, so that an engine can start and be tried meanwhile."""

    def __init__(self, process: subprocess.Popen[str], output: Path, log: Path) -> None:
        self._process, self._output, self._log = process, output, log

    async def ended(self) -> tuple[Path, str]:
        """Wait for its end; return its weights, and its last step in words."""
        code = await asyncio.to_thread(self._process.wait)
        said = self._log.read_text("utf-8")
        if code:
            raise DemoFailed(f"`budwood train sft` ended with {code}:\n{said[-2000:]}")
        left_out = json.loads((self._output / "run.json").read_text("utf-8"))["left_out"]
        if left_out:
            raise DemoFailed(f"SFT left out recordings: {left_out}")
        steps = [line for line in said.splitlines() if line.startswith("step ")]
        return self._output / "model", steps[-1]


@contextmanager
def imitation(place: Place, base: Path) -> Iterator[Imitation]:
    """Train as long as the context is open."""
    output, config = place.folder / "training" / "sft", place.folder / "sft.toml"
    text = CONFIG.format(model=base, output=output, epochs=EPOCHS, teacher=TEACHER)
    config.write_text(text, "utf-8")
    words = ["train", "sft", config.name, "--store", "learning.db"]
    place.clock.say(f"$ budwood {' '.join(words)}")
    log = place.logs / "sft.txt"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "budwood", *words],
            cwd=place.folder,
            env={**place.environment(), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield Imitation(process, output, log)
        finally:
            process.kill()
            process.wait()


def _recordings(store: Store) -> list[Any]:
    """Return the teacher's rollouts."""
    return [
        rollout
        for run in store.runs()
        if run.name == TEACHER
        for rollout in store.rollouts(run.id)
        if is_counted(store, rollout)
    ]
