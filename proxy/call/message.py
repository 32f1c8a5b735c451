"""One message of a conversation in its two forms: as it came, and as it is compared.

Two messages have the same `digest` where a model that reads them reads the same. What a harness
may change without changing that is left out of the comparison:

* white space around what the assistant said or thought (nowhere else: in a user's or a tool's
  text it is meaning);
* whether content is absent, null, empty, a text or a list of one text part (several parts are
  one text only where vLLM joins them for every template, by LF: in tool messages. A template
  that reads parts may write them one behind the other);
* the field reasoning stands in: `reasoning`, `reasoning_content`, `thinking`, a thinking part, or
  one leading `<think>` block in the text;
* the spelling of tool arguments: compared as JSON values (1 is 1.0, true is not 1, key order is
  nothing). Arguments that don't parse, or hold a key twice, are compared as they are;
* ids of tool calls and of what answers them, `cache_control`, `name` on tool messages, fields
  that only describe (`index`, `annotations`, ...);
* volatile lines (`content.VOLATILE`), which mean nothing to a model and change with every request.

Media are compared by a hash of their reference. `wire` is what an engine should render.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from .content import Content, ContentForm, Media, MediaPart, joined, mended_into, read_content
from .errors import BadRequest
from .json_text import (
    MAX_NESTING,
    NotStrict,
    canonical,
    dumps,
    loads,
    loads_comparable,
    loads_loosely,
    mended,
    mended_value,
)

_REASONING_FIELDS = ("reasoning", "reasoning_content", "thinking")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that an assistant message makes."""

    id: str
    """As the message has it, or a stand-in (`call00000`) where it has none."""
    name: str
    arguments: str
    """The raw text (JSON of the value where a client sent the value itself)."""
    value: Any
    """The arguments as a JSON value, 1.0 as 1; None where the text has no single value."""
    is_value: bool = True
    """Whether `value` stands for the arguments; a raw comparison is made where it doesn't."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it came (`raw`), as it is compared (digests), as it is rendered (`wire`)."""

    role: str
    text: str
    """All text of the content, parts joined by LF; white space as sent."""
    content_form: ContentForm
    reasoning: str | None
    thought: str
    """Reasoning as it is compared, from a field or a leading think block; empty where none is."""
    tool_calls: tuple[ToolCall, ...]
    tool_call_id: str | None
    name: str | None
    media: tuple[Media, ...]
    wire: dict[str, Any]
    """The chat message for the engine: `content` text (parts where there are several), `reasoning`,
    arguments as a text that is a JSON object, an id on every call, no lone surrogates."""
    digest: bytes
    """16 bytes of the canonical form."""
    bare_digest: bytes
    """The same without reasoning."""
    raw: bytes
    flags: frozenset[str]
    """`surrogate`: text was replaced; `bad_arguments`: arguments are not a JSON object;
    `volatile`: a line was dropped; `missing_id`: an id was given."""


@dataclass(slots=True)
class _Draft:
    """A message that has been read and is to be said in its forms."""

    role: str
    content: Content
    reasoning: str | None
    calls: tuple[ToolCall, ...]
    tool_call_id: str | None
    name: str | None


def loads_message(raw: bytes, max_nesting: int = MAX_NESTING) -> dict[str, Any]:
    """Return the object of a message slice; raises `BadRequest`."""
    try:
        found = loads(raw, max_nesting)
    except NotStrict as error:
        raise BadRequest(f"A message is not valid JSON: {error}.", code="invalid_json") from error
    if not isinstance(found, dict):
        raise BadRequest("A message must be an object.", param="messages")
    return found


