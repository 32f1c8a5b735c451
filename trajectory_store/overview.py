"""What a reader sees of a rollout: its lanes and calls as one tree, and a call's messages.

Shared by the pages and by the command, so that both say the same.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .ids import CallId, LaneId
from .records import Call, Lane, LaneKind


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the tree: a lane, or a call in it."""

    depth: int
    lane: Lane | None
    """None: the call has no result yet, or never will, and so no recorded lane."""
    call: Call | None = None
    is_fork: bool = False
    """The call starts a branch beside another one that goes on from the same place."""


def lane_names(lanes: Iterable[Lane]) -> dict[LaneId, str]:
    """Return a short name for each lane: `main`, `main, segment 1`, `sub-agent 2`."""
    totals, counts = Counter(lane.kind for lane in lanes), Counter[LaneKind]()
    names: dict[LaneId, str] = {}
    for lane in lanes:
        counts[lane.kind] += 1
        name = lane.kind.value
        if lane.kind is not LaneKind.MAIN and totals[lane.kind] > 1:
            name += f" {counts[lane.kind]}"
        names[lane.id] = f"{name}, segment {lane.segment}" if lane.segment else name
    return names


def tree(lanes: Sequence[Lane], calls: Sequence[Call]) -> Iterator[Line]:
    """Yield a rollout as lines, parents first.

    A chain of calls stays at one depth, only a fork goes one deeper; lanes stand below the lane
    that spawned them.
    """
    known = {lane.id for lane in lanes}
    below: dict[LaneId | None, list[Lane]] = defaultdict(list)
    for lane in lanes:
        below[lane.parent_lane if lane.parent_lane in known else None].append(lane)
    of_lane: dict[LaneId, list[Call]] = defaultdict(list)
    for call in calls:
        of_lane[call.lane].append(call)
    waiting = [(lane, 0) for lane in reversed(below[None])]
    while waiting:
        lane, depth = waiting.pop()
        yield Line(depth, lane)
        for steps, call, is_fork in _branches(of_lane[lane.id]):
            yield Line(depth + 1 + steps, lane, call, is_fork)
        waiting += [(child, depth + 1) for child in reversed(below[lane.id])]
    begun = [call for call in calls if call.lane not in known]
    if begun:
        yield Line(0, None)
        yield from (Line(1, None, call) for call in begun)


def _branches(calls: Sequence[Call]) -> Iterator[tuple[int, Call, bool]]:
    known = {call.id for call in calls}
    after: dict[CallId | None, list[Call]] = defaultdict(list)
    for call in calls:
        origin = call.parent or call.edit_of
        after[origin if origin in known else None].append(call)
    waiting = [(call, 0, False) for call in reversed(after[None])]
    while waiting:
        call, steps, is_fork = waiting.pop()
        yield steps, call, is_fork
        # What continues the call goes on at its depth; edits of it stand one deeper.
        following = sorted(after[call.id], key=lambda c: c.parent is None)
        if following:
            first, *forks = following
            straight = first.parent is not None
            waiting.append((first, steps if straight else steps + 1, not straight))
            waiting += [(fork, steps + 1, True) for fork in reversed(forks)]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call for reading."""

    name: str
    arguments: str
    """Indented where they are JSON, else as they came."""
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Shown:
    """A message for reading."""

    role: str
    text: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    about: str = ""
    """The tool call that it answers, the name of its sender."""
    other: str = ""
    """Fields beside these that are not null, as JSON."""


_KNOWN = {"role", "content", "reasoning", "reasoning_content", "tool_calls", "tool_call_id", "name"}


def shown(message: Any) -> Shown:
    """Return a decoded message for reading, whatever its shape is."""
    if not isinstance(message, Mapping):
        text = message if isinstance(message, str) else _json(message)
        return Shown("?", text)
    calls = message.get("tool_calls")
    about = [str(message[name]) for name in ("name", "tool_call_id") if message.get(name)]
    other = {n: value for n, value in message.items() if n not in _KNOWN and value is not None}
    return Shown(
        role=str(message.get("role", "?")),
        text=text_in(message.get("content")),
        reasoning=text_in(message.get("reasoning") or message.get("reasoning_content")),
        tool_calls=tuple(_tool_call(c) for c in calls) if isinstance(calls, list | tuple) else (),
        about=", ".join(about),
        other=_json(other) if other else "",
    )


def text_in(content: Any) -> str:
    """Return the text of a message's content: a string, or a list of parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return _json(content)
    parts: list[str] = []
    for part in content:
        if isinstance(part, Mapping) and isinstance(part.get("text"), str):
            parts.append(part["text"])
        elif isinstance(part, Mapping) and isinstance(part.get("type"), str):
            parts.append(f"[{part['type']}]")
        else:
            parts.append(_json(part))
    return "\n".join(parts)


def _tool_call(call: Any) -> ToolCall:
    if not isinstance(call, Mapping):
        return ToolCall("?", _json(call))
    inner = call.get("function")
    body = inner if isinstance(inner, Mapping) else call
    arguments = body.get("arguments", "")
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
        spelled = _json(value)
    except (ValueError, RecursionError):
        spelled = str(arguments)
    identity = call.get("id")
    return ToolCall(
        str(body.get("name", "?")), spelled, None if identity is None else str(identity)
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)
