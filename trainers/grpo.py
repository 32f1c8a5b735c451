"""GRPO over recorded groups: from a store and a configuration to new weights.

    read → plan: groups into steps → alarm → step, step, … → model, report

The plan depends on the recordings and the seed alone, so a run that was killed goes on with the
step that it was at. Groups that say nothing are in no step.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from budwood.trajectory_store import Store

from .checkpoint import checkpoints, name_of, prune, step_of
from .errors import NothingToTrain
from .extra import heavy
from .mismatch import Mismatch, check
from .reading import Recorded, one_temperature, read_for_rl
from .rows import Attempt, Batch, grpo_batch
from .run_folder import RunFolder
from .settings import GrpoConfig

if TYPE_CHECKING:
    from .policy import Policy, StepMetrics

Say = Callable[[str], None]

NOT_DECIDING = {"model", "output", "checkpoint", "hardware", "mismatch"}
"""Fields of the configuration that may change between a run and its going on."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What came of a run."""

    folder: Path
    model: Path
    """The new weights, as engines and transformers read them."""
    report: Path
    steps: int
    mismatch: Mismatch | None
    """Before the first step; None where the run went on from a checkpoint, or has no logprobs."""


def train_grpo(store: Store, config: GrpoConfig, *, say: Say = lambda _: None) -> Trained:
    """Train on the recorded groups that the configuration selects.

    Repeated after it was ended, it goes on from its newest checkpoint, and comes to the same
    weights. Raises `NothingToTrain`, `Mismatched` before anything was trained, `RunError` where
    the output folder holds another run, and errors of the store.
    """
    make_policy: type[Policy] = heavy("policy").Policy
    recorded = read_for_rl(store, config.data, temperature=config.temperature)
    steps, left_out = plan(recorded.attempts, config)
    left_out = {**recorded.not_trained, **left_out}
    if not steps:
        raise NothingToTrain(f"selector {config.data.selector!r}", left_out)
    temperature = config.temperature or one_temperature(recorded)
    about = {
        **described("grpo", config.model, config.output, recorded, left_out),
        "data_digest": digest(recorded.attempts),
        "decides": config.model_dump(mode="json", exclude=NOT_DECIDING),
        "settings": config.model_dump(mode="json"),
        "notes": ["Control: advantages were shuffled."] if config.shuffle_advantages else [],
    }
    with RunFolder(config.output, about) as folder:
        found = checkpoints(folder.checkpoints)
        done = step_of(found[-1]) if found else 0
        folder.begin(done)
        if done:
            say(f"going on after step {done} of {len(steps)}")
        policy = make_policy(
            config.model,
            config,
            temperature=temperature,
            total_steps=len(steps),
            checkpoint=found[-1] if found else None,
        )
        mismatch = None
        if not done:
            mismatch = policy.mismatch(batch_of(steps[0], config, 0).rows)
            folder.say(mismatch=asdict(mismatch), facts=_facts(mismatch, temperature))
            say(f"recorded and recomputed logprobs differ by {mismatch.largest:.3g} at most")
            check(mismatch, config.mismatch)
        for number in range(done, len(steps)):
            batch = batch_of(steps[number], config, number)
            metrics = policy.step(batch)
            folder.log(metrics.step, step_figures(metrics, batch, steps[number]))
            say(f"step {metrics.step} of {len(steps)}: loss {metrics.loss:.5f}")
            if metrics.step % config.checkpoint.every == 0 or metrics.step == len(steps):
                policy.save_checkpoint(folder.checkpoints / name_of(metrics.step))
                prune(folder.checkpoints, config.checkpoint.keep)
        policy.save(folder.model)
        report = folder.finish(steps=len(steps))
        return Trained(config.output, folder.model, report, len(steps), mismatch)


def plan(
    attempts: Iterable[Attempt], config: GrpoConfig
) -> tuple[list[list[Attempt]], dict[str, int]]:
    """Return the rollouts of each step, whole groups, and what is in none, by reason."""
    left_out, groups = Counter[str](), list[list[Attempt]]()
    ordered = sorted(attempts, key=lambda a: (a.group or "", a.rollout_id))
    for _, members in groupby(ordered, key=lambda a: a.group):
        group = list(members)
        batch = _batch(group, config)
        left_out.update(batch.left_out)
        if batch.rows:
            groups.append(group)
    chance, steps = random.Random(config.seed), list[list[Attempt]]()
    for _ in range(config.epochs):
        chance.shuffle(groups)
        for begin in range(0, len(groups), config.groups_per_step):
            chosen = groups[begin : begin + config.groups_per_step]
            steps.append([attempt for group in chosen for attempt in group])
    return steps, {reason: n for reason, n in sorted(left_out.items()) if n}


def batch_of(attempts: Sequence[Attempt], config: GrpoConfig, number: int) -> Batch:
    """Return the rows of a step; `number` counts from 0 and seeds the control's shuffle."""
    shuffle = random.Random(f"{config.seed}/{number}") if config.shuffle_advantages else None
    return _batch(attempts, config, shuffle)


