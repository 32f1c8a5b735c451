"""What harnesses do to a history before they send it back, each labelled by what a model reads.

A cosmetic edit changes how the history is written and nothing that it says; an edit of meaning
changes what a model would read. An edit returns a new history, or None where it has nothing to
do there (no reasoning to drop, no arguments to write anew), and never changes the one given.

Edits of meaning touch the last assistant message or something before it, and leave an assistant
message behind the place, or have none before it: otherwise what is left would be an unedited
conversation that another call has already continued, and to continue it again is no edit.
"""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from random import Random
from typing import Any

Message = dict[str, Any]
History = list[Message]

_BLANKS = ("\n", "\n\n", " ", "  \n", "\t")
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


@dataclass(frozen=True, slots=True)
class Edit:
    """A thing that harnesses do."""

    name: str
    is_meaning: bool
    make: Callable[[History, Random], History | None]


def loads_once(text: str) -> Any:
    """The value of a JSON text; raises ValueError where keys occur twice or numbers are none."""

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(found)) != len(found):
            raise ValueError("a key occurs twice")
        return dict(found)

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)


def _assistants(history: History) -> list[Message]:
    return [message for message in history if message["role"] == "assistant"]


def _calls(history: History) -> list[dict[str, Any]]:
    return [call for message in history for call in message.get("tool_calls") or ()]


def _text(message: Message) -> str:
    """The text of a message, whatever form it has."""
    content = message.get("content")
    return content if isinstance(content, str) else "".join(p["text"] for p in content or ())


# -- cosmetic ------------------------------------------------------------------------------------


def _arguments_anew(history: History, rng: Random) -> History | None:
    new, changed = deepcopy(history), False
    for call in _calls(new):
        text = call["function"]["arguments"]
        try:
            value = loads_once(text)
        except ValueError:
            continue
        if isinstance(value, dict):
            items = list(value.items())
            rng.shuffle(items)
            value = dict(items)
        written = json.dumps(
            value,
            indent=rng.choice((None, None, 1, 2)),
            separators=rng.choice(((",", ":"), (", ", ": "), (" , ", " : "))),
            ensure_ascii=rng.random() < 0.5,
        )
        changed = changed or written != text
        call["function"]["arguments"] = written
    return new if changed else None


def _white_space(history: History, rng: Random) -> History | None:
    """Trimmed or padded around what the assistant said and thought."""
    new, changed = deepcopy(history), False
    for message in _assistants(new):
        for key in ("content", "reasoning_content", "reasoning"):
            text = message.get(key)
            if not isinstance(text, str) or not text.strip():
                continue
            stripped = text.strip()
            pad = rng.choice(_BLANKS)
            message[key] = rng.choice(
                (stripped, pad + stripped, stripped + pad, stripped + "\n", text.rstrip())
            )
            changed = changed or message[key] != text
    return new if changed else None


def _ids_rewritten(history: History, rng: Random) -> History | None:
    new = deepcopy(history)
    kind = rng.choice(("toolu_", "call_", "fc_", ""))
    names: dict[str, str] = {}
    for call in _calls(new):
        names[call["id"]] = kind + "".join(rng.choices(_LETTERS, k=24 if kind else 9))
        call["id"] = names[call["id"]]
    for message in new:
        if message.get("tool_call_id") in names:
            message["tool_call_id"] = names[message["tool_call_id"]]
    return new if names else None


def _key_order(history: History, rng: Random) -> History | None:
    def shuffled(value: Any) -> Any:
        if isinstance(value, list):
            return [shuffled(item) for item in value]
        if not isinstance(value, dict):
            return value
        items = [(key, shuffled(item)) for key, item in value.items()]
        rng.shuffle(items)
        return dict(items)

    return [shuffled(message) for message in history]


def _empty_content(history: History, rng: Random) -> History | None:
    """Null for absent for empty, beside tool calls."""
    new, changed = deepcopy(history), False
    for message in _assistants(new):
        if not message.get("tool_calls") or _text(message).strip():
            continue
        message.pop("content", None)
        how = rng.choice(("absent", "null", "empty", "blank", "no parts"))
        forms: dict[str, Any] = {"null": None, "empty": "", "blank": "\n", "no parts": []}
        if how in forms:
            message["content"] = forms[how]
        changed = True
    return new if changed else None


def _as_parts(history: History, rng: Random) -> History | None:
    new, changed = deepcopy(history), False
    for message in new:
        if isinstance(message.get("content"), str) and message["content"] and rng.random() < 0.7:
            part: dict[str, Any] = {"type": "text", "text": message["content"]}
            if rng.random() < 0.3:
                part["cache_control"] = {"type": "ephemeral"}
            message["content"], changed = [part], True
    return new if changed else None


def _reasoning_field(history: History, rng: Random) -> History | None:
    new, changed = deepcopy(history), False
    for message in _assistants(new):
        if "reasoning_content" in message:
            message["reasoning"] = message.pop("reasoning_content")
            changed = True
        elif "reasoning" in message:
            message["reasoning_content"] = message.pop("reasoning")
            changed = True
    return new if changed else None


def _reasoning_in_text(history: History, rng: Random) -> History | None:
    """Reasoning as a think block in front of the text, where it can be told from it."""
    new, changed = deepcopy(history), False
    for message in _assistants(new):
        thought = message.get("reasoning_content") or message.get("reasoning") or ""
        if (
            not thought.strip()
            or "</think>" in thought
            or not isinstance(message.get("content"), str | None)
        ):
            continue
        message.pop("reasoning_content", None)
        message.pop("reasoning", None)
        said = message.get("content") or ""
        message["content"] = f"<think>\n{thought.strip()}\n</think>\n\n{said}"
        changed = True
    return new if changed else None