def canonical_message(
    obj: dict[str, Any], raw: bytes, *, unanswered: Sequence[str] = (), place: str = "messages[]"
) -> Message:
    """Return a message in both forms; raises `BadRequest` with a param below `place`.

    `unanswered` are ids of calls before it that no message answers yet: a tool message without
    an id answers the first.
    """
    flags: set[str] = set()
    role = obj.get("role")
    if not isinstance(role, str) or not role:
        raise BadRequest("A message needs a role.", param=f"{place}.role")
    role = mended_into(role, flags)
    content = read_content(role, obj, flags, place)
    name = obj.get("name")
    tool_call_id = None
    if role in ("tool", "function"):
        role, tool_call_id = "tool", _answered(obj, flags, unanswered)
    draft = _Draft(
        role=role,
        content=content,
        reasoning=_reasoning(role, obj, content, flags, place),
        calls=_tool_calls(role, obj, flags, place),
        tool_call_id=tool_call_id,
        name=mended_into(name, flags) if isinstance(name, str) and name else None,
    )
    wire = _wire(draft, flags)
    digest, bare_digest, thought = _compared(draft)
    return Message(
        role=role,
        text=content.text,
        content_form=content.form,
        reasoning=draft.reasoning,
        thought=thought,
        tool_calls=draft.calls,
        tool_call_id=tool_call_id,
        name=draft.name,
        media=tuple(piece.media for piece in content.pieces if not isinstance(piece, str)),
        wire=wire,
        digest=digest,
        bare_digest=bare_digest,
        raw=raw,
        flags=frozenset(flags),
    )


def reply_message(reply: dict[str, Any]) -> Message:
    """Return a sampled reply in the form that its echo from any harness will have.

    `reply` is `{role, content, reasoning, tool_calls: [{id, name, arguments}]}`.
    """
    calls = [
        {
            "id": call.get("id"),
            "type": "function",
            "function": {"name": call["name"], "arguments": call["arguments"]},
        }
        for call in reply.get("tool_calls") or ()
    ]
    obj: dict[str, Any] = {"role": "assistant", "content": reply.get("content")}
    if reply.get("reasoning"):
        obj["reasoning"] = reply["reasoning"]
    if calls:
        obj["tool_calls"] = calls
    return canonical_message(obj, dumps(mended_value(obj)).encode())


def reply_thought(reply: Mapping[str, Any]) -> str:
    """Return `reply_message(reply).thought`, without reading the rest."""
    content = reply.get("content")
    pieces: list[str | MediaPart] = [mended(content)] if content else []
    return _without_think_block(mended(reply.get("reasoning") or "").strip(), pieces)[0]


# -- reading ---------------------------------------------------------------------------------


def _reasoning(
    role: str, obj: dict[str, Any], content: Content, flags: set[str], place: str
) -> str | None:
    if role != "assistant":
        return None
    for field in _REASONING_FIELDS:
        found = obj.get(field)
        if isinstance(found, str) and found:
            return mended_into(found, flags)
        if field != "thinking" and found is not None and not isinstance(found, str):
            raise BadRequest("Reasoning must be a text.", param=f"{place}.{field}")
    return "\n".join(content.thoughts) or None


def _tool_calls(
    role: str, obj: dict[str, Any], flags: set[str], place: str
) -> tuple[ToolCall, ...]:
    found = obj.get("tool_calls")
    if not found and isinstance(obj.get("function_call"), dict):
        found = [{"function": obj["function_call"]}]
    if found is None or role != "assistant":
        return ()
    if not isinstance(found, list):
        raise BadRequest("tool_calls must be a list.", param=f"{place}.tool_calls")
    return tuple(
        _tool_call(call, index, flags, f"{place}.tool_calls[{index}]")
        for index, call in enumerate(found)
    )


def _tool_call(call: Any, index: int, flags: set[str], place: str) -> ToolCall:
    if not isinstance(call, dict):
        raise BadRequest("A tool call must be an object.", param=place)
    function = call.get("function")
    if function is None and isinstance(call.get("custom"), dict):
        custom = call["custom"]
        function = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRequest("A tool call needs a function with a name.", param=f"{place}.function")
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else dumps(arguments)
    value, is_value = _value(arguments, flags)
    if not isinstance(value, dict):
        flags.add("bad_arguments")
    call_id = call.get("id")
    if not isinstance(call_id, str) or not call_id:
        flags.add("missing_id")
        call_id = f"call{index:05d}"
    name = mended_into(function["name"], flags)
    return ToolCall(mended_into(call_id, flags), name, arguments, value, is_value)


def _value(arguments: str, flags: set[str]) -> tuple[Any, bool]:
    """Return the value of an argument text; no text is what engines write for no arguments."""
    if not arguments.strip():
        return {}, True
    try:
        value = loads_comparable(arguments)
    except NotStrict:
        return None, False
    if arguments.isascii() and "\\u" not in arguments:
        return value, True
    fixed = mended_value(value)
    if fixed != value:
        flags.add("surrogate")
    return fixed, True


