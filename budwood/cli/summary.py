"""What a recorded rollout amounts to: the figures that `record` and `demo` end with."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from budwood.trajectory_store import RolloutId, Store


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts of one rollout."""

    n_calls: int
    """All, failed and cut ones included."""
    n_complete: int
    n_exact: int
    n_continuing: int
    """Complete calls that continue or edit an earlier one's conversation."""
    n_spliced: int
    n_lanes: int
    lane_kinds: dict[str, int]
    n_prompt_tokens: int
    n_sampled_tokens: int
    reasons: dict[str, int]
    """Why complete calls are not exact, or not spliced where they could have been."""
    failures: dict[str, int]
    """Calls that are not complete, by state and cause."""

    @property
    def n_breaks(self) -> int:
        """Prefix breaks: calls that continue a conversation, but not its recorded tokens."""
        return self.n_continuing - self.n_spliced

    def lines(self) -> list[str]:
        """Return the figures for people."""
        lanes = ", ".join(_lanes(kind, count) for kind, count in self.lane_kinds.items())
        lines = [
            f"calls     {self.n_calls}",
            f"tokens    {self.n_prompt_tokens} read, {self.n_sampled_tokens} sampled",
            f"lanes     {self.n_lanes}" + (f" ({lanes})" if lanes else ""),
            f"exact     {share(self.n_exact, self.n_complete)} of complete calls",
            f"spliced   {share(self.n_spliced, self.n_continuing)} of calls that continue one",
        ]
        if self.reasons:
            lines.append("why not   " + _counts(self.reasons))
        if self.failures:
            lines.append("failed    " + _counts(self.failures))
        return lines


def _lanes(kind: str, count: int) -> str:
    return f"main in {count} segments" if kind == "main" and count > 1 else f"{count} {kind}"


def share(part: int, whole: int) -> str:
    """Return a share as people read it: `5/5 (100 %)`, or `none to count`."""
    if not whole:
        return "none to count"
    percent = 100 * part / whole
    return (
        f"{part}/{whole} ({percent:.0f} %)"
        if part in (0, whole)
        else (f"{part}/{whole} ({percent:.1f} %)")
    )


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def summarise(store: Store, rollout_id: RolloutId) -> Summary:
    """Return the figures of one rollout."""
    calls = store.calls(rollout_id)
    complete = [call for call in calls if call.state.is_complete]
    continuing = [call for call in complete if call.parent or call.edit_of]
    spliced = [call for call in continuing if call.prompt_mode == "spliced"]
    of_replies = _codes_of_replies()
    reasons: Counter[str] = Counter()
    for call in complete:
        is_break = bool(call.parent or call.edit_of) and call.prompt_mode != "spliced"
        for code in call.reasons:
            # A first call says that it is one: no answer to "why not".
            if is_break or (not call.exact and code in of_replies):
                reasons[code] += 1
    failures: Counter[str] = Counter()
    for call in calls:
        if not call.state.is_complete:
            failures[call.state.value + (f" by {call.cause}" if call.cause else "")] += 1
    lanes = store.lanes(rollout_id)
    return Summary(
        n_calls=len(calls),
        n_complete=len(complete),
        n_exact=sum(call.exact for call in complete),
        n_continuing=len(continuing),
        n_spliced=len(spliced),
        n_lanes=len(lanes),
        lane_kinds=dict(Counter(lane.kind.value for lane in lanes)),
        n_prompt_tokens=sum(_used(call.n_prompt, call.usage, "prompt_tokens") for call in complete),
        n_sampled_tokens=sum(
            _used(call.n_out, call.usage, "completion_tokens") for call in complete
        ),
        reasons=dict(reasons),
        failures=dict(failures),
    )


def _codes_of_replies() -> frozenset[str]:
    """Return the codes that say why a reply is not exact."""
    from budwood.proxy.engine.exactness import EXPLANATIONS

    return frozenset(str(code) for code in EXPLANATIONS)


def _used(counted: int | None, usage: dict | None, key: str) -> int:
    return counted if counted is not None else int((usage or {}).get(key) or 0)
