"""One call by the official openai SDK, and the assistant message as a harness keeps it."""

from dataclasses import dataclass
from typing import Any

import openai

from budwood.trajectory_store import CallId

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the client has in hand after a call."""

    call_id: CallId
    message: Message
    """To be sent back: `role`, `content`, and `reasoning_content` and `tool_calls` where given."""
    finish: str | None


async def ask(
    sdk: openai.AsyncOpenAI, messages: list[Message], *, stream: bool, **fields: Any
) -> Answer:
    """One call; streamed answers are put together as the SDK's users do."""
    given: Any = {"model": "tiny", "messages": messages, **fields}
    if not stream:
        answer = await sdk.chat.completions.create(**given)
        (choice,) = answer.choices
        found = choice.message.model_dump(exclude_none=True)
        kept = ("role", "content", "reasoning_content", "tool_calls")
        message = {key: found[key] for key in kept if found.get(key)}
        return Answer(_call_id(answer.id), {"content": None, **message}, choice.finish_reason)
    texts = {"content": "", "reasoning_content": ""}
    calls: dict[int, Message] = {}
    call_id, finish = "", None
    async for chunk in await sdk.chat.completions.create(stream=True, **given):
        call_id = chunk.id
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            delta = choice.delta.model_dump(exclude_none=True)
            for key in texts:
                texts[key] += delta.get(key) or ""
            for part in delta.get("tool_calls") or ():
                _add(calls, part)
    message: Message = {"role": "assistant", "content": texts["content"] or None}
    if texts["reasoning_content"]:
        message["reasoning_content"] = texts["reasoning_content"]
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return Answer(_call_id(call_id), message, finish)


def _add(calls: dict[int, Message], part: Message) -> None:
    call = calls.setdefault(
        part["index"], {"type": "function", "function": {"name": "", "arguments": ""}}
    )
    if part.get("id"):
        call["id"] = part["id"]
    for key, value in part.get("function", {}).items():
        call["function"][key] += value or ""


def _call_id(answer_id: str) -> CallId:
    return CallId(answer_id.removeprefix("chatcmpl-"))
