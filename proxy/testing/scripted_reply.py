"""What the scripted engine says: a reply, its tokens, and what vLLM's parsers would make of each.

A reply is written down as a test wants it (`Reply`), spelled as the test models spell it, cut into
ids by the toy tokenizer, and parsed again token by token as vLLM's `qwen3` reasoning parser and
`hermes` tool parser do, with their habits: the newlines around a thought come back, markup gives
empty deltas, a call's name arrives before its arguments.
"""

import codecs
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .toy_tokenizer import ToyTokenizer


@dataclass(frozen=True, slots=True)
class Reply:
    """One scripted answer; `raw` (text with markup) replaces content, reasoning and tool calls."""

    content: str = ""
    reasoning: str = ""
    tool_calls: Sequence[tuple[str, str | dict[str, Any]]] = ()
    """Name and arguments; a string is written as it stands, JSON or not."""
    raw: str | None = None
    finish: str = "stop"
    """`length` leaves out the end token."""
    fault: str = ""
    """One of the faults of `scripted_engine`."""
    delay_ms: float = 0.0
    """Between events."""
    first_ms: float = 0.0
    """Before the first byte."""
    tokens_per_event: int = 1

    def text(self) -> str:
        """Return what the model writes, without its end token."""
        if self.raw is not None:
            return self.raw
        thought = f"<think>\n{self.reasoning}\n</think>\n\n" if self.reasoning else ""
        calls = []
        for name, arguments in self.tool_calls:
            if not isinstance(arguments, str):
                arguments = json.dumps(arguments, ensure_ascii=False)
            calls.append(
                f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
            )
        said = [self.content] if self.content else []
        return thought + "\n".join([*said, *calls])


