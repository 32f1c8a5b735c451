"""What is asked and what must come back: the marker in the request, the answer checked by token.

The engine behind everything is `budwood.proxy.testing.scripted_engine`: its answer is a pure
function of the marker in the request, so any client can tell a right answer from a wrong one.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from budwood.proxy.testing import Marker, expected

_WORDS = (
    "alpha", "return", "self", "import", "def", "error:", "line", "0x3f", "été", "path/to/file.py",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One kind of call."""

    stream: bool = False
    chunks: int = 32
    """Events of the answer that carry tokens."""
    tokens_per_event: int = 1
    delay_ms: float = 0.0
    first_ms: float = 0.0
    fault: str = ""
    body_bytes: int = 0
    """Extra prompt text."""
    model: str = "scripted"
    headers: tuple[str, ...] = ()
    """Whole lines, `Name: value`."""
    asks_ids: bool = True
    """Ask for token ids and logprobs, and demand them back."""
    strict_events: bool = False
    """Demand one content event for each of the engine's."""

    def marker(self, seed: int) -> str:
        """Return the text that makes the engine give answer `seed`."""
        return str(
            Marker(
                seed=seed,
                chunks=self.chunks,
                tpc=self.tokens_per_event,
                delay=self.delay_ms,
                first=self.first_ms,
                fault=self.fault,
            )
        )


@lru_cache(maxsize=64)
def filler(n_bytes: int, seed: int) -> str:
    """Return about `n_bytes` of text, the same for the same numbers."""
    chance = random.Random(seed)
    words: list[str] = []
    size = 0
    while size < n_bytes:
        word = chance.choice(_WORDS)
        words.append(word)
        size += len(word.encode()) + 1
    return " ".join(words)


def messages_for(ask: Ask, seed: int) -> list[dict[str, Any]]:
    """Return a short conversation that ends in the marker."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are a test."}]
    if ask.body_bytes:
        messages.append({"role": "user", "content": filler(ask.body_bytes, seed)})
    messages.append({"role": "user", "content": f"Go. {ask.marker(seed)}"})
    return messages


def chat_body(ask: Ask, messages: list[dict[str, Any]], **fields: Any) -> bytes:
    """Return the JSON of a chat request."""
    body: dict[str, Any] = {
        "model": ask.model,
        "messages": messages,
        "stream": ask.stream,
    }
    body["max_tokens"] = ask.chunks * ask.tokens_per_event
    if ask.asks_ids:
        body |= {"logprobs": True, "return_token_ids": True}
    if ask.stream:
        body["stream_options"] = {"include_usage": True}
    return json.dumps(body | fields, ensure_ascii=False, separators=(",", ":")).encode()


def http_request(base: str, key: str, body: bytes, headers: tuple[str, ...] = ()) -> bytes:
    """Return the bytes of a POST to the chat route of `base`."""
    parts = urlsplit(base)
    lines = [
        f"POST {parts.path.rstrip('/')}/chat/completions HTTP/1.1",
        f"Host: {parts.netloc}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        f"Authorization: Bearer {key}",
        "Accept: */*",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def events(body: bytes) -> Iterator[bytes]:
    """Yield the data of each event of a stream."""
    for block in body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n\n"):
        data = [line[5:].lstrip(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
        if data:
            yield b"\n".join(data)


@dataclass(slots=True)
class Answer:
    """An answer as its client saw it, plain or streamed."""

    text: str = ""
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    prompt_ids: list[int] | None = None
    usage: dict[str, Any] | None = None
    finish: str | None = None
    n_content_events: int = 0
    problems: list[str] = field(default_factory=list[str])


def read_answer(body: bytes, *, stream: bool) -> Answer:
    """Return what an answer says; what is wrong with its form is in `problems`."""
    answer = Answer()
    if not stream:
        try:
            value = json.loads(body)
        except ValueError:
            answer.problems = ["body is not JSON"]
            return answer
        _take(answer, value, "message")
        return answer
    is_done = False
    for data in events(body):
        if data.strip() == b"[DONE]":
            is_done = True
            continue
        if is_done:
            answer.problems.append("event after [DONE]")
        try:
            value = json.loads(data)
        except ValueError:
            answer.problems.append("event is not JSON")
            continue
        _take(answer, value, "delta")
    if not is_done:
        answer.problems.append("no [DONE]")
    return answer


def _take(answer: Answer, value: dict[str, Any], name: str) -> None:
    if "error" in value:
        answer.problems.append("error")
    answer.usage = value.get("usage") or answer.usage
    answer.prompt_ids = value.get("prompt_token_ids") or answer.prompt_ids
    for choice in value.get("choices") or ():
        said = (choice.get(name) or {}).get("content")
        if said:
            answer.n_content_events += 1
            answer.text += said
        answer.ids += choice.get("token_ids") or ()
        entries = (choice.get("logprobs") or {}).get("content") or ()
        answer.logprobs += [entry["logprob"] for entry in entries]
        answer.finish = choice.get("finish_reason") or answer.finish


def differences(ask: Ask, seed: int, status: int, body: bytes) -> list[str]:
    """Return what an answer lacks of the one that the engine gave; empty where all is right."""
    if status != 200:
        return [f"status {status}"]
    want = expected(seed, ask.chunks, ask.tokens_per_event)
    answer = read_answer(body, stream=ask.stream)
    out = list(answer.problems)
    if answer.text != want["text"]:
        out.append("text differs")
    if answer.finish != "stop":
        out.append(f"finish_reason {answer.finish}")
    if (answer.usage or {}).get("completion_tokens") != ask.chunks * ask.tokens_per_event:
        out.append("usage differs")
    if ask.asks_ids:
        if answer.ids != want["token_ids"] or not answer.prompt_ids:
            out.append("token ids differ")
        if answer.logprobs != want["logprobs"]:
            out.append("logprobs differ")
    if ask.stream and ask.strict_events and answer.n_content_events != ask.chunks - 1:
        out.append(f"{answer.n_content_events} content events for {ask.chunks - 1}")
    return out
