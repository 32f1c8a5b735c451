"""From recorded rollouts to the rows of one optimizer step: plain values, no torch, no store.

A row is one sequence of a rollout with, per token, whether it has loss, the logprob it was sampled
with, its advantage and its weight. The loss of a batch is

    sum over rows and tokens of   weight * loss(advantage)   /   batch.normaliser

and the weights of a batch sum to its normaliser, so this is a weighted mean:

    weight      of a token                              normaliser     the mean is over
    rollout     1 / trained tokens of its rollout       rollouts       rollouts, each once
    row         1 / trained tokens of its row           rows           rows, each once
    token       1                                       trained tokens tokens, each once

By default each rollout counts once, however many rows its sub-agents, segments and branches make.
The baseline is over rollouts as well (`advantages.py`), and every row of a rollout carries its
advantage. So these change nothing: the order of rollouts and rows, a row cut in two at the boundary
of a call, the same context once more, a rollout whose reward is none, a group whose rewards are all
equal (it is left out of the normaliser too).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Values
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from budwood.trajectory_store import (
    Boundary,
    FailureClass,
    LaneId,
    LaneKind,
    RolloutId,
    Sequence,
)

from .advantages import AdvantageSettings, advantages
from .errors import RowsError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WeightMode = Literal["rollout", "row", "token"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Attempt:
    """One rollout as a trainer sees it."""

    rollout_id: RolloutId
    group: str | None
    """What it is compared within; None: with nothing."""
    reward: float | None
    failure_class: FailureClass = FailureClass.NONE
    cause: str | None = None
    sequences: tuple[Sequence, ...] = ()
    """What of it may be trained."""
    n_calls: int = 0
    """Complete calls, those that no sequence holds included."""
    n_exact: int = 0
    """Those of them that are exact."""

    @property
    def is_compared(self) -> bool:
        """True where it is part of its group's baseline."""
        return self.group is not None and self.reward is not None and self.failure_class.counts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One sequence of a batch; the arrays are per token and parallel."""

    rollout_id: RolloutId
    lane: LaneId
    lane_kind: LaneKind
    branch: int
    calls: tuple[Boundary, ...]
    input_ids: NDArray[np.int64]
    loss_mask: NDArray[np.bool_]
    """True on tokens that have loss: sampled by the policy, proved exact, trained nowhere else."""
    old_logprobs: NDArray[np.float32]
    """The sampler's; 0 where there is no loss, NaN where a trained one has none (only for SFT)."""
    advantages: NDArray[np.float64]
    """0 where there is no loss."""
    weights: NDArray[np.float64]
    """0 where there is no loss."""

    @property
    def n_tokens(self) -> int:
        """How long it is."""
        return len(self.input_ids)

    @property
    def n_trained(self) -> int:
        """How many tokens have loss."""
        return int(self.loss_mask.sum())

    @property
    def first_trained(self) -> int:
        """The index of the first token that has loss."""
        return int(self.loss_mask.argmax())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """The rows of one optimizer step."""

    rows: tuple[Row, ...]
    normaliser: float
    """What the weighted sum of losses is divided by: the sum of all weights."""
    advantages: Mapping[RolloutId, float] = field(default_factory=dict[RolloutId, float])
    """Of each rollout in a group that says something, whether rows of it are left or not."""
    left_out: Mapping[str, int] = field(default_factory=dict[str, int])
    """Rollouts (`reward_none`, `class_…`, `group_single`, `group_equal`, `ungrouped`, `no_rows`)
    and rows (`too_long`) that have no loss, by reason."""

    @property
    def n_rollouts(self) -> int:
        """How many rollouts have rows in it."""
        return len({row.rollout_id for row in self.rows})

    @property
    def n_trained(self) -> int:
        """How many tokens have loss."""
        return sum(row.n_trained for row in self.rows)


def grpo_batch(
    attempts: Iterable[Attempt],
    *,
    advantage: AdvantageSettings | None = None,
    weight: WeightMode = "rollout",
    max_tokens: int | None = None,
    shuffle: random.Random | None = None,
) -> Batch:
    """Return the rows of whole groups, with advantages.

    Rows longer than `max_tokens` are left out and counted, never cut. `shuffle` hands the
    advantages out among the batch's rollouts at random: a control run, which must learn nothing.
    Raises `RowsError` for a token that is trained twice or has no logprob.
    """
    attempts, left_out = list(attempts), Counter[str]()
    found = compared(attempts, advantage, left_out)
    kept = {a.rollout_id: _fitting(a, max_tokens, left_out) for a in attempts}
    trained = sorted(rollout_id for rollout_id in found if kept[rollout_id])
    left_out["no_rows"] += len(found) - len(trained)
    if shuffle is not None:
        values = [found[rollout_id] for rollout_id in trained]
        shuffle.shuffle(values)
        found = {**found, **dict(zip(trained, values, strict=True))}
    sequences = {rollout_id: kept[rollout_id] for rollout_id in trained}
    rows = _weighted(sequences, found, weight, needs_logprobs=True)
    return _batch(rows, weight, found, left_out)


