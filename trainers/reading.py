"""What a store holds, as attempts: rewards, classes, and the sequences that may be trained.

Which sequences may leave the store is the store's own decision (`export/gate.py`), the same as for
its exports. On top of that, a call is context only, for RL, where its logprobs are not those of the
model's own distribution at the wanted temperature:

    sampling       top_p, top_k, min_p or a penalty was at work
    temperature    another temperature than the wanted one
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from budwood.trajectory_store import Call, CallId, Outcome, Rollout, RolloutId, Sequence, Store
from budwood.trajectory_store.export import Counts, ExportOptions, trainable

from .errors import ConfigError
from .rows import Attempt
from .settings import DataSettings

NEUTRAL: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "top_p": (1,),
        "top_k": (-1, 0),
        "min_p": (0,),
        "repetition_penalty": (1,),
        "presence_penalty": (0,),
        "frequency_penalty": (0,),
    }
)
"""Parameters of sampling → the values with which they do nothing."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The selected rollouts, and what of them is not trained."""

    attempts: tuple[Attempt, ...]
    temperatures: Mapping[float, int]
    """Temperature → trained tokens that were sampled at it."""
    not_trained: Mapping[str, int]
    """Rollouts, sequences and calls that are not trained, by the store's reasons and the two
    above."""


def read_for_rl(
    store: Store,
    data: DataSettings,
    *,
    temperature: float | None = None,
    rollouts: Iterable[RolloutId] | None = None,
) -> Recorded:
    """Return the selected rollouts with rewards and exact tokens.

    `temperature` None takes calls of every temperature; `rollouts` takes these instead of what the
    selector names. Raises `SelectorError` and other errors of the store.
    """
    counts, attempts = Counts(), list[Attempt]()
    temperatures, masked = Counter[float](), Counter[str]()
    for rollout_id in store.select(data.selector) if rollouts is None else rollouts:
        calls = {call.id: call for call in store.calls(rollout_id)}
        sequences: list[Sequence] = []
        for item in trainable(store, rollout_id, _options(data), counts, for_rl=True):
            sequence = _plain(item.sequence, calls, temperature, masked)
            if not sequence.n_trained:
                continue
            sequences.append(sequence)
            for call in sequence.calls:
                if call.is_trained:
                    at = calls[call.call_id].sampling.get("temperature", 1.0)
                    temperatures[float(at)] += call.end_out - call.start_out
        attempts.append(_attempt(store, rollout_id, data, calls.values(), sequences))
    return Recorded(tuple(attempts), dict(temperatures), _reasons(counts, masked))


def read_for_sft(
    store: Store, data: DataSettings, *, rollouts: Iterable[RolloutId] | None = None
) -> Recorded:
    """Return the selected rollouts with the tokens that may be imitated, graded or not."""
    counts, attempts = Counts(), list[Attempt]()
    for rollout_id in store.select(data.selector) if rollouts is None else rollouts:
        found = trainable(store, rollout_id, _options(data), counts)
        sequences = [item.sequence for item in found]
        attempts.append(_attempt(store, rollout_id, data, store.calls(rollout_id), sequences))
    return Recorded(tuple(attempts), {}, _reasons(counts, Counter()))


def one_temperature(recorded: Recorded) -> float:
    """Return the temperature that all trained tokens were sampled at; raises `ConfigError`."""
    if len(recorded.temperatures) > 1:
        found = ", ".join(f"{t:g} ({n} tokens)" for t, n in sorted(recorded.temperatures.items()))
        raise ConfigError(
            f"the recordings were sampled at several temperatures: {found}; name the one to train "
            "on (temperature), the others become context"
        )
    return next(iter(recorded.temperatures), 1.0)


def _options(data: DataSettings) -> ExportOptions:
    return ExportOptions(lanes=data.lanes, include_secrets=data.include_secrets)


def _plain(
    sequence: Sequence,
    calls: Mapping[CallId, Call],
    temperature: float | None,
    masked: Counter[str],
) -> Sequence:
    """Mask the calls that were not sampled from the model's own distribution."""
    mask, boundaries = bytearray(sequence.loss_mask), list(sequence.calls)
    for place, boundary in enumerate(boundaries):
        if not boundary.is_trained:
            continue
        reason = _not_plain(calls[boundary.call_id].sampling, temperature)
        if reason is not None:
            masked[reason] += 1
            mask[boundary.start_out : boundary.end_out] = bytes(
                boundary.end_out - boundary.start_out
            )
            boundaries[place] = replace(boundary, is_trained=False)
    return replace(sequence, loss_mask=bytes(mask), calls=tuple(boundaries))


def _not_plain(sampling: Mapping[str, Any], temperature: float | None) -> str | None:
    for name, values in NEUTRAL.items():
        if sampling.get(name) is not None and sampling[name] not in values:
            return "sampling"
    if temperature is not None and float(sampling.get("temperature", 1.0)) != temperature:
        return "temperature"
    return None


def _attempt(
    store: Store,
    rollout_id: RolloutId,
    data: DataSettings,
    calls: Iterable[Call],
    sequences: Iterable[Sequence],
) -> Attempt:
    rollout, outcome = store.rollout(rollout_id), store.outcome(rollout_id)
    complete = [call for call in calls if call.state.is_complete]
    return Attempt(
        rollout_id=rollout_id,
        group=_group(rollout, data),
        reward=_reward(outcome),
        failure_class=outcome.failure_class,
        cause=outcome.cause,
        sequences=tuple(sequences),
        n_calls=len(complete),
        n_exact=sum(call.exact for call in complete),
    )


def _reward(outcome: Outcome) -> float | None:
    return outcome.reward if outcome.failure_class.counts else None


def _group(rollout: Rollout, data: DataSettings) -> str | None:
    name = rollout.group_id if data.group_by == "group" else rollout.task
    return None if name is None else f"{rollout.run_id}/{name}"


def _reasons(counts: Counts, masked: Counter[str]) -> dict[str, int]:
    parts = (
        counts.rollouts_left_out, counts.sequences_left_out, counts.calls_not_trained, masked
    )  # fmt: skip
    found = sum(parts, Counter[str]())
    return {reason: found[reason] for reason in sorted(found)}
