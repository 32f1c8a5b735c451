"""Records as the lines and values that `show` writes; everything is masked here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from budwood.trajectory_store import Call, RolloutId, Store


def rollout_row(store: Store, rollout_id: RolloutId) -> dict[str, Any]:
    """Return what a list of rollouts says of one."""
    rollout, outcome = store.rollout(rollout_id), store.outcome(rollout_id)
    calls = store.calls(rollout_id)
    row = {
        "rollout": rollout.id,
        "run": rollout.run_id,
        "task": rollout.task or "",
        "group": rollout.group_id or "",
        "attempt": rollout.attempt,
        "harness": rollout.harness or "",
        "model": rollout.model or "",
        "state": rollout.state,
        "labels": rollout.labels,
        "calls": len(calls),
        "exact": sum(call.exact for call in calls),
        "tokens": sum((call.n_out or 0) for call in calls if call.state.is_complete),
        "reward": "none" if outcome.reward is None else outcome.reward,
        "class": outcome.failure_class.value,
    }
    return store.secrets.mask_value(row)


def rollout_facts(store: Store, rollout_id: RolloutId) -> list[str]:
    """Return the lines above a rollout's tree."""
    row = rollout_row(store, rollout_id)
    outcome = store.outcome(rollout_id)
    cause = f" ({outcome.cause})" if outcome.cause else ""
    graded = f"by {outcome.by}, version {outcome.version}" if outcome.version else "not graded"
    lines = [
        f"rollout {row['rollout']} of run {row['run']}, {row['state']}",
        f"harness {row['harness'] or 'unknown'}, model {row['model'] or 'unknown'}"
        + (f", task {row['task']}" if row["task"] else ""),
        f"{row['calls']} calls, {row['exact']} exact, {row['tokens']} sampled tokens",
        f"reward {row['reward']}, class {row['class']}{cause}, {graded}",
    ]
    return [store.secrets.mask(line) for line in lines]


def call_line(call: Call, number: int | None, *, is_fork: bool = False) -> str:
    """Return a call in one line."""
    parts = [] if number is None else [f"{number}."]
    if is_fork:
        parts.append("fork")
    parts += [f"turn {call.turn_index}", call.state.value, "exact" if call.exact else "NOT EXACT"]
    if call.prompt_mode is not None:
        parts.append(call.prompt_mode.value)
    parts.append(f"{call.n_prompt}+{call.n_out} tokens" if call.has_ids else "no ids")
    if call.finish:
        parts.append(call.finish)
    if "total" in call.timings:
        parts.append(f"{call.timings['total']:.0f} ms")
    if "secret" in call.flags:
        parts.append("secret")
    if call.reasons:
        parts.append(f"[{', '.join(call.reasons)}]")
    if call.cause and call.cause not in call.reasons:
        parts.append(f"[{call.failure_class.value}: {call.cause}]")
    return " ".join(parts)


def call_facts(
    store: Store,
    call: Call,
    *,
    tokens: bool = False,
    why: Mapping[str, str] | None = None,
    messages: bool = False,
) -> dict[str, Any]:
    """Return a call for programs; `why` are the writer's explanations where they are wanted."""
    from budwood.trajectory_store.redaction import Redaction

    redaction = Redaction(call, store.secrets)
    facts: dict[str, Any] = {
        "id": call.id,
        "rollout": call.rollout_id,
        "lane": call.lane,
        "parent": call.parent,
        "edit_of": call.edit_of,
        "turn_index": call.turn_index,
        "state": call.state.value,
        "exact": call.exact,
        "prompt_mode": call.prompt_mode.value if call.prompt_mode else None,
        "reasons": list(call.reasons),
        "flags": sorted(call.flags),
        "finish": call.finish,
        "usage": call.usage,
        "n_prompt": call.n_prompt,
        "n_out": call.n_out,
        "class": call.failure_class.value,
        "cause": call.cause,
        "timings": call.timings,
    }
    if messages:
        facts["messages"] = redaction.messages(store.request_messages(call.id))
        facts["reply"] = redaction.reply(store.request_body(call.id))
    if tokens:
        facts["tokens"] = _tokens(store, call, redaction.hides_tokens)
    if why is not None:
        facts["why"] = _why(store, call, why)
    return store.secrets.mask_value(facts)


def _tokens(store: Store, call: Call, is_hidden: bool) -> dict[str, Any] | None:
    if is_hidden or not call.has_ids:
        return None
    arrays = store.tokens(call.id)
    return {
        "prompt_ids": list(arrays.prompt_ids),
        "out_ids": list(arrays.out_ids),
        "logprobs": [None if value != value else value for value in arrays.logprobs],
    }


def _why(store: Store, call: Call, explanations: Mapping[str, str]) -> dict[str, Any]:
    from budwood.trajectory_store.why import explain

    found = explain(store, call, explanations)
    fork = found.fork
    return {
        "state": found.state,
        "reasons": dict(found.reasons),
        "fork": None
        if fork is None
        else {
            "against": fork.against,
            "n_common": fork.n_common,
            "difference": None if fork.difference is None else str(fork.difference),
        },
    }