@dataclass(slots=True)
class Sampled:
    """A reply as tokens; ids, logprobs, pieces and deltas are parallel (one entry a token)."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    deltas: list[dict[str, Any]] = field(default_factory=list)
    """What a streaming client sees of each token; mostly one key, often none."""
    finish: str = "stop"
    stop_reason: str | None = None
    n_reasoning: int = 0

    def message(self) -> dict[str, Any]:
        """Return the deltas joined: the message of a plain answer."""
        content, reasoning, calls = "", "", []
        for delta in self.deltas:
            content += delta.get("content") or ""
            reasoning += delta.get("reasoning") or ""
            for part in delta.get("tool_calls", ()):
                if "id" in part:
                    function = {"name": part["function"]["name"], "arguments": ""}
                    calls.append({"id": part["id"], "type": "function", "function": function})
                else:
                    calls[-1]["function"]["arguments"] += part["function"]["arguments"]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content or None,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
        }
        if calls:
            message["tool_calls"] = calls
        message["reasoning"] = reasoning or None
        return message


def noise(seed: int, index: int) -> int:
    """Return 32 bits that depend on both numbers only: the same on every machine."""
    value = (seed * 0x9E3779B1 + index * 0x85EBCA6B + 0x27D4EB2F) & 0xFFFFFFFF
    value ^= value >> 15
    value = (value * 0x2C1B3C6D) & 0xFFFFFFFF
    return value ^ (value >> 12)


def logprob_at(seed: int, index: int) -> float:
    """Return the made-up logprob of token `index` of reply `seed`, in (-8, 0].

    A float32, like each that vLLM sends: what is stored as float32 is told again digit for digit.
    """
    return -((noise(seed, index) >> 8) % 65536) / 8192


def sample(
    reply: Reply,
    tokenizer: ToyTokenizer,
    *,
    seed: int,
    max_tokens: int | None = None,
    stop: Sequence[str] = (),
    tools: bool = True,
) -> Sampled:
    """Cut a reply into tokens, up to `max_tokens` or the first stop string."""
    ids = tokenizer.sampled(reply.text(), seed)
    if reply.finish != "length":
        ids.append(tokenizer.end_id)
    out = Sampled(finish=reply.finish)
    parser = _ReplyParser(seed, with_tools=tools)
    for index, number in enumerate(ids):
        if max_tokens is not None and index >= max_tokens:
            out.finish = "length"
            break
        piece = tokenizer.piece(number)
        is_end = number == tokenizer.end_id and index == len(ids) - 1
        delta = parser.end() if is_end else parser.feed(piece)
        out.ids.append(number)
        out.logprobs.append(logprob_at(seed, index))
        out.pieces.append(piece)
        out.deltas.append(delta)
        if stop and (hit := _stop_hit(out, stop)):
            out.finish, out.stop_reason = "stop", hit
            break
    out.n_reasoning = parser.n_reasoning
    if out.finish == "stop" and parser.n_calls:
        out.finish = "tool_calls"
    return out


def _stop_hit(out: Sampled, stop: Sequence[str]) -> str | None:
    """Cut the visible text at the first stop string; the ids stay, as vLLM leaves them."""
    text = "".join(delta.get("content") or "" for delta in out.deltas)
    for word in stop:
        if (at := text.find(word)) >= 0:
            excess = len(text) - at
            for delta in reversed(out.deltas):
                said = delta.get("content") or ""
                cut = min(excess, len(said))
                if cut:
                    delta["content"] = said[: len(said) - cut]
                    excess -= cut
            return word
    return None


class _ReplyParser:
    """Feeds on the bytes of one token at a time and says what a client sees of it."""

    def __init__(self, seed: int, *, with_tools: bool) -> None:
        self.n_reasoning = 0
        self.n_calls = 0
        self._seed = seed
        self._with_tools = with_tools
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._state: Callable[[str], dict[str, Any]] = self._content
        self._held = ""
        self._name_sent = False
        self._arguments_begun = False
        self._said_anything = False

    def feed(self, piece: bytes) -> dict[str, Any]:
        if piece == b"<think>":
            self._state = self._reasoning
            self.n_reasoning += 1
            return {}
        if piece == b"</think>":
            self._state = self._content
            return {}
        if self._with_tools and piece == b"<tool_call>":
            self._state, self._held = self._call, ""
            self._name_sent = self._arguments_begun = False
            return {}
        if self._with_tools and piece == b"</tool_call>":
            self._state = self._content
            return self._rest_of_arguments()
        if self._state == self._reasoning:
            self.n_reasoning += 1
        text = self._decoder.decode(piece)
        return self._state(text) if text else {}

    def end(self) -> dict[str, Any]:
        return {}

    def _content(self, text: str) -> dict[str, Any]:
        if not self._said_anything:
            self._held += text
            if not self._held.strip():
                return {}
            text, self._held, self._said_anything = self._held, "", True
        elif self.n_calls and not text.strip():
            return {}
        return {"content": text}

    def _reasoning(self, text: str) -> dict[str, Any]:
        return {"reasoning": text}

    def _call(self, text: str) -> dict[str, Any]:
        self._held += text
        if not self._name_sent:
            found = re.match(r'\s*\{\s*"name":\s*"([^"]*)"', self._held)
            if not found:
                return {}
            self._name_sent = True
            self._held = self._held[found.end() :]
            call_id = (
                f"chatcmpl-tool-{noise(self._seed, 7919 + self.n_calls):08x}{self.n_calls:08x}"
            )
            self.n_calls += 1
            head = {
                "id": call_id,
                "type": "function",
                "index": self.n_calls - 1,
                "function": {"name": found[1]},
            }
            return {"content": None, "tool_calls": [head]}
        found = re.match(r'\s*,\s*"arguments":\s*', self._held)
        if found:
            # Kept as a mark: from here on everything but a closing tail is arguments.
            self._held = "\0" + self._held[found.end() :]
        if not self._held.startswith("\0"):
            return {}
        body = self._held[1:]
        if not self._arguments_begun:
            body = body.lstrip()
        ready = body.rstrip("} \n")
        self._arguments_begun = self._arguments_begun or bool(ready)
        self._held = "\0" + body[len(ready) :]
        return self._arguments(ready)

    def _rest_of_arguments(self) -> dict[str, Any]:
        body = self._held.removeprefix("\0").rstrip()
        self._held = ""
        return self._arguments(body[:-1] if body.endswith("}") else body)

    def _arguments(self, text: str) -> dict[str, Any]:
        if not text or not self.n_calls:
            return {}
        part = {"index": self.n_calls - 1, "function": {"arguments": text}}
        return {"content": None, "tool_calls": [part]}
