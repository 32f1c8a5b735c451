"""A reply said back to a chat client, as a stream or whole.

What every client may rely on, whatever the engine sent:

* reasoning under both names in use, `reasoning` and `reasoning_content`;
* every piece of a tool call has its index, the first also id, name and type;
* the finish reason fits what was said: `tool_calls` where calls end a reply, but `length` stays
  `length`, so that nobody runs half a call;
* a chunk with usage only where it was asked for, token ids and logprobs likewise (in vLLM's
  shapes: harnesses that ask for them were written for vLLM);
* text is valid Unicode: a surrogate pair that the engine split over two pieces is joined;
* the end (last chunk, usage, `[DONE]`) is one piece, to be sent only when the reply is recorded.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import orjson

from .delta import Delta, ToolDelta
from .errors import error_event
from .json_text import mended
from .request import ChatRequest

KEEP_ALIVE = b": k\n"
"""A comment without the empty line that would make some clients decode an empty event."""

DONE = b"data: [DONE]\n\n"

_ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


class Answer(Protocol):
    """A finished reply with its numbers, as a client may be told it."""

    @property
    def reply(self) -> Mapping[str, Any]:
        """The message: `{role, content, reasoning, tool_calls: [{id, name, arguments}]}`."""
        ...

    @property
    def finish(self) -> str | None:
        """The engine's finish reason."""
        ...

    @property
    def usage(self) -> Mapping[str, Any] | None:
        """The engine's usage."""
        ...

    @property
    def prompt_ids(self) -> Sequence[int] | None:
        """Ids of the prompt."""
        ...

    @property
    def out_ids(self) -> Sequence[int] | None:
        """Ids of the sampled tokens."""
        ...

    @property
    def logprobs(self) -> Sequence[float] | None:
        """One for each of `out_ids`."""
        ...

    @property
    def created(self) -> int:
        """Unix time."""
        ...


def new_tool_id(rng: random.Random) -> str:
    """Return nine alphanumerics: some harnesses drop other characters, Mistral cuts at nine."""
    return "".join(rng.choices(_ALPHABET, k=9))


def finish_reason(finish: str | None, *, has_calls: bool) -> str:
    """Return what a chat client is told of the engine's finish reason."""
    if finish in (None, "stop", "tool_calls", "function_call"):
        return "tool_calls" if has_calls else "stop"
    return finish


def usage_of(
    usage: Mapping[str, Any] | None,
    prompt_ids: Sequence[int] | None = None,
    out_ids: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Return usage that is always there: the engine's, or counts of the ids, or zeros."""
    if usage is not None:
        return dict(usage)
    n_prompt = len(prompt_ids) if prompt_ids is not None else 0
    n_out = len(out_ids) if out_ids is not None else 0
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_out,
        "total_tokens": n_prompt + n_out,
    }


