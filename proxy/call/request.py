"""A chat completion request as the rest of the proxy sees it.

Fields that are not known are kept and mean nothing here. What would be answered wrongly is
refused by name. Reading a request costs its new bytes: with an earlier request of the same
conversation at hand, messages that are the same bytes are the same objects.

`chain[i]` names the conversation up to message i: a hash over the tools and template arguments
and the canonical digests of messages 0 to i. Two requests share `chain[i]` where a model reads
the same up to there. `bare_chain` is the same without reasoning.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from budwood.trajectory_store.bodies import RequestBody

from .body import Cut, NotCut, cut
from .bounds import check_fields, check_tools, is_wide
from .errors import BadRequest
from .json_text import MAX_NESTING, NotStrict, canonical, loads, mended, mended_value
from .message import Message, canonical_message, loads_message

TEMPLATE_FIELDS = ("chat_template", "chat_template_kwargs", "reasoning_effort", "documents")
"""Fields beside messages and tools that a chat template reads."""

_OWN_FIELDS = ("model", "messages", "tools", "stream", "stream_options")

_ONLY = {
    "n": (None, 1),
    "best_of": (None, 1),
    "echo": (None, False),
    "continue_final_message": (None, False),
    "add_generation_prompt": (None, True),
    "use_beam_search": (None, False),
    "truncate_prompt_tokens": (None,),
    "functions": (None, []),
}
"""Fields that are refused unless they have one of these values, and so ask for nothing."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may hold at most."""

    max_nesting: int = MAX_NESTING
    """Levels of lists and objects in any one value."""
    max_messages: int = 100_000
    """Messages in one request."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request that can be served; made by `parse_chat`."""

    raw: bytes
    body: RequestBody
    messages: tuple[Message, ...]
    """At least one."""
    chain: tuple[bytes, ...]
    """16 bytes per message."""
    bare_chain: tuple[bytes, ...]
    """16 bytes per message, reasoning left out."""
    template_key: bytes
    """16 bytes that stand for tools and `template`: where every chain starts."""
    tools: list[dict[str, Any]] | None
    """None where there are none, and where the list is empty. `cache_control` is left out."""
    template: dict[str, Any]
    """The fields of `TEMPLATE_FIELDS` that have a value."""
    model: str | None
    stream: bool
    include_usage: bool
    return_token_ids: bool
    wants_logprobs: bool
    top_logprobs: int | None
    fields: dict[str, Any]
    """All other top-level fields as received, known or not, those of `template` too."""
    body_key: bytes
    """32 bytes: equal for bodies that differ in nothing but `stream` and `stream_options`."""
    slices: Cut
    """Where `body` was cut: what the next parse compares with."""
    raw_chain: tuple[bytes, ...]
    """16 bytes per message, over the raw bytes."""


def extend_chain(key: bytes, message_digest: bytes) -> bytes:
    """Return the key of a conversation that goes on by one message."""
    return blake2b(key + message_digest, digest_size=16).digest()


def parse_chat(
    raw: bytes, previous: ChatRequest | None = None, limits: Limits | None = None
) -> ChatRequest:
    """Return the request that a body holds; raises `BadRequest`.

    `previous` is an earlier request that probably begins alike; what comes back never depends
    on it.
    """
    limits = limits or Limits()
    slices = _cut(raw, previous)
    fields = _fields(slices, limits)
    tools = _tools(slices, previous, limits)
    template = {name: fields[name] for name in TEMPLATE_FIELDS if fields.get(name) is not None}
    template_key = _template_key(tools, template, previous)
    messages = _messages(slices, previous, limits)
    n_kept = slices.n_kept if previous is not None else 0
    same = n_kept if previous is not None and previous.template_key == template_key else 0
    chain = list(previous.chain[:same]) if previous is not None else []
    bare_chain = list(previous.bare_chain[:same]) if previous is not None else []
    for message in messages[same:]:
        chain.append(extend_chain(chain[-1] if chain else template_key, message.digest))
        bare = bare_chain[-1] if bare_chain else template_key
        bare_chain.append(extend_chain(bare, message.bare_digest))
    raw_chain = list(previous.raw_chain[:n_kept]) if previous is not None else []
    for message in messages[n_kept:]:
        own = blake2b(message.raw, digest_size=16).digest()
        raw_chain.append(extend_chain(raw_chain[-1] if raw_chain else bytes(16), own))
    return ChatRequest(
        raw=raw,
        body=slices.body,
        messages=messages,
        chain=tuple(chain),
        bare_chain=tuple(bare_chain),
        template_key=template_key,
        tools=tools,
        template=template,
        model=_typed(fields, "model", str),
        stream=_typed(fields, "stream", bool) or False,
        include_usage=(_typed(fields, "stream_options", dict) or {}).get("include_usage") is True,
        return_token_ids=_typed(fields, "return_token_ids", bool) or False,
        wants_logprobs=_typed(fields, "logprobs", bool) or False,
        top_logprobs=_typed(fields, "top_logprobs", int),
        fields={name: value for name, value in fields.items() if name not in _OWN_FIELDS},
        body_key=_body_key(slices, raw_chain[-1]),
        slices=slices,
        raw_chain=tuple(raw_chain),
    )


