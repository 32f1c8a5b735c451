"""How two requests differ, in words: what changed between one list of messages and another.

Plain values in, text out. A message is a dict of canonical fields (`role`, `text`, `reasoning`,
`tool_calls`, ...); a field that is missing equals one that is None, empty or an empty list.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_LINES = 200
"""Lines of one field's diff that are shown; the rest is counted."""

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two requests differ."""

    where: str
    """`message 4 (tool), text`, `tools`, `temperature`, `number of messages`."""
    lines: tuple[str, ...]
    """A unified diff of that place: `-` was recorded, `+` came now."""
    message_index: int | None = None

    def __str__(self) -> str:
        """Return the place and the diff."""
        return "\n".join([f"{self.where} differs:", *self.lines])


def present(message: Message) -> dict[str, Any]:
    """Return the message without its empty fields."""
    return {name: value for name, value in message.items() if value not in (None, "", [], (), {})}


def canonical(value: Any) -> str:
    """Return a text that is equal for equal JSON values: 1 = 1.0, true is not 1, no key order."""
    return json.dumps(_plain(value), ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def n_common(old: Sequence[Message], new: Sequence[Message]) -> int:
    """Return how many messages at the beginning are equal."""
    for index, (before, after) in enumerate(zip(old, new, strict=False)):
        if before is not after and canonical(present(before)) != canonical(present(after)):
            return index
    return min(len(old), len(new))


def first_difference(old: Sequence[Message], new: Sequence[Message]) -> Difference | None:
    """Return the first message that differs, or None for equal lists."""
    common = n_common(old, new)
    if common < min(len(old), len(new)):
        return _of_message(common, present(old[common]), present(new[common]))
    if len(old) == len(new):
        return None
    longer, sign = (old, "-") if len(old) > len(new) else (new, "+")
    lines = [
        f"{sign}message {index} ({longer[index].get('role')}): {_brief(longer[index])}"
        for index in range(common, len(longer))
    ]
    return Difference(
        f"the number of messages ({len(old)} recorded, {len(new)} now)",
        _capped(lines),
        common,
    )


def value_difference(where: str, old: Any, new: Any) -> Difference | None:
    """Return how two JSON values differ, or None."""
    if canonical(old) == canonical(new):
        return None
    return Difference(where, _diff(_lines(old), _lines(new)))


def _of_message(index: int, old: Message, new: Message) -> Difference:
    for field in sorted({*old, *new}, key=lambda name: (name != "role", name)):
        before, after = old.get(field), new.get(field)
        if canonical(before) != canonical(after):
            role = new.get("role") if old.get("role") == new.get("role") else "?"
            return Difference(
                f"message {index} ({role}), {field}",
                _diff(_lines(before), _lines(after)),
                index,
            )
    raise AssertionError("equal messages")


def _brief(message: Message) -> str:
    text = json.dumps(present(message), ensure_ascii=False, sort_keys=True)
    return text if len(text) <= 200 else text[:199] + "…"


def _lines(value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str):
        return value.split("\n")
    return json.dumps(_plain(value), ensure_ascii=False, sort_keys=True, indent=1).split("\n")


def _diff(old: list[str], new: list[str]) -> tuple[str, ...]:
    lines = difflib.unified_diff(old, new, "recorded", "now", lineterm="", n=2)
    return _capped(list(lines))


def _capped(lines: list[str]) -> tuple[str, ...]:
    if len(lines) > MAX_LINES:
        lines = [*lines[:MAX_LINES], f"... and {len(lines) - MAX_LINES} more lines"]
    return tuple(lines)
