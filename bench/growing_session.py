"""A coding session that grows, the same every time: text from the standard library's sources.

A system prompt of 9 kB, 14 tools of 1 kB, tool outputs of log-normal size around 2.5 kB cut from
real Python sources, short replies with one tool call. Token ids come from a toy tokenizer (a number
for each word or run of other characters, long ones in pieces of four), which is not a real model's
but compresses like one's: about four characters a token, and a vocabulary of some ten thousand.
"""

from __future__ import annotations

import json
import math
import random
import re
import sysconfig
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PIECE = re.compile(r" ?[A-Za-z]{1,7}|\d{1,3}|\s+|[^\sA-Za-z\d]{1,2}")


@dataclass(frozen=True, slots=True)
class SessionTurn:
    """One call of the session: everything a recorder sees of it."""

    messages: tuple[bytes, ...]
    tools: bytes
    prompt_ids: array[int]
    common: int
    """Ids that are the prompt and output of the turn before."""
    out_ids: array[int]
    logprobs: array[float]
    reply: dict[str, Any]

    def request(self) -> bytes:
        """Return the whole request body."""
        return b'{"model":"m","messages":[%s],"tools":%s,"stream":true}' % (
            b",".join(self.messages),
            self.tools,
        )


class Session:
    """Makes turns; equal seeds make equal sessions."""

    def __init__(self, seed: int = 0) -> None:
        """Choose the sources by the seed."""
        self._random = random.Random(seed)
        folder = Path(sysconfig.get_paths()["stdlib"])
        names = sorted(folder.glob("*.py"))
        self._random.shuffle(names)
        self._source = "".join(name.read_text("utf-8", "replace") for name in names[:60])
        self._ids: dict[str, int] = {}

    def turns(self, n: int) -> Iterator[SessionTurn]:
        """Yield the session's turns."""
        system = _message("system", self._text(9000))
        tools = json.dumps([self._tool(i) for i in range(14)], separators=(",", ":")).encode()
        messages = [system, _message("user", self._text(600))]
        prompt = self._tokens(tools.decode() + system.decode() + messages[1].decode())
        common = 0
        for turn in range(n):
            reply = self._reply(turn)
            out = self._tokens(json.dumps(reply))
            logprobs = array("f", (self._logprob() for _ in out))
            yield SessionTurn(tuple(messages), tools, prompt, common, out, logprobs, reply)
            output = self._text(round(min(self._random.lognormvariate(math.log(2500), 0.5), 20000)))
            answer = {k: v for k, v in reply.items() if k != "reasoning"}
            messages += [json.dumps(answer, separators=(",", ":")).encode()]
            messages += [_message("tool", output, tool_call_id=f"call{turn:05d}")]
            full = prompt + out
            common = len(full)
            prompt = full + self._tokens(output)

    def _reply(self, turn: int) -> dict[str, Any]:
        arguments = json.dumps({"command": self._text(self._random.randint(60, 500))})
        call = {"id": f"call{turn:05d}", "name": "bash", "arguments": arguments}
        text = self._text(self._random.randint(150, 900))
        return {"role": "assistant", "content": text, "reasoning": None, "tool_calls": [call]}

    def _tool(self, i: int) -> dict[str, Any]:
        return {"type": "function", "function": {"name": f"tool_{i}", "about": self._text(900)}}

    def _text(self, n: int) -> str:
        start = self._random.randrange(len(self._source) - n)
        return self._source[start : start + n]

    def _tokens(self, text: str) -> array[int]:
        ids = self._ids
        return array(
            "I", (ids.setdefault(w, len(ids) * 7919 % 32003) for w in _PIECE.findall(text))
        )

    def _logprob(self) -> float:
        return -self._random.expovariate(3) if self._random.random() < 0.5 else -1e-4


def _message(role: str, content: str, **more: str) -> bytes:
    return json.dumps({"role": role, "content": content} | more, separators=(",", ":")).encode()