def _several(history: History, rng: Random) -> History | None:
    """What one harness does: everything anew from its own records."""
    new: History | None = history
    for make in (_arguments_anew, _white_space, _ids_rewritten, _empty_content, _as_parts):
        new = make(new or history, rng) or new
    return _key_order(new or history, rng)


# -- of meaning ----------------------------------------------------------------------------------


def _last_assistant(history: History) -> int:
    return max(i for i, message in enumerate(history) if message["role"] == "assistant")


def _note(rng: Random) -> str:
    """Words that occur nowhere else, so that no edit undoes another."""
    return "".join(rng.choices(_LETTERS, k=6))


def _reasoning_dropped(history: History, rng: Random) -> History | None:
    new = deepcopy(history)
    with_thoughts = [
        message
        for message in _assistants(new)
        if (message.get("reasoning_content") or message.get("reasoning") or "").strip()
    ]
    if not with_thoughts:
        return None
    for message in rng.choice((with_thoughts, with_thoughts[-1:], with_thoughts[:1])):
        message.pop("reasoning_content", None)
        message.pop("reasoning", None)
    return new


def _text_truncated(history: History, rng: Random) -> History | None:
    new = deepcopy(history)
    long = [message for message in _assistants(new) if len(_text(message).strip()) >= 8]
    if not long:
        return None
    message = rng.choice(long)
    text = _text(message).strip()
    cut = text[: len(text) // 2].strip()
    message["content"] = rng.choice((cut, f"{cut}\n[truncated {_note(rng)}]"))
    return new


def _compacted(history: History, rng: Random) -> History | None:
    n_head = 1 if history[0]["role"] == "system" else 0
    if len(_assistants(history)) < 2:
        return None
    kept = history[_last_assistant(history) :] if rng.random() < 0.5 else []
    if kept and not kept[0].get("tool_calls"):
        kept = []
    said = " ".join(_text(message)[:20] for message in history[n_head:])
    summary = {"role": "user", "content": f"Summary {_note(rng)} of the work so far: {said[:120]}"}
    return [*deepcopy(history[:n_head]), summary, *deepcopy(kept)]


def _before_the_last(history: History, *roles: str) -> list[int]:
    last = _last_assistant(history)
    return [
        i for i, message in enumerate(history[:last]) if message["role"] in roles and _text(message)
    ]


def _redacted(history: History, rng: Random) -> History | None:
    places = _before_the_last(history, "user", "tool")
    if not places:
        return None
    new = deepcopy(history)
    message = new[rng.choice(places)]
    text = _text(message)
    message["content"] = text[: len(text) // 2] + f"[redacted {_note(rng)}]"
    return new


def _arguments_redacted(history: History, rng: Random) -> History | None:
    new = deepcopy(history)
    calls = _calls(new)
    if not calls:
        return None
    rng.choice(calls)["function"]["arguments"] = json.dumps({"command": f"[hidden {_note(rng)}]"})
    return new


def _message_removed(history: History, rng: Random) -> History | None:
    """An assistant message with what answers it, or a user message; never the last cycle."""
    last = _last_assistant(history)
    starts = [
        i
        for i, message in enumerate(history[:last])
        if message["role"] in ("user", "assistant") and i + 1 < len(history)
    ]
    if not starts or len(_assistants(history)) < 2:
        return None
    start = rng.choice(starts)
    end = start + 1
    while end < len(history) and history[end]["role"] == "tool":
        end += 1
    left = deepcopy(history[:start] + history[end:])
    # The removed message may have been followed by its equal: nothing would have changed then.
    same = [_said(a) == _said(b) for a, b in zip(left, history, strict=False)]
    return None if all(same[: _last_assistant(left) + 1]) else left


def _said(message: Message) -> object:
    thought = message.get("reasoning_content") or message.get("reasoning") or ""
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in _calls([message])]
    return message["role"], _text(message).strip(), thought.strip(), calls


def _tool_output_changed(history: History, rng: Random) -> History | None:
    places = _before_the_last(history, "tool")
    if not places:
        return None
    new = deepcopy(history)
    for place in places if rng.random() < 0.5 else [rng.choice(places)]:
        new[place]["content"] = f"[old output {_note(rng)} cleared]"
    return new


def _system_changed(history: History, rng: Random) -> History | None:
    if history[0]["role"] != "system":
        return None
    new = deepcopy(history)
    new[0]["content"] = f"{_text(new[0])}\nToday: {_note(rng)}"
    return new


EDITS: tuple[Edit, ...] = (
    Edit("arguments re-serialised", False, _arguments_anew),
    Edit("white space", False, _white_space),
    Edit("ids rewritten", False, _ids_rewritten),
    Edit("key order", False, _key_order),
    Edit("null, absent, empty", False, _empty_content),
    Edit("text as parts", False, _as_parts),
    Edit("reasoning field", False, _reasoning_field),
    Edit("reasoning in text", False, _reasoning_in_text),
    Edit("all of these", False, _several),
    Edit("reasoning dropped", True, _reasoning_dropped),
    Edit("text truncated", True, _text_truncated),
    Edit("compacted", True, _compacted),
    Edit("text redacted", True, _redacted),
    Edit("arguments redacted", True, _arguments_redacted),
    Edit("message removed", True, _message_removed),
    Edit("tool output changed", True, _tool_output_changed),
    Edit("system text changed", True, _system_changed),
)