def _answered(obj: dict[str, Any], flags: set[str], unanswered: Sequence[str]) -> str:
    found = obj.get("tool_call_id")
    if isinstance(found, str) and found:
        return mended_into(found, flags)
    flags.add("missing_id")
    return unanswered[0] if unanswered else "call00000"


# -- saying ----------------------------------------------------------------------------------


def _compared(draft: _Draft) -> tuple[bytes, bytes, str]:
    """Return the digests with and without reasoning, and the reasoning that tells them apart.

    Each field has a tag and a length.
    """
    reasoning, pieces = draft.reasoning or "", list(draft.content.pieces)
    if draft.role in ("assistant", "tool"):
        pieces = joined(pieces)
    if draft.role == "assistant":
        reasoning, pieces = _without_think_block(reasoning.strip(), pieces)
        if len(pieces) == 1 and isinstance(pieces[0], str):
            text = pieces[0].strip()
            pieces = [text] if text else []
    bare = blake2b(digest_size=16)
    _put(bare, b"r", draft.role)
    if draft.name and draft.role != "tool":
        _put(bare, b"n", draft.name)
    for piece in pieces:
        if isinstance(piece, str):
            _put(bare, b"t", piece)
        else:
            _put(bare, b"m", piece.media.kind + piece.media.digest.hex())
    for call in draft.calls:
        _put(bare, b"c", call.name)
        if call.is_value:
            _put(bare, b"v", canonical(call.value))
        else:
            _put(bare, b"w", mended(call.arguments))
    whole = bare.copy()
    if reasoning:
        _put(whole, b"h", reasoning)
    return whole.digest(), bare.digest(), reasoning


def _put(digest: blake2b, tag: bytes, text: str) -> None:
    data = text.encode()
    digest.update(tag + len(data).to_bytes(8, "little"))
    digest.update(data)


def _without_think_block(
    reasoning: str, pieces: list[str | MediaPart]
) -> tuple[str, list[str | MediaPart]]:
    """Take reasoning that leads the text in think tags for reasoning, unless it is other text."""
    if not pieces or not isinstance(pieces[0], str):
        return reasoning, pieces
    text = pieces[0].lstrip()
    if not text.startswith("<think>") or "</think>" not in text:
        return reasoning, pieces
    thought, _, rest = text.removeprefix("<think>").partition("</think>")
    if reasoning and thought.strip() != reasoning:
        return reasoning, pieces
    return thought.strip(), [rest, *pieces[1:]]


def _wire(draft: _Draft, flags: set[str]) -> dict[str, Any]:
    content = draft.content
    wire: dict[str, Any] = {"role": draft.role}
    has_media = any(not isinstance(piece, str) for piece in content.pieces)
    if has_media or (len(content.pieces) > 1 and draft.role != "tool"):
        wire["content"] = [
            {"type": "text", "text": piece} if isinstance(piece, str) else piece.part
            for piece in content.pieces
        ]
    else:
        wire["content"] = content.text
    if draft.reasoning:
        wire["reasoning"] = draft.reasoning
    if draft.calls:
        wire["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _rendered(call, flags)},
            }
            for call in draft.calls
        ]
    if draft.tool_call_id is not None:
        wire["tool_call_id"] = draft.tool_call_id
    if draft.name:
        wire["name"] = draft.name
    return wire


def _rendered(call: ToolCall, flags: set[str]) -> str:
    """Return arguments as an engine can read them; what is no object is `{}`, as in vLLM 0.32."""
    text = mended_into(call.arguments, flags)
    if call.is_value and not isinstance(call.value, dict):
        return "{}"
    if not text.strip():
        return "{}"
    if call.is_value and "\\u" not in text:
        return text
    # Keys that occur twice and NaN are read by engines, last one and as it is.
    given = loads_loosely(text)
    if not isinstance(given, dict):
        return "{}"
    fixed = mended_value(given)
    if dumps(fixed) == dumps(given):
        return text
    flags.add("surrogate")
    return dumps(fixed)
