"""What harnesses do to a conversation before they send it back, each edit with its label.

An edit takes the harness's list of chat messages and returns a changed copy, or None where it has
nothing to work on. Cosmetic edits change spelling only: the model's own words still stand there.
Edits of meaning change what a model reads at or before the last assistant message, and leave that
message in place: what comes after it is new anyway.
"""

import copy
import json
from collections.abc import Callable
from random import Random
from typing import Any

Messages = list[dict[str, Any]]
EditFunction = Callable[[Messages, Random], Messages | None]

REASONING = ("reasoning", "reasoning_content")
"""The fields that harnesses send reasoning in."""

COSMETIC: dict[str, EditFunction] = {}
MEANINGFUL: dict[str, EditFunction] = {}


def _register(table: dict[str, EditFunction]) -> Callable[[EditFunction], EditFunction]:
    def add(function: EditFunction) -> EditFunction:
        table[function.__name__] = function
        return function

    return add


cosmetic, meaningful = _register(COSMETIC), _register(MEANINGFUL)


def _assistants(messages: Messages) -> Messages:
    return [message for message in messages if message["role"] == "assistant"]


def _calls(messages: Messages) -> list[dict[str, Any]]:
    return [call for message in messages for call in message.get("tool_calls") or ()]


def _arguments(call: dict[str, Any]) -> Any:
    """The arguments as an object; None where they are not a JSON object."""
    try:
        found = json.loads(call["function"]["arguments"])
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def last_assistant(messages: Messages) -> int:
    """The index of the last assistant message."""
    return max(i for i, message in enumerate(messages) if message["role"] == "assistant")


def text_of(message: dict[str, Any]) -> str:
    """The text of a message's content, parts joined as the engine joins them."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content)
    return content or ""


# -- cosmetic ------------------------------------------------------------------------------------


@cosmetic
def arguments_respelled(messages: Messages, chance: Random) -> Messages | None:
    """Parsed and written again: other spaces, other escapes."""
    out = copy.deepcopy(messages)
    calls = [call for call in _calls(out) if _arguments(call) is not None]
    for call in calls:
        call["function"]["arguments"] = json.dumps(
            _arguments(call),
            ensure_ascii=chance.random() < 0.5,
            indent=chance.choice([None, 1]),
            separators=chance.choice([None, (",", ":"), (" , ", " : ")]),
        )
    return out if calls else None


@cosmetic
def argument_keys_reordered(messages: Messages, chance: Random) -> Messages | None:
    """The keys of arguments in another order, as a map type gives them back."""
    out, n = copy.deepcopy(messages), 0
    for call in _calls(out):
        found = _arguments(call)
        if found is not None and len(found) > 1:
            call["function"]["arguments"] = json.dumps(dict(reversed(found.items())))
            n += 1
    return out if n else None


@cosmetic
def white_space_around(messages: Messages, chance: Random) -> Messages | None:
    """Assistant text trimmed or padded."""
    out, n = copy.deepcopy(messages), 0
    for message in _assistants(out):
        text = message.get("content")
        if isinstance(text, str) and text.strip():
            message["content"] = chance.choice([text.strip(), f"\n\n{text} ", f" {text.strip()}\n"])
            n += 1
    return out if n else None


@cosmetic
def ids_renamed(messages: Messages, chance: Random) -> Messages | None:
    """Tool-call ids of the harness's own, consistently."""
    out = copy.deepcopy(messages)
    renamed: dict[str, str] = {}
    for call in _calls(out):
        renamed[call["id"]] = f"toolu_{chance.getrandbits(48):012x}"
        call["id"] = renamed[call["id"]]
    for message in out:
        if message["role"] == "tool":
            message["tool_call_id"] = renamed.get(message["tool_call_id"], message["tool_call_id"])
    return out if renamed else None


@cosmetic
def message_keys_reordered(messages: Messages, chance: Random) -> Messages | None:
    """The fields of every message in another order."""
    return [dict(reversed(copy.deepcopy(message).items())) for message in messages]


@cosmetic
def empty_content_respelled(messages: Messages, chance: Random) -> Messages | None:
    """Content null, empty, or not there at all where the assistant only called tools."""
    out, n = copy.deepcopy(messages), 0
    for message in _assistants(out):
        if message.get("tool_calls") and not text_of(message).strip():
            n += 1
            match chance.randrange(3):
                case 0:
                    message["content"] = None
                case 1:
                    message["content"] = ""
                case _:
                    message.pop("content", None)
    return out if n else None


@cosmetic
def content_as_parts(messages: Messages, chance: Random) -> Messages | None:
    """Texts as lists of parts, with markers for a prompt cache."""
    out, n = copy.deepcopy(messages), 0
    for message in out:
        if isinstance(message.get("content"), str) and message["content"] and chance.random() < 0.6:
            part: dict[str, Any] = {"type": "text", "text": message["content"]}
            if chance.random() < 0.5:
                part["cache_control"] = {"type": "ephemeral"}
            message["content"] = [part]
            n += 1
    return out if n else None


@cosmetic
def reasoning_field_renamed(messages: Messages, chance: Random) -> Messages | None:
    """Reasoning comes back under the name that a client library knows."""
    out, n = copy.deepcopy(messages), 0
    for message in _assistants(out):
        thought = message.pop("reasoning", None)
        other = message.pop("reasoning_content", None)
        if thought or other:
            message[chance.choice(["reasoning", "reasoning_content"])] = thought or other
            n += 1
    return out if n else None