def step_figures(
    metrics: StepMetrics,
    batch: Batch,
    attempts: Sequence[Attempt],
    *,
    version: int | None = None,
) -> dict[str, float]:
    """Return the figures of a step under the names that the report and TensorBoard show.

    `version` is the policy's before the step, where it is known: then also how many versions older
    the weights are that sampled the trained tokens.
    """
    rewards = [a.reward for a in attempts if a.is_compared and a.reward is not None]
    trained: Counter[str] = Counter()
    for row in batch.rows:
        trained[row.rollout_id] += row.n_trained
    n_calls = sum(a.n_calls for a in attempts)
    return {
        **_staleness(batch, version),
        "loss": metrics.loss,
        "grad_norm": metrics.grad_norm,
        "learning_rate": metrics.learning_rate,
        "reward/mean": fmean(rewards),
        "length/mean": fmean(trained.values()),
        "length/max": max(trained.values()),
        "length/row_max": max(row.n_tokens for row in batch.rows),
        "ratio/mean": metrics.ratio_mean,
        "ratio/min": metrics.ratio_min,
        "ratio/max": metrics.ratio_max,
        "ratio/clipped": metrics.clipped,
        "kl": metrics.kl,
        "entropy": metrics.entropy,
        "exact_share": sum(a.n_exact for a in attempts) / n_calls if n_calls else 1.0,
        "rollouts": metrics.n_rollouts,
        "rows": metrics.n_rows,
        "trained_tokens": metrics.n_trained,
        "seconds": metrics.seconds,
    }


def _staleness(batch: Batch, version: int | None) -> dict[str, float]:
    if version is None:
        return {}
    ages = Counter[int]()
    for row in batch.rows:
        for call in row.calls:
            if call.is_trained and call.policy is not None:
                ages[version - call.policy] += call.end_out - call.start_out
    if not ages:
        return {}
    mean = sum(age * n for age, n in ages.items()) / ages.total()
    return {"staleness/mean": mean, "staleness/max": max(ages)}


def described(
    kind: str, model: str, output: Path, recorded: Recorded, left_out: Mapping[str, int]
) -> dict[str, Any]:
    """Return what `run.json` says of any run: its recordings, and the bars of its report."""
    attempts = recorded.attempts
    classes = Counter(attempt.failure_class.value for attempt in attempts)
    n_calls, n_exact = (sum(getattr(a, name) for a in attempts) for name in ("n_calls", "n_exact"))
    return {
        "kind": kind,
        "name": output.resolve().name,
        "model": model,
        "facts": {
            "rollouts": len(attempts),
            "calls": n_calls,
            "exact calls": n_exact,
            "exact share": n_exact / n_calls if n_calls else None,
        },
        "bars": {
            "failure classes of the rollouts": dict(sorted(classes.items())),
            "rewards of the rollouts": _by_reward(attempts),
            "calls": {"exact": n_exact, "not exact": n_calls - n_exact},
            "tokens of the rows": _lengths(attempts),
        },
        "left_out": dict(left_out),
    }


def digest(attempts: Iterable[Attempt]) -> str:
    """Return a digest of all that is trained on: tokens, masks, logprobs, rewards, groups."""
    whole = hashlib.sha256()
    for attempt in sorted(attempts, key=lambda a: a.rollout_id):
        head = (attempt.rollout_id, attempt.group, attempt.reward, attempt.failure_class.value)
        whole.update(repr(head).encode())
        for sequence in attempt.sequences:
            whole.update(repr((sequence.lane.id, sequence.branch)).encode())
            for part in (sequence.input_ids, sequence.logprobs):
                whole.update(part.tobytes())
            whole.update(sequence.loss_mask)
    return whole.hexdigest()


def _batch(
    attempts: Sequence[Attempt], config: GrpoConfig, shuffle: random.Random | None = None
) -> Batch:
    return grpo_batch(
        attempts,
        advantage=config.advantage,
        weight=config.loss.weight,
        max_tokens=config.data.max_tokens,
        shuffle=shuffle,
    )


def _facts(mismatch: Mismatch, temperature: float) -> dict[str, Any]:
    return {
        "temperature": temperature,
        "logprobs compared": mismatch.n_tokens,
        "mean difference": mismatch.mean,
        "largest difference": mismatch.largest,
    }


def _by_reward(attempts: Iterable[Attempt]) -> dict[str, int]:
    """Count rollouts by reward: the eight most frequent, in order, and none."""
    counts = Counter(a.reward for a in attempts)
    known = {r: n for r, n in counts.items() if r is not None}
    most = sorted(sorted(known, key=lambda r: -known[r])[:8])
    found = {f"{reward:.4g}": known[reward] for reward in most}
    return found | ({"none": counts[None]} if counts[None] else {})


def _lengths(attempts: Iterable[Attempt]) -> dict[str, int]:
    """Count rows by length, in powers of two."""
    counts = Counter(
        max(len(s.input_ids) - 1, 1).bit_length() for a in attempts for s in a.sequences
    )
    return {f"up to {2**power:,}": counts[power] for power in sorted(counts)}
