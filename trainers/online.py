"""GRPO online: rollouts of the weights as they are, one step, the new weights into the engines.

    rollouts of step n ─▶ rows ─▶ alarm ─▶ optimizer step ─▶ weights saved ─▶ pushed ─▶ n + 1

Where rollouts come from is handed in: a function that makes those of a step and returns their ids.
Every step compares the recorded logprobs with the trainer's own before it trains, so weights that
an engine did not take are noticed before anything is trained on them.

A run that is killed goes on from its newest checkpoint, whose weights are pushed first. The
function is then asked for the same steps again: one that keeps what it has finished (`budwood run`
does) makes none of it twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from shutil import rmtree
from statistics import fmean
from typing import TYPE_CHECKING, Any

from budwood.trajectory_store import RolloutId, Store

from .checkpoint import checkpoints, name_of, prune, step_of
from .errors import NothingToTrain
from .extra import heavy
from .grpo import Say, Trained, step_figures
from .mismatch import Mismatch, check
from .reading import Recorded, read_for_rl
from .rows import Batch, grpo_batch
from .run_folder import RunFolder
from .settings import OnlineConfig
from .weight_sync import WeightSync

if TYPE_CHECKING:
    from .policy import Policy

NOT_DECIDING = {"model", "output", "checkpoint", "hardware", "mismatch"}
"""Fields of the configuration that may change between a run and its going on."""

MakeRollouts = Callable[[int], Awaitable[Sequence[RolloutId]]]
"""Makes the rollouts of a step, counted from 0, with the weights that are served now."""


async def train_online(
    store: Store,
    config: OnlineConfig,
    make_rollouts: MakeRollouts,
    sync: WeightSync,
    *,
    say: Say = lambda _: None,
) -> Trained:
    """Do the steps, and leave the engines with the last weights.

    The engines serve the configuration's model, or any other: what the run begins or goes on with
    is pushed first. A step whose rollouts say nothing (all rewards of each group equal) changes
    nothing and is counted. Raises `Mismatched`, `SyncFailed`, `RunError`, `NothingToTrain` where no
    step had anything to train, and what `make_rollouts` raises.
    """
    make_policy: type[Policy] = heavy("policy").Policy
    decides = config.model_dump(mode="json", exclude=NOT_DECIDING)
    about: dict[str, Any] = {
        "kind": "online",
        "name": config.output.resolve().name,
        "model": config.model,
        "data_digest": hashlib.sha256(repr(decides).encode()).hexdigest(),
        "decides": decides,
        "settings": config.model_dump(mode="json"),
        "facts": {"temperature": config.temperature},
        "bars": {},
        "left_out": {},
        "notes": ["Control: advantages were shuffled."] if config.shuffle_advantages else [],
    }
    with RunFolder(config.output, about) as folder:
        found = checkpoints(folder.checkpoints)
        done = step_of(found[-1]) if found else 0
        folder.begin(done)
        policy = await asyncio.to_thread(
            make_policy,
            config.model,
            config,
            temperature=config.temperature,
            total_steps=config.steps,
            checkpoint=found[-1] if found else None,
        )
        if done:
            say(f"going on after step {done} of {config.steps}")
        loop = _Loop(store, config, folder, policy, sync, say)
        await loop.push(done)
        for number in range(done, config.steps):
            await loop.step(number, await make_rollouts(number))
        if not policy.steps:
            raise NothingToTrain("no step's rollouts", loop.left_out)
        await asyncio.to_thread(policy.save, folder.model)
        report = folder.finish(steps=config.steps, **_facts(folder.figures()))
        return Trained(config.output, folder.model, report, config.steps, loop.worst)


class _Loop:
    """What one run of the loop holds on to."""

    def __init__(
        self,
        store: Store,
        config: OnlineConfig,
        folder: RunFolder,
        policy: Policy,
        sync: WeightSync,
        say: Say,
    ) -> None:
        self._store, self._config, self._folder = store, config, folder
        self._policy, self._sync, self._say = policy, sync, say
        self._version = 0
        """Of the weights that are served."""
        self.left_out: Counter[str] = Counter()
        self.worst: Mismatch | None = None
        """The largest of all steps that were done now; None before the first."""

    async def step(self, number: int, rollouts: Sequence[RolloutId]) -> None:
        """Train on the rollouts of a step and push what comes of it; `number` counts from 0."""
        config = self._config
        recorded, batch = await asyncio.to_thread(self._read, number, rollouts)
        self._count(recorded, batch)
        rewards = [a.reward for a in recorded.attempts if a.is_compared and a.reward is not None]
        figures = _counted(recorded, rewards)
        said = f"reward {fmean(rewards):.2f} of {len(rewards)}" if rewards else "no reward"
        if batch.rows:
            figures |= await self._train(recorded, batch)
            difference = figures["mismatch/largest"]
            said += f", recorded and recomputed logprobs differ by {difference:.1e} at most"
            await self.push(number + 1)
        else:
            said += ", nothing to compare"
        self._folder.log(number + 1, figures)
        self._say(f"step {number + 1} of {config.steps}: {said}")
        if (number + 1) % config.checkpoint.every == 0 or number + 1 == config.steps:
            path = self._folder.checkpoints / name_of(number + 1)
            await asyncio.to_thread(self._policy.save_checkpoint, path)
            prune(self._folder.checkpoints, config.checkpoint.keep)

    async def push(self, version: int) -> None:
        """Write the weights, have the engines serve them, and remove those before the last ones."""
        weights = self._folder.path / "weights"
        path = (weights / f"step-{version}").absolute()
        await asyncio.to_thread(self._policy.save, path)
        before = self._sync.serving
        await self._sync.push(path, version, label=f"{self._config.output.name}-{version}")
        self._version = version
        kept = {path, before.weights if before else path}
        for old in weights.absolute().iterdir():
            if old not in kept:
                await asyncio.to_thread(rmtree, old)

    async def _train(self, recorded: Recorded, batch: Batch) -> dict[str, float]:
        """Do the step, once the alarm is silent; return its figures."""
        mismatch = await asyncio.to_thread(self._policy.mismatch, batch.rows)
        if self.worst is None or mismatch.largest > self.worst.largest:
            self.worst = mismatch
        check(mismatch, self._config.mismatch)
        metrics = await asyncio.to_thread(self._policy.step, batch)
        figures = step_figures(metrics, batch, recorded.attempts, version=self._version)
        return {**figures, "mismatch/largest": mismatch.largest}

    def _read(self, number: int, rollouts: Sequence[RolloutId]) -> tuple[Recorded, Batch]:
        config = self._config
        recorded = read_for_rl(
            self._store, config.data, temperature=config.temperature, rollouts=rollouts
        )
        shuffle = random.Random(f"{config.seed}/{number}") if config.shuffle_advantages else None
        batch = grpo_batch(
            recorded.attempts,
            advantage=config.advantage,
            weight=config.loss.weight,
            max_tokens=config.data.max_tokens,
            shuffle=shuffle,
        )
        return recorded, batch

    def _count(self, recorded: Recorded, batch: Batch) -> None:
        self.left_out.update(recorded.not_trained)
        self.left_out.update(batch.left_out)
        self._folder.say(left_out=dict(self.left_out))


def _counted(recorded: Recorded, rewards: Sequence[float]) -> dict[str, float]:
    """Return the figures of any step, trained or not."""
    figures: dict[str, float] = {
        "rollouts/made": len(recorded.attempts),
        "calls": sum(a.n_calls for a in recorded.attempts),
        "calls/exact": sum(a.n_exact for a in recorded.attempts),
    }
    return figures | ({"reward/mean": fmean(rewards)} if rewards else {})


def _facts(steps: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return what the report says of all steps together, those before a kill included."""
    n_calls = sum(each["calls"] for each in steps)
    n_exact = sum(each["calls/exact"] for each in steps)
    differences = [each["mismatch/largest"] for each in steps if "mismatch/largest" in each]
    return {
        "steps with something to compare": len(differences),
        "rollouts": int(sum(each["rollouts/made"] for each in steps)),
        "calls": int(n_calls),
        "exact share": n_exact / n_calls if n_calls else None,
        "largest difference": max(differences, default=None),
    }
