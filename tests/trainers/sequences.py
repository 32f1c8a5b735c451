"""Rollouts made by hand: sequences of calls, each a prompt and a sampled output."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Values
from dataclasses import replace
from datetime import UTC, datetime

from budwood.trainers import Attempt, Batch
from budwood.trajectory_store import (
    Boundary,
    CallId,
    FailureClass,
    Lane,
    LaneId,
    LaneKind,
    RolloutId,
    Sequence,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def sequence(
    rollout: str,
    turns: Values[tuple[Values[int], Values[int]]],
    *,
    lane: str = "la_main",
    branch: int = 0,
    logprobs: Values[float] | None = None,
    first_call: int = 0,
) -> Sequence:
    """A row of turns, each (what came before the output, the output); every output is trained."""
    ids, mask, given = array("I"), bytearray(), array("f")
    calls: list[Boundary] = []
    values = iter(logprobs) if logprobs is not None else None
    for number, (context, out) in enumerate(turns, first_call):
        ids.extend(context)
        mask += bytes(len(context))
        given.extend([float("nan")] * len(context))
        start = len(ids)
        ids.extend(out)
        mask += b"\x01" * len(out)
        given.extend(next(values) if values else -0.1 * (1 + token % 7) for token in out)
        name = CallId(f"ca_{rollout}_{lane}_{number}")
        calls.append(Boundary(name, start, len(ids), 3, is_trained=True))
    return Sequence(
        rollout_id=RolloutId(rollout),
        lane=Lane(
            id=LaneId(lane), rollout_id=RolloutId(rollout), kind=LaneKind.MAIN, created_at=NOW
        ),
        branch=branch,
        call_ids=tuple(call.call_id for call in calls),
        input_ids=ids,
        loss_mask=bytes(mask),
        logprobs=given,
        calls=tuple(calls),
        is_exact=True,
        dropped={},
    )


def attempt(
    rollout: str,
    reward: float | None,
    *sequences: Sequence,
    group: str | None = "g",
    failure_class: FailureClass = FailureClass.NONE,
) -> Attempt:
    """A rollout; without sequences it has one of two turns."""
    found = sequences or (sequence(rollout, [([1, 2], [3, 4]), ([5], [6])]),)
    return Attempt(
        rollout_id=RolloutId(rollout),
        group=group,
        reward=reward,
        failure_class=failure_class,
        sequences=found,
        n_calls=sum(len(s.calls) for s in found),
        n_exact=sum(len(s.calls) for s in found),
    )


def split(row: Sequence, at: int) -> tuple[Sequence, Sequence]:
    """Cut a row in two before its call number `at`: the second has the first as context."""
    cut = row.calls[at].start_out
    end = row.calls[at - 1].end_out
    first = replace(
        row,
        input_ids=row.input_ids[:end],
        loss_mask=row.loss_mask[:end],
        logprobs=row.logprobs[:end],
        calls=row.calls[:at],
        call_ids=row.call_ids[:at],
    )
    second = replace(
        row,
        branch=row.branch + 100,
        loss_mask=bytes(cut) + row.loss_mask[cut:],
        calls=tuple(replace(call, is_trained=False) for call in row.calls[:at]) + row.calls[at:],
    )
    return first, second


def ledger(batch: Batch) -> dict[tuple[str, int], tuple[int, float, float, float]]:
    """What each sampled token gets: by call and place in its output, (id, old logprob, advantage,
    share of the batch). Equal ledgers are equal losses and gradients."""
    found: dict[tuple[str, int], tuple[int, float, float, float]] = {}
    for row in batch.rows:
        trained = 0
        for call in row.calls:
            if not call.is_trained:
                continue
            for place in range(call.start_out, call.end_out):
                assert row.loss_mask[place]
                key = (call.call_id, place - call.start_out)
                assert key not in found, "trained twice"
                found[key] = (
                    int(row.input_ids[place]),
                    float(row.old_logprobs[place]),
                    float(row.advantages[place]),
                    round(float(row.weights[place]) / batch.normaliser, 15),
                )
                trained += 1
        assert trained == row.n_trained
    return found
