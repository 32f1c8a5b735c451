"""A streamed chat answer: events to deltas, each parsed once.

A piece that arrives is cut into events by bytes (`wire.sse`), every event is parsed once, and what
it holds goes two ways: text, reasoning and tool calls become a `Delta` for the harness; ids and
logprobs are appended to `Collected`. Chunks whose visible delta is empty carry ids all the same
(measured: 14 of 31 in a tool call) and make no delta.
"""

from collections.abc import AsyncIterator
from typing import Any

from ..call import Delta, ToolDelta, shown_logprobs
from ..wire import EventParser
from .errors import EngineBroken
from .reply import MALFORMED, Collected, loads

_NO_CALLS: tuple[ToolDelta, ...] = ()


class ChatEvents:
    """Turns the payloads of a chat stream's events into deltas and fills `collected`."""

    def __init__(self, collected: Collected, *, passes_tokens: bool = False) -> None:
        self.collected = collected
        self._passes_tokens = passes_tokens
        self._is_first = True

    def take(self, payload: bytes) -> Delta | None:
        """Take one event; None where a client sees nothing of it. Raises EngineBroken."""
        collected = self.collected
        if payload == b"[DONE]":
            collected.is_whole = True
            return None
        try:
            if self._is_first:
                payload = collected.take_prompt(payload)
            event = loads(payload)
            choices = event.get("choices")
            if event.get("error"):
                raise EngineBroken("server_error", _error_text(event["error"]))
            if event.get("usage"):
                collected.take_usage(event["usage"])
            if not choices:
                return None
            choice = choices[0]
            delta = choice.get("delta") or {}
            if self._is_first:
                self._is_first = False
                if event.get("prompt_token_ids"):  # written in other spacing than vLLM's
                    collected.take_prompt_ids(event["prompt_token_ids"])
            ids = choice.get("token_ids")
            if ids:
                collected.take_ids(ids)
            logprobs = choice.get("logprobs")
            if logprobs:
                collected.take_logprobs(logprobs)
            if choice.get("finish_reason") is not None:
                collected.take_finish(choice["finish_reason"], choice.get("stop_reason"))
            if not delta and not self._passes_tokens:
                return None
            return self._delta(delta, ids, logprobs)
        except MALFORMED as error:
            raise EngineBroken("bad_event", f"an event is not a chat chunk: {error!r}") from error

    def _delta(
        self, delta: dict[str, Any], ids: list[int] | None, logprobs: dict[str, Any] | None
    ) -> Delta | None:
        collected = self.collected
        content = delta.get("content")
        reasoning = delta.get("reasoning") or delta.get("reasoning_content")
        collected.take_text(content, reasoning)
        parts = delta.get("tool_calls")
        calls = tuple([collected.take_call(part) for part in parts]) if parts else _NO_CALLS
        if self._passes_tokens and (ids or logprobs):
            entries = shown_logprobs(logprobs.get("content") or ()) if logprobs else None
            if entries:
                collected.entries += entries
            return Delta(content, reasoning, calls, ids or None, entries)
        if content or reasoning or calls:
            return Delta(content, reasoning, calls)
        return None


def _error_text(error: Any) -> str:
    if isinstance(error, dict):
        return str(error.get("message") or error)
    return str(error)


async def chat_batches(
    pieces: AsyncIterator[bytes], collected: Collected, *, passes_tokens: bool
) -> AsyncIterator[list[Delta]]:
    """Yield the deltas of each piece that arrives; return after `[DONE]`."""
    parser, events = EventParser(), ChatEvents(collected, passes_tokens=passes_tokens)
    take = events.take
    async for piece in pieces:
        if collected.raw is not None:
            collected.raw.append(piece)
        deltas = []
        for event in parser.feed(piece):
            delta = take(event.data)
            if delta is not None:
                deltas.append(delta)
        if deltas:
            yield deltas
        if collected.is_whole:
            return
    for event in parser.finish():
        delta = take(event.data)
        if delta is not None:
            yield [delta]
    if not collected.is_whole:
        raise EngineBroken("missing_done", "the stream ended without [DONE]")


def raise_error_of(answer: Any) -> None:
    """Raise EngineBroken where a whole answer of status 200 is an error object."""
    if isinstance(answer, dict) and "error" in answer and not answer.get("choices"):
        raise EngineBroken("server_error", _error_text(answer["error"]))


def plain_delta(body: bytes, collected: Collected, *, passes_tokens: bool) -> Delta | None:
    """Take a whole chat completion: fill `collected`, return it as one delta."""
    if collected.raw is not None:
        collected.raw.append(body)
    try:
        answer = loads(collected.take_prompt(body))
        raise_error_of(answer)
        choice = answer["choices"][0]
        message = choice["message"]
        ids = choice.get("token_ids")
        collected.take_ids(ids or [])
        logprobs = choice.get("logprobs")
        if logprobs:
            collected.take_logprobs(logprobs)
        if choice.get("finish_reason") is not None:
            collected.take_finish(choice["finish_reason"], choice.get("stop_reason"))
        if answer.get("usage"):
            collected.take_usage(answer["usage"])
        if answer.get("prompt_token_ids"):  # written in other spacing than vLLM's
            collected.take_prompt_ids(answer["prompt_token_ids"])
        return _whole_delta(message, ids, logprobs, collected, passes_tokens)
    except MALFORMED as error:
        raise EngineBroken("bad_event", f"the body is not a chat completion: {error!r}") from error


def _whole_delta(
    message: dict[str, Any],
    ids: list[int] | None,
    logprobs: dict[str, Any] | None,
    collected: Collected,
    passes_tokens: bool,
) -> Delta | None:
    delta = {
        "content": message.get("content"),
        "reasoning": message.get("reasoning") or message.get("reasoning_content"),
        "tool_calls": [
            {**call, "index": index} for index, call in enumerate(message.get("tool_calls") or ())
        ],
    }
    collected.is_whole = True
    if message.get("content") == "":
        collected.content.append("")
    return ChatEvents(collected, passes_tokens=passes_tokens)._delta(delta, ids, logprobs)
