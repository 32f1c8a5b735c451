"""Which sequences leave the store, and under which reason the others are counted.

rollout   class other than none and policy        class_<class>
          no reward, where one is needed           reward_none
          no call of it may be trained             nothing_to_train
sequence  no token is trained in it                nothing_trained
          a trained token without its logprob      no_logprobs
call      the store's own reasons: `secret`, `lane`, `inexact`, `undelivered`, `no_ids`,
          `constrained`, `greedy`, `mixed`, `empty`, or the state of an incomplete call
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ..ids import RolloutId
from ..outcome import Outcome
from ..records import Rollout, Sequence
from ..store import Store
from .manifest import Counts
from .options import ExportOptions


@dataclass(frozen=True, slots=True)
class Trainable:
    """A sequence that may go out, with what it needs to be a row."""

    rollout: Rollout
    outcome: Outcome
    sequence: Sequence
    spans: tuple[tuple[int, int], ...]
    """Where the loss mask is 1: `[start, end)`, in order."""


def spans_of(mask: bytes) -> tuple[tuple[int, int], ...]:
    """Return the runs of 1 in a mask as `[start, end)`."""
    spans: list[tuple[int, int]] = []
    start = mask.find(1)
    while start >= 0:
        end = mask.find(0, start)
        end = len(mask) if end < 0 else end
        spans.append((start, end))
        start = mask.find(1, end)
    return tuple(spans)


def trainable(
    store: Store,
    rollout_id: RolloutId,
    options: ExportOptions,
    counts: Counts,
    *,
    for_rl: bool = False,
) -> Iterator[Trainable]:
    """Yield the sequences of a rollout that may be trained on; count the rest.

    `for_rl` needs a reward and every trained token's logprob, and leaves greedy outputs masked:
    they were not sampled, but they can be imitated.
    """
    outcome = store.outcome(rollout_id)
    if not outcome.failure_class.counts:
        counts.rollouts_left_out[f"class_{outcome.failure_class.value}"] += 1
        return
    if for_rl and outcome.reward is None:
        counts.rollouts_left_out["reward_none"] += 1
        return
    rollout = store.rollout(rollout_id)
    rows = store.rows(
        rollout_id,
        lanes=options.lanes,
        include_inexact=options.include_inexact,
        include_secret=options.include_secrets,
        allow=() if for_rl else ("greedy",),
    )
    counts.calls_not_trained.update(rows.dropped)
    if not rows.sequences:
        counts.rollouts_left_out["nothing_to_train"] += 1
    for sequence in rows.sequences:
        spans = spans_of(sequence.loss_mask)
        reason = _refused(sequence, spans, for_rl)
        if reason is None:
            yield Trainable(rollout, outcome, sequence, spans)
        else:
            counts.sequences_left_out[reason] += 1


def _refused(
    sequence: Sequence,
    spans: tuple[tuple[int, int], ...],
    needs_logprobs: bool,
) -> str | None:
    if not spans:
        return "nothing_trained"
    if needs_logprobs and any(
        math.isnan(value) for start, end in spans for value in sequence.logprobs[start:end]
    ):
        return "no_logprobs"
    return None