class ChatStream:
    """Says one reply as a stream of chunks; one instance a client."""

    def __init__(self, request: ChatRequest, *, reply_id: str, created: int) -> None:
        """Answer `request` under `reply_id`, with the model's name as it was asked for."""
        self._shows_ids = request.return_token_ids
        self._shows_logprobs = request.wants_logprobs
        self._includes_usage = request.include_usage
        self._reply_id = reply_id
        head = _dumps(
            {
                "id": reply_id,
                "object": "chat.completion.chunk",
                "created": created,
                "model": request.model or "",
            }
        )
        self._envelope = b"data: " + head[:-1] + b',"choices":['
        self._head = self._envelope + b'{"index":0,"delta":'
        self._tail = b',"logprobs":null,"finish_reason":null}]}\n\n'
        self._halves: dict[str, str] = {}
        """By channel: a high surrogate whose other half may still come."""
        self._opened: set[int] = set()
        self._unnamed: dict[int, ToolDelta] = {}
        """Pieces of calls whose name has not come yet."""

    def role_chunk(self, prompt_ids: Sequence[int] | None = None) -> bytes:
        """Return the first chunk; it alone carries the prompt's ids, where they were asked for."""
        chunk = self._head + b'{"role":"assistant","content":""}' + self._tail
        if self._shows_ids and prompt_ids is not None:
            ids = orjson.dumps(list(prompt_ids))
            chunk = chunk[:-3] + b',"prompt_token_ids":' + ids + b',"prompt_text":null}\n\n'
        return chunk

    def delta(self, delta: Delta) -> bytes:
        """Return the chunk of a piece; empty where there is nothing that a client may see."""
        said = self._said(delta)
        ids = delta.token_ids if self._shows_ids else None
        logprobs = delta.logprobs if self._shows_logprobs else None
        if not ids and not logprobs:
            return self._head + _dumps(said) + self._tail if said else b""
        return self._head + _dumps(said) + self._numbers(ids, logprobs, b"null") + b"}]}\n\n"

    def idle_delta(self) -> bytes:
        """Return a chunk that says nothing, for clients whose watchdogs ignore comments."""
        return self._head + b'{"content":""}' + self._tail

    def whole(self, answer: Answer) -> bytes:
        """Return the chunks of a reply that is given at once, between first chunk and end."""
        reply = answer.reply
        calls = tuple(
            ToolDelta(index, call["id"], call["name"], call["arguments"])
            for index, call in enumerate(reply.get("tool_calls") or ())
        )
        pieces = [
            Delta(reasoning=reply.get("reasoning") or None),
            Delta(content=reply.get("content") or None),
            *(Delta(tool_calls=(call,)) for call in calls),
            Delta(
                token_ids=answer.out_ids,
                logprobs=_logprob_entries(answer) if self._shows_logprobs else None,
            ),
        ]
        return b"".join(self.delta(piece) for piece in pieces)

    def terminal(
        self,
        finish: str | None,
        usage: Mapping[str, Any] | None,
        reply: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Return the end of the stream, all in one: last chunk, usage if asked for, `[DONE]`.

        `reply` is the whole message where it is known: its calls decide on the finish reason.
        """
        said = self._left_over()
        has_calls = bool(self._opened or (reply is not None and reply.get("tool_calls")))
        finish = finish_reason(finish, has_calls=has_calls)
        parts = [self._head + _dumps(said) + self._tail] if said else []
        ending = b"{}" + self._numbers(None, None, _dumps(finish), is_last=True)
        parts.append(self._head + ending + b"}]}\n\n")
        if self._includes_usage:
            parts.append(self._envelope + b'],"usage":' + _dumps(usage_of(usage)) + b"}\n\n")
        parts.append(DONE)
        return b"".join(parts)

    def error_event(self, status: int, message: str, code: str | None = None) -> bytes:
        """Return the error that ends a stream in place of `terminal`."""
        return error_event(status, message, code)

    def _said(self, delta: Delta) -> dict[str, Any]:
        said: dict[str, Any] = {}
        if delta.reasoning:
            reasoning = self._text("reasoning", delta.reasoning)
            if reasoning:
                said["reasoning"] = said["reasoning_content"] = reasoning
        if delta.content:
            content = self._text("content", delta.content)
            if content:
                said["content"] = content
        if delta.tool_calls:
            calls = [piece for call in delta.tool_calls if (piece := self._tool_piece(call))]
            if calls:
                said["tool_calls"] = calls
        return said

    def _tool_piece(self, call: ToolDelta) -> dict[str, Any] | None:
        arguments = self._text(f"arguments {call.index}", call.arguments)
        if call.index in self._opened:
            if not arguments:
                return None
            return {"index": call.index, "function": {"arguments": arguments}}
        before = self._unnamed.pop(call.index, None)
        if before is not None:
            call = ToolDelta(call.index, before.id or call.id, call.name)
            arguments = before.arguments + arguments
        if not call.name:
            self._unnamed[call.index] = ToolDelta(call.index, call.id, None, arguments)
            return None
        return self._opening(call.index, call.id, call.name, arguments)

    def _opening(
        self, index: int, call_id: str | None, name: str, arguments: str
    ) -> dict[str, Any]:
        self._opened.add(index)
        return {
            "index": index,
            "id": call_id or new_tool_id(random.Random(f"{self._reply_id} {index}")),
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }

    def _text(self, channel: str, text: str) -> str:
        """Return the text as far as it is whole characters."""
        half = self._halves.pop(channel, "") if self._halves else ""
        if half:
            text = half + text
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._halves[channel] = text[-1]
            text = text[:-1]
        return mended(text)

    def _left_over(self) -> dict[str, Any]:
        """Return what was held back for a continuation that never came."""
        said: dict[str, Any] = {}
        halves, self._halves = self._halves, {}
        if "reasoning" in halves:
            said["reasoning"] = said["reasoning_content"] = "\ufffd"
        if "content" in halves:
            said["content"] = "\ufffd"
        calls = [
            self._opening(index, call.id, call.name or "", call.arguments)
            for index, call in sorted(self._unnamed.items())
        ]
        for channel in halves:
            kind, _, index = channel.partition(" ")
            if kind == "arguments":
                calls.append({"index": int(index), "function": {"arguments": "\ufffd"}})
        self._unnamed = {}
        if calls:
            said["tool_calls"] = calls
        return said

    def _numbers(
        self,
        ids: Sequence[int] | None,
        logprobs: Sequence[dict] | None,
        finish: bytes,
        *,
        is_last: bool = False,
    ) -> bytes:
        """Return what follows the delta in a choice, up to its closing bracket."""
        shown = _dumps({"content": list(logprobs)}) if logprobs else b"null"
        parts = [b',"logprobs":', shown, b',"finish_reason":', finish]
        if is_last:
            parts.append(b',"stop_reason":null')
        if self._shows_ids:
            parts += [b',"token_ids":', orjson.dumps(list(ids)) if ids else b"null"]
        return b"".join(parts)


def plain_body(request: ChatRequest, answer: Answer, *, reply_id: str) -> bytes:
    """Return the JSON body of a whole reply."""
    reply = answer.reply
    calls = reply.get("tool_calls") or ()
    reasoning = mended(reply.get("reasoning") or "") or None
    message: dict[str, Any] = {
        "role": "assistant",
        # Null only beside calls: an empty answer is an empty text.
        "content": mended(reply.get("content") or "") or (None if calls else ""),
        "refusal": None,
        "reasoning": reasoning,
        "reasoning_content": reasoning,
    }
    if calls:
        message["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": mended(call["name"]), "arguments": mended(call["arguments"])},
            }
            for call in calls
        ]
    choice: dict[str, Any] = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": finish_reason(answer.finish, has_calls=bool(calls)),
    }
    body: dict[str, Any] = {
        "id": reply_id,
        "object": "chat.completion",
        "created": answer.created,
        "model": request.model or "",
        "choices": [choice],
        "usage": usage_of(answer.usage, answer.prompt_ids, answer.out_ids),
    }
    if request.wants_logprobs and (entries := _logprob_entries(answer)):
        choice["logprobs"] = {"content": list(entries)}
    if request.return_token_ids:
        choice["stop_reason"] = None
        choice["token_ids"] = _list(answer.out_ids)
        body["prompt_token_ids"] = _list(answer.prompt_ids)
    return _dumps(body)


def shown_logprobs(entries: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return an engine's `logprobs.content` entries with tokens spelt as text.

    We ask engines to spell tokens as `token_id:N`; a token's `bytes` are its real ones all the
    same, so what the client would have got without that is known. (vLLM spells the bytes of
    `top_logprobs` that way too, so those can't be restored: they are asked for plainly.)
    """
    shown: list[dict[str, Any]] = []
    for entry in entries:
        raw = entry.get("bytes")
        if raw is not None and str(entry.get("token", "")).startswith("token_id:"):
            shown.append({**entry, "token": bytes(raw).decode("utf-8", "replace")})
        else:
            shown.append(dict(entry))
    return shown


def _logprob_entries(answer: Answer) -> Sequence[dict]:
    """Return one entry a token: the engine's where the answer still has them, else bare ones."""
    entries = getattr(answer, "logprob_entries", None)
    if entries is not None:
        return entries
    if answer.logprobs is None or answer.out_ids is None:
        return ()
    return [
        {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []}
        for token, logprob in zip(answer.out_ids, answer.logprobs, strict=False)
    ]


def _list(ids: Sequence[int] | None) -> list[int] | None:
    return None if ids is None else list(ids)


def _dumps(value: Any) -> bytes:
    return orjson.dumps(value)
