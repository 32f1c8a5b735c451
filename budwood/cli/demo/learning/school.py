"""Trains and examines one model after the other on one engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from budwood.trainers import OnlineConfig, train_online
from budwood.trajectory_store import Purpose, RolloutId, Store

from ..screen import Place
from .lab import TEMPERATURE, Lab
from .lessons import Lessons
from .verdict import BEFORE, CONTROL, RL, SFT, Stage, Verdict, stage_of

if TYPE_CHECKING:
    from budwood.trainers import WeightSync

CHEAP = ("react", "pi")
"""Two CPU-seconds for three rollouts; mini-swe-agent takes four for one."""
TAUGHT = {"react": 8, "pi": 8, "mini-swe-agent": 2}
"""Variants of each template that the teacher is recorded at, by harness. GRPO gets the others: it
needs no teacher, and at what was imitated there is little chance left in what the model does."""
EXAMS = {BEFORE: 1, SFT: 2, RL: 2, CONTROL: 1}
"""Attempts at each held-out variant by the cheap harnesses."""
MINI_EXAMS = 1
"""Held-out variants of each template that mini-swe-agent is tried at."""
STEPS, TASKS_A_STEP, GROUP = 4, 4, 4
"""Of GRPO: optimizer steps, tasks of each by two harnesses, attempts that are compared."""
RATE = 4e-4


class School:
    """What is served, and what each stage of it came to."""

    def __init__(
        self, place: Place, store: Store, found: Lessons, bench: Lab, sync: WeightSync
    ) -> None:
        """Examine and train on `bench`, and push weights by `sync`."""
        self._place, self._store, self._found = place, store, found
        self._bench, self._sync = bench, sync
        self._stages: dict[str, Stage] = {}
        self._training: dict[str, list[float]] = {}
        self._difference = 0.0
        self._n_complete = self._n_exact = 0
        self._sft = Path()

    async def take(self, weights: Path) -> None:
        """Have the engine serve the imitator, and begin with it from now on."""
        self._sft = weights
        pushed = await self._sync.push(weights, 0, label="sft")
        self._place.clock.more(f"vLLM serves it; it stood still for {pushed.paused_s:.1f} s")

    async def exam(self, name: str) -> None:
        """Try what is served at the held-out variants."""
        held = self._found.held_out
        few = self._found.first_of_each(MINI_EXAMS, held)
        runs = [
            await self._bench.rollouts(f"exam {name}", few, ["mini-swe-agent"]),
            await self._bench.rollouts(f"exam {name}", held, CHEAP, attempts=EXAMS[name]),
        ]
        stage = self._stages[name] = stage_of(self._store, runs)
        each = ", ".join(f"{one} {stage.interval(one)}" for one in sorted(stage.rewards))
        self._place.clock.say(
            f"{name}: held-out reward {stage.mean:.2f}, {len(stage.all)} rollouts ({each})"
        )

    async def reinforce(self, name: str) -> None:
        """Do a few steps of GRPO from the imitator on, with its own rollouts; or the control."""
        is_control = name == CONTROL
        config = OnlineConfig.model_validate(
            {
                "model": str(self._sft),
                "output": self._place.folder / "training" / ("control" if is_control else "grpo"),
                "steps": STEPS,
                "temperature": TEMPERATURE,
                "optimizer": {"learning_rate": RATE, "beta2": 0.95},
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
        means = self._training.setdefault(name, [])

        async def make_rollouts(step: int) -> Sequence[RolloutId]:
            run = await self._bench.rollouts(
                f"{config.output.name} step {step}",
                self._found.some(TASKS_A_STEP, step, after=max(TAUGHT.values())),
                CHEAP,
                attempts=GROUP,
                purpose=Purpose.TRAIN,
            )
            stage = stage_of(self._store, [run])
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