@cosmetic
def annotations_added(messages: Messages, chance: Random) -> Messages | None:
    """Fields that say nothing to a model."""
    out = copy.deepcopy(messages)
    for message in out:
        if message["role"] == "tool":
            message["name"] = "tool"
        if message["role"] == "assistant":
            message |= {"refusal": None, "annotations": [], "audio": None}
            for index, call in enumerate(message.get("tool_calls") or ()):
                call["index"] = index
    return out


# -- of meaning ----------------------------------------------------------------------------------


@meaningful
def reasoning_dropped(messages: Messages, chance: Random) -> Messages | None:
    """Every assistant message without its reasoning, or only some."""
    out, n = copy.deepcopy(messages), 0
    share = chance.choice([1.0, 1.0, 0.5])
    for message in _assistants(out):
        if chance.random() < share:
            for name in REASONING:
                n += bool((message.pop(name, None) or "").strip())
    return out if n else None


@meaningful
def reasoning_changed(messages: Messages, chance: Random) -> Messages | None:
    """Another reasoning in one assistant message."""
    out = copy.deepcopy(messages)
    places = [m for m in _assistants(out) if any((m.get(name) or "").strip() for name in REASONING)]
    if not places:
        return None
    message = chance.choice(places)
    for name in REASONING:
        if name in message:
            message[name] = f"summed up as {chance.getrandbits(40)}"
    return out


def _texts_before(messages: Messages, least: int) -> list[int]:
    end = last_assistant(messages)
    return [i for i in range(end + 1) if len(text_of(messages[i]).strip()) >= least]


@meaningful
def text_truncated(messages: Messages, chance: Random) -> Messages | None:
    """A long text cut short."""
    places = _texts_before(messages, 12)
    if not places:
        return None
    out = copy.deepcopy(messages)
    message = out[chance.choice(places)]
    text = text_of(message).strip()
    message["content"] = text[: len(text) // 2].rstrip() + " [...]"
    return out


@meaningful
def text_redacted(messages: Messages, chance: Random) -> Messages | None:
    """A piece in the middle of a text blacked out."""
    places = _texts_before(messages, 8)
    if not places:
        return None
    out = copy.deepcopy(messages)
    message = out[chance.choice(places)]
    text = text_of(message)
    middle = len(text) // 2
    message["content"] = f"{text[: middle - 1]}[redacted]{text[middle + 1 :]}"
    return out


@meaningful
def message_removed(messages: Messages, chance: Random) -> Messages | None:
    """An earlier round left out: an assistant message with what answers it."""
    end = last_assistant(messages)
    places = [i for i in range(end) if messages[i]["role"] == "assistant"]
    if not places:
        return None
    start = chance.choice(places)
    stop = start + 1
    while stop < end and messages[stop]["role"] != "assistant":
        stop += 1
    return copy.deepcopy(messages[:start] + messages[stop:])


@meaningful
def compacted(messages: Messages, chance: Random) -> Messages | None:
    """Everything between the system text and the last assistant message told in a sentence."""
    end = last_assistant(messages)
    if end < 4:
        return None
    kept = messages[:1] if messages[0]["role"] == "system" else []
    told = {"role": "user", "content": f"Earlier: {chance.getrandbits(40)} things were done."}
    return copy.deepcopy([*kept, told, *messages[end:]])


@meaningful
def tool_output_changed(messages: Messages, chance: Random) -> Messages | None:
    """A tool's output is not what it was."""
    end = last_assistant(messages)
    places = [i for i in range(end) if messages[i]["role"] == "tool"]
    if not places:
        return None
    out = copy.deepcopy(messages)
    out[chance.choice(places)]["content"] = f"(output {chance.getrandbits(40)} removed)"
    return out


@meaningful
def argument_changed(messages: Messages, chance: Random) -> Messages | None:
    """An argument has another value; true for 1 is one as well."""
    out = copy.deepcopy(messages)
    calls = [call for call in _calls(out) if _arguments(call)]
    if not calls:
        return None
    call = chance.choice(calls)
    found = _arguments(call)
    key = next(iter(found))
    found[key] = True if type(found[key]) is int and found[key] == 1 else chance.getrandbits(40)
    call["function"]["arguments"] = json.dumps(found)
    return out


@meaningful
def prompt_text_padded(messages: Messages, chance: Random) -> Messages | None:
    """White space around what a user or a tool said: there it has meaning."""
    end = last_assistant(messages)
    places = [i for i in range(end) if messages[i]["role"] in ("user", "tool")]
    out = copy.deepcopy(messages)
    message = out[chance.choice(places)]
    message["content"] = text_of(message) + "\n "
    return out


@meaningful
def calls_swapped(messages: Messages, chance: Random) -> Messages | None:
    """Two calls of one message in the other order."""
    out = copy.deepcopy(messages)
    for message in _assistants(out):
        calls = message.get("tool_calls") or []
        if len(calls) > 1:
            said = [(c["function"]["name"], _arguments(c)) for c in calls]
            if said[0] != said[-1]:
                message["tool_calls"] = calls[::-1]
                return out
    return None
