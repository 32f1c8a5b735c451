"""Why a call is not exact, is not trained, or does not continue an earlier one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from .difference import Difference, first_difference
from .ids import CallId
from .outcome import MEANINGS, FailureClass
from .overview import shown
from .records import Call, CallState
from .redaction import Redaction
from .store import Store

STATES: Mapping[CallState, str] = MappingProxyType(
    {
        CallState.INTENT: "it has begun, the engine has not answered yet",
        CallState.STREAMING: "the engine is answering",
        CallState.COMMITTED: "it is recorded; whether the harness got the end is not known",
        CallState.DELIVERED: "it is recorded and the harness got all of it",
        CallState.UNDELIVERED: "it is complete, but the harness had left: trained only if a later "
        "call shows that it has the answer",
        CallState.ABORTED: "the harness left before the answer was complete: never trained",
        CallState.FAILED: "it failed: never trained",
        CallState.LOST: "its process died before the answer was recorded: never trained",
        CallState.SYNTHETIC: "we answered, no model did: never trained",
    }
)
"""Call state → what it means, for people."""

FLAGS: Mapping[str, str] = MappingProxyType(
    {
        "secret": "a secret was found in its content: masked here, not exported unless asked for",
        "constrained": "its sampling was constrained: not trained",
        "greedy": "sampled at temperature 0: can be imitated, of no use for reinforcement learning",
        "mixed": "the weights changed while it was sampled: not trained",
        "coarse": "the engine gave its text in one piece at the end; its tokens are whole",
        "verdict_early_text": "the template edits its own earlier text, no content: it was spliced",
    }
)
"""Flag of a call → what it means, for people."""


@dataclass(frozen=True, slots=True)
class Fork:
    """Where a conversation that starts anew leaves the one it came from."""

    against: CallId
    n_common: int
    """Messages that are equal at the beginning."""
    difference: Difference | None
    """None where the messages go on as they were: tools or template arguments changed, or the
    template itself edits the history."""


@dataclass(frozen=True, slots=True)
class Why:
    """All that explains a call."""

    is_exact: bool
    state: str
    reasons: tuple[tuple[str, str], ...]
    """Code and sentence; the sentence is empty for a code that nobody has explained."""
    fork: Fork | None


def explain(store: Store, call: Call, explanations: Mapping[str, str]) -> Why:
    """Return why a call is as it is; `explanations` are the writer's own, by reason code."""
    reasons = [(code, explanations.get(code, "")) for code in call.reasons]
    reasons += [
        (flag, FLAGS.get(flag, explanations.get(flag, "")))
        for flag in sorted(call.flags)
        if flag not in call.reasons
    ]
    if call.failure_class is not FailureClass.NONE:
        cause = call.cause or call.failure_class.value
        reasons.append((cause, f"{call.failure_class.value}: {MEANINGS[call.failure_class]}"))
    return Why(call.exact, STATES[call.state], tuple(reasons), fork_of(store, call))


def fork_of(store: Store, call: Call) -> Fork | None:
    """Return where a call leaves the conversation it came from; None where it continues one."""
    if call.parent is not None:
        return None
    earlier = store.call(call.edit_of) if call.edit_of is not None else _before(store, call)
    if earlier is None:
        return None
    old = _conversation(store, earlier)
    new = [_comparable(m) for m in _messages(store, call)]
    difference = first_difference(old, new[: len(old)])
    at = difference.message_index if difference is not None else None
    return Fork(earlier.id, min(len(old), len(new)) if at is None else at, difference)


def _before(store: Store, call: Call) -> Call | None:
    """Return the lane's last complete call before this one."""
    found = None
    for other in store.calls(call.rollout_id):
        if other.id == call.id:
            return found
        if other.lane == call.lane and other.state.is_complete:
            found = other
    return None


def _messages(store: Store, call: Call) -> list[Any]:
    redaction = Redaction(call, store.secrets)
    return redaction.messages(store.request_messages(call.id))


def _conversation(store: Store, call: Call) -> list[dict[str, Any]]:
    messages = [_comparable(m) for m in _messages(store, call)]
    reply = Redaction(call, store.secrets).reply()
    return messages if reply is None else [*messages, _comparable(reply)]


def _comparable(message: Any) -> dict[str, Any]:
    """Return what a message says, without what only its spelling says."""
    seen = shown(message)
    return {
        "role": seen.role,
        "text": seen.text.strip() if seen.role == "assistant" else seen.text,
        "reasoning": seen.reasoning,
        "tool_calls": [{"name": c.name, "arguments": _value(c.arguments)} for c in seen.tool_calls],
    }


def _value(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