def _cut(raw: bytes, previous: ChatRequest | None) -> Cut:
    try:
        if previous is None:
            slices = cut(raw)
        else:
            slices = cut(raw, previous.slices, previous.raw)
    except NotCut as error:
        raise BadRequest(
            f"The body must be a JSON object: {error}.", code="invalid_json"
        ) from error
    if not slices.has_messages:
        raise BadRequest("messages must be a list.", param="messages")
    return slices


def _fields(slices: Cut, limits: Limits) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in slices.members.items():
        try:
            fields[name] = loads(value, limits.max_nesting)
        except NotStrict as error:
            raise BadRequest(
                f"The body is not valid JSON: {error}.", code="invalid_json"
            ) from error
    for name, allowed in _ONLY.items():
        if fields.get(name) not in allowed:
            shown = " or ".join(repr(value).lower() for value in allowed[1:]) or "nothing"
            raise BadRequest(
                f"`{name}` is not supported: it may be left out or be {shown}.",
                param=name,
                code="unsupported_parameter",
            )
    check_fields(fields)
    return {mended(name): _encodable(name, value) for name, value in fields.items()}


def _encodable(name: str, value: Any) -> Any:
    """Return a field as an engine can be sent it: whole Unicode, integers of 64 bits."""
    if is_wide(value):
        raise BadRequest(f"`{name}` has a number that is too large.", param=name)
    return mended_value(value)


def _typed(fields: dict[str, Any], name: str, kind: type) -> Any:
    value = fields.get(name)
    if value is None or (isinstance(value, kind) and not (kind is int and value is True)):
        return mended(value) if isinstance(value, str) else value
    names = {str: "a text", bool: "true or false", dict: "an object", int: "an integer"}
    raise BadRequest(f"`{name}` must be {names[kind]}.", param=name)


def _tools(
    slices: Cut, previous: ChatRequest | None, limits: Limits
) -> list[dict[str, Any]] | None:
    raw = slices.body.tools
    if raw is None:
        return None
    if previous is not None and previous.body.tools is raw:
        return previous.tools
    try:
        found = loads(raw, limits.max_nesting)
    except NotStrict as error:
        raise BadRequest(f"`tools` is not valid JSON: {error}.", code="invalid_json") from error
    if found is not None and not isinstance(found, list):
        raise BadRequest("`tools` must be a list.", param="tools")
    if not found:
        return None
    check_tools(found)
    if is_wide(found):
        raise BadRequest("`tools` has a number that is too large.", param="tools")
    for tool in found:
        tool.pop("cache_control", None)
    return mended_value(found) if b"\\u" in raw or b"\xed" in raw else found


def _template_key(
    tools: list[dict[str, Any]] | None, template: dict[str, Any], previous: ChatRequest | None
) -> bytes:
    if previous is not None and previous.tools is tools and previous.template == template:
        return previous.template_key
    text = canonical([tools, template])
    return blake2b(text.encode(), digest_size=16).digest()


def _messages(slices: Cut, previous: ChatRequest | None, limits: Limits) -> tuple[Message, ...]:
    raws = slices.body.messages
    if not raws:
        raise BadRequest("messages must not be empty.", param="messages")
    if len(raws) > limits.max_messages:
        raise BadRequest(
            f"A request may have {limits.max_messages} messages, not {len(raws)}.",
            param="messages",
        )
    messages = list(previous.messages[: slices.n_kept]) if previous is not None else []
    unanswered = _unanswered(messages)
    for index in range(len(messages), len(raws)):
        place = f"messages[{index}]"
        message = canonical_message(
            loads_message(raws[index], limits.max_nesting),
            raws[index],
            unanswered=unanswered,
            place=place,
        )
        messages.append(message)
        _answer(unanswered, message)
    return tuple(messages)


def _unanswered(messages: list[Message]) -> list[str]:
    """Return the ids of the last calls that no message answers yet."""
    start = len(messages)
    while start and messages[start - 1].role == "tool":
        start -= 1
    unanswered: list[str] = []
    for message in messages[max(0, start - 1) :]:
        _answer(unanswered, message)
    return unanswered


def _answer(unanswered: list[str], message: Message) -> None:
    if message.role != "tool":
        unanswered[:] = [call.id for call in message.tool_calls]
    elif message.tool_call_id in unanswered:
        unanswered.remove(message.tool_call_id)


def _body_key(slices: Cut, raw_key: bytes) -> bytes:
    digest = blake2b(raw_key, digest_size=32)
    for name, value in (("tools", slices.body.tools or b""), *slices.members.items()):
        if name not in ("stream", "stream_options"):
            key = name.encode("utf-8", "surrogatepass")
            digest.update(len(key).to_bytes(8, "little") + len(value).to_bytes(8, "little"))
            digest.update(key)
            digest.update(value)
    return digest.digest()