def sft_batch(
    attempts: Iterable[Attempt], *, weight: WeightMode = "rollout", max_tokens: int | None = None
) -> Batch:
    """Return the rows of rollouts to imitate: every advantage is 1, no group is looked at."""
    left_out = Counter[str]()
    kept: dict[RolloutId, list[Sequence]] = {}
    for attempt in attempts:
        if attempt.rollout_id in kept:
            raise RowsError(f"rollout {attempt.rollout_id} is given twice")
        kept[attempt.rollout_id] = _fitting(attempt, max_tokens, left_out)
    trained = {rollout_id: kept[rollout_id] for rollout_id in sorted(kept) if kept[rollout_id]}
    left_out["no_rows"] += len(kept) - len(trained)
    ones = dict.fromkeys(trained, 1.0)
    return _batch(_weighted(trained, ones, weight, needs_logprobs=False), weight, ones, left_out)


def compared(
    attempts: Iterable[Attempt],
    settings: AdvantageSettings | None = None,
    left_out: Counter[str] | None = None,
) -> dict[RolloutId, float]:
    """Return the advantage of each rollout that has one; count the others by reason."""
    left_out = Counter[str]() if left_out is None else left_out
    groups: dict[str, list[Attempt]] = {}
    seen: set[RolloutId] = set()
    for attempt in attempts:
        if attempt.rollout_id in seen:
            raise RowsError(f"rollout {attempt.rollout_id} is given twice")
        seen.add(attempt.rollout_id)
        if not attempt.failure_class.counts:
            left_out[f"class_{attempt.failure_class.value}"] += 1
        elif attempt.reward is None:
            left_out["reward_none"] += 1
        elif attempt.group is None:
            left_out["ungrouped"] += 1
        else:
            groups.setdefault(attempt.group, []).append(attempt)
    found: dict[RolloutId, float] = {}
    for members in groups.values():
        values = advantages([a.reward for a in members if a.reward is not None], settings)
        if values is None:
            left_out["group_single" if len(members) == 1 else "group_equal"] += len(members)
            continue
        found.update(zip((a.rollout_id for a in members), values, strict=True))
    return found


def _fitting(attempt: Attempt, max_tokens: int | None, left_out: Counter[str]) -> list[Sequence]:
    trained = [sequence for sequence in attempt.sequences if sequence.n_trained]
    fitting = [s for s in trained if max_tokens is None or len(s.input_ids) <= max_tokens]
    left_out["too_long"] += len(trained) - len(fitting)
    return sorted(fitting, key=lambda s: (s.lane.id, s.branch))


def _weighted(
    sequences: Mapping[RolloutId, Values[Sequence]],
    advantage_of: Mapping[RolloutId, float],
    weight: WeightMode,
    *,
    needs_logprobs: bool,
) -> list[Row]:
    rows: list[Row] = []
    for rollout_id, own in sequences.items():
        _check_once(rollout_id, own)
        n_trained = sum(sequence.n_trained for sequence in own)
        for sequence in own:
            shared_by = {"rollout": n_trained, "row": sequence.n_trained, "token": 1}[weight]
            rows.append(_row(sequence, advantage_of[rollout_id], 1 / shared_by, needs_logprobs))
    return rows


def _check_once(rollout_id: RolloutId, sequences: Iterable[Sequence]) -> None:
    """Raise where two rows train the same call: each sampled token has loss once."""
    trained = Counter(call.call_id for s in sequences for call in s.calls if call.is_trained)
    twice = [call_id for call_id, n in trained.items() if n > 1]
    if twice:
        raise RowsError(f"rollout {rollout_id}: calls {', '.join(twice)} are trained twice")


def _row(sequence: Sequence, advantage: float, weight: float, needs_logprobs: bool) -> Row:
    import numpy as np

    mask_T = np.frombuffer(sequence.loss_mask, np.uint8).astype(bool)
    given_T = np.asarray(sequence.logprobs, dtype=np.float32)
    where = f"rollout {sequence.rollout_id}, lane {sequence.lane.id}, row {sequence.branch}"
    if mask_T[0]:
        raise RowsError(f"{where}: its first token has loss, and nothing before it")
    if needs_logprobs and np.isnan(given_T[mask_T]).any():
        raise RowsError(f"{where}: a trained token has no logprob")
    return Row(
        rollout_id=sequence.rollout_id,
        lane=sequence.lane.id,
        lane_kind=sequence.lane.kind,
        branch=sequence.branch,
        calls=sequence.calls,
        input_ids=np.asarray(sequence.input_ids, dtype=np.int64),
        loss_mask=mask_T,
        old_logprobs=np.where(mask_T, given_T, np.float32(0)),
        advantages=np.where(mask_T, advantage, 0.0),
        weights=np.where(mask_T, weight, 0.0),
    )


def _batch(
    rows: list[Row],
    weight: WeightMode,
    advantage_of: Mapping[RolloutId, float],
    left_out: Counter[str],
) -> Batch:
    normaliser = {
        "rollout": len({row.rollout_id for row in rows}),
        "row": len(rows),
        "token": sum(row.n_trained for row in rows),
    }[weight]
    total = math.fsum(float(row.weights.sum()) for row in rows)
    assert math.isclose(total, normaliser, rel_tol=1e-9, abs_tol=1e-12), (total, normaliser)
    return Batch(
        rows=tuple(rows),
        normaliser=float(normaliser),
        advantages=advantage_of,
        left_out={reason: n for reason, n in sorted(left_out.items()) if n},
    )
