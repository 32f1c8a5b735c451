"""What clients were told, held against what the store has: nothing lost, nothing else trained."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from budwood.proxy.testing import expected
from budwood.proxy.testing.scripted_marker import find_marker
from budwood.trajectory_store import Call, CallId, NotStored, RolloutId, Store

ALL_LANES = ("main", "sub-agent", "side")


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """One call whose client had its whole, right answer."""

    rollout_id: str
    seed: int
    chunks: int
    body: bytes
    """The request as sent."""


@dataclass(slots=True)
class Verdict:
    """What the store lacks, and what it has too much."""

    n_acknowledged: int = 0
    n_trained: int = 0
    lost: list[int] = field(default_factory=list[int])
    """Seeds of acknowledged calls that are not there, or not complete."""
    differing: list[str] = field(default_factory=list[str])
    trained_unacknowledged: list[str] = field(default_factory=list[str])
    states: Counter[str] = field(default_factory=Counter[str])

    @property
    def is_good(self) -> bool:
        """Whether every promise was kept."""
        return not (self.lost or self.differing or self.trained_unacknowledged)


def verify(store: Store, told: list[Acknowledged], rollouts: list[str]) -> Verdict:
    """Compare the store with what the clients were told."""
    verdict = Verdict(n_acknowledged=len(told))
    by_rollout: dict[str, dict[int, Acknowledged]] = {name: {} for name in rollouts}
    for each in told:
        by_rollout[each.rollout_id][each.seed] = each
    for name, acknowledged in by_rollout.items():
        rollout_id = RolloutId(name)
        calls = store.calls(rollout_id)
        verdict.states.update(call.state.value for call in calls)
        seeds = {call.id: _seed(store, call) for call in calls}
        for seed, each in acknowledged.items():
            found = [call for call in calls if seeds[call.id] == seed and call.state.is_complete]
            if not found:
                verdict.lost.append(seed)
            for call in found:
                verdict.differing += _differences(store, call, each)
        _check_rows(store, rollout_id, seeds, acknowledged, verdict)
    return verdict


def _seed(store: Store, call: Call) -> int | None:
    marker = find_marker(store.request_body(call.id))
    return None if marker is None else marker.seed


def _differences(store: Store, call: Call, told: Acknowledged) -> list[str]:
    want: dict[str, Any] = expected(told.seed, told.chunks)
    out: list[str] = []
    try:
        tokens = store.tokens(call.id)
    except NotStored:
        return [f"seed {told.seed}: no tokens"]
    if tokens.out_ids.tolist() != want["token_ids"]:
        out.append(f"seed {told.seed}: other ids")
    if tokens.logprobs != array("f", want["logprobs"]):
        out.append(f"seed {told.seed}: other logprobs")
    if (call.reply or {}).get("content") != want["text"]:
        out.append(f"seed {told.seed}: other text")
    if store.request_body(call.id) != told.body:
        out.append(f"seed {told.seed}: another request")
    return out


def _check_rows(
    store: Store,
    rollout_id: RolloutId,
    seeds: dict[CallId, int | None],
    acknowledged: dict[int, Acknowledged],
    verdict: Verdict,
) -> None:
    trained: Counter[int | None] = Counter()
    for row in store.sequences(rollout_id, lanes=ALL_LANES):
        for boundary in row.calls:
            span = slice(boundary.start_out, boundary.end_out)
            if not boundary.is_trained:
                continue
            seed = seeds[boundary.call_id]
            trained[seed] += 1
            told = acknowledged.get(seed) if seed is not None else None
            if told is None:
                verdict.trained_unacknowledged.append(f"{boundary.call_id} (seed {seed})")
            elif row.input_ids[span].tolist() != expected(told.seed, told.chunks)["token_ids"]:
                verdict.differing.append(f"seed {seed}: a row holds other ids")
    verdict.n_trained += sum(trained.values())
    verdict.differing += [f"seed {seed}: trained {n} times" for seed, n in trained.items() if n > 1]
