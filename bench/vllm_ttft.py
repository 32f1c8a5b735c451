"""Time to first token on real vLLM, prefix cache on: through Budwood against a direct call.

    python -m bench.vllm_ttft [--depths 8000 30000 60000] [--pairs 15]

A tiny model that always calls a tool (`one_call_model`) is served by vLLM's CPU build. Two tool
conversations grow side by side, alike but for one word of their system text so that neither finds
the other's prompt in the prefix cache: one goes through `budwood proxy`, the other straight to the
engine with the same messages. At each depth the two take turns, and the ratio of their times to the
first event that says something is printed (goal: at most 1.0, since the engine no longer renders
and tokenises the history), with the CPU that a turn costs the engine's front end and the proxy.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from budwood.proxy.engine.launch import Launch, engine_running
from budwood.trajectory_store import Store

from .accounting import own_cpu_s
from .answers import events, http_request
from .connection import Connection, connect
from .goals import Goal, heading
from .servers import open_rollout, running_proxy, scratch_folder

FIRST = Goal("P14", "first token through Budwood against direct", 1.0, "x")
DEEP = Goal("P12", "CPU of a turn at the last depth against the first", 4.0, "x")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run a shell command.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}},
                "required": ["command"],
            },
        },
    }
]
CHARACTERS_A_TOKEN = 3.0
"""A first guess; each conversation learns its own from what the engine counts."""
STEP_TOKENS = 200
"""Of a tool's output in a measured turn."""
LEAP_TOKENS = 4_000
"""Of one that only brings the conversation deeper."""


def tool_output(n_characters: int, seed: int) -> str:
    """Return lines as a listing has them."""
    lines: list[str] = []
    size, number = 0, seed * 7919
    while size < n_characters:
        number += 1
        lines.append(f"file {number % 97} size {number % 89} ok")
        size += len(lines[-1]) + 1
    return "\n".join(lines)


def opening(word: str) -> list[dict[str, Any]]:
    """Return the start of a conversation."""
    return [
        {"role": "system", "content": f"You are agent {word}."},
        {"role": "user", "content": "List the files again and again."},
    ]


@dataclass(slots=True)
class Side:
    """One of the two conversations."""

    base: str
    key: str
    messages: list[dict[str, Any]]
    connection: Connection
    n_prompt: int = 0
    characters: int = 0
    n_broken: int = 0
    """Answers that were no tool call: the model is tiny."""

    async def turn(self, n_tokens: int, seed: int) -> float:
        """Answer the last tool call with about `n_tokens`, ask; return milliseconds."""
        if self.messages[-1]["role"] == "assistant":
            rate = self.characters / self.n_prompt if self.n_prompt else CHARACTERS_A_TOKEN
            text = tool_output(int(n_tokens * min(rate, 6.0)), seed)
            for call in self.messages[-1].get("tool_calls") or ():
                self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
            if self.messages[-1]["role"] == "assistant":
                self.messages.append({"role": "user", "content": text})
        body = json.dumps(
            {
                "model": "tiny",
                "messages": self.messages,
                "tools": TOOLS,
                "stream": True,
                "stream_options": {"include_usage": True},
                "temperature": 0,
                "max_tokens": 64,
            }
        ).encode()
        self.characters = len(body)
        if self.connection.is_closed:  # vLLM closes what was idle for five seconds
            self.connection = await connect(self.base)
        await self.connection.send(http_request(self.base, self.key, body))
        if self.connection.status != 200:
            said = bytes(self.connection.body[:500])
            raise RuntimeError(f"status {self.connection.status}: {said!r}")
        self.messages.append(self._reply(bytes(self.connection.body)))
        return self.connection.first_ms

    def _reply(self, body: bytes) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        calls: dict[int, dict[str, Any]] = {}
        for data in events(body):
            if data == b"[DONE]":
                continue
            value = json.loads(data)
            if "error" in value:
                raise RuntimeError(str(value["error"]))
            self.n_prompt = (value.get("usage") or {}).get("prompt_tokens", self.n_prompt)
            for choice in value.get("choices") or ():
                message["content"] += choice["delta"].get("content") or ""
                for part in choice["delta"].get("tool_calls") or ():
                    _add(calls, part)
        if calls:
            message["tool_calls"] = list(calls.values())
        self.n_broken += not calls
        return message


def _add(calls: dict[int, dict[str, Any]], part: dict[str, Any]) -> None:
    empty = {"id": part.get("id"), "type": "function", "function": {"name": "", "arguments": ""}}
    function = calls.setdefault(part["index"], empty)["function"]
    for name in ("name", "arguments"):
        function[name] += (part.get("function") or {}).get(name) or ""


@dataclass(slots=True)
class Depth:
    """What was measured at one depth."""

    n_prompt: int
    ratios: list[float] = field(default_factory=list[float])
    direct_ms: list[float] = field(default_factory=list[float])
    budwood_ms: list[float] = field(default_factory=list[float])
    direct_cpu_ms: list[float] = field(default_factory=list[float])
    front_cpu_ms: list[float] = field(default_factory=list[float])
    proxy_cpu_ms: list[float] = field(default_factory=list[float])

    @property
    def budwood_cpu_ms(self) -> float:
        """CPU of a turn through Budwood: front end and proxy together."""
        both = zip(self.front_cpu_ms, self.proxy_cpu_ms, strict=True)
        return statistics.median(front + proxy for front, proxy in both)

    def line(self) -> str:
        """Return the goal's line at this depth."""
        low, high = min(self.ratios), max(self.ratios)
        detail = (
            f"at {self.n_prompt:,} prompt tokens [{low:.2f}-{high:.2f}], direct"
            f" {statistics.median(self.direct_ms):.1f} ms, Budwood"
            f" {statistics.median(self.budwood_ms):.1f} ms; CPU of front end"
            f" {statistics.median(self.direct_cpu_ms):.1f} ms, through Budwood"
            f" {statistics.median(self.front_cpu_ms):.1f} +"
            f" {statistics.median(self.proxy_cpu_ms):.1f} of the proxy"
        )
        return FIRST.line(statistics.median(self.ratios), detail)


async def measure(
    direct: Side, budwood: Side, n_tokens: int, *, pairs: int, pids: tuple[int, int]
) -> Depth:
    """Bring both conversations to `n_tokens`, then take turns."""
    seed = n_tokens
    while max(direct.n_prompt, budwood.n_prompt) < n_tokens - pairs * STEP_TOKENS:
        missing = n_tokens - pairs * STEP_TOKENS - direct.n_prompt
        for side in (direct, budwood):
            await side.turn(min(LEAP_TOKENS, max(STEP_TOKENS, missing)), seed)
        seed += 1
    for side in (direct, budwood):  # the first of this kind of turn is not timed
        await side.turn(STEP_TOKENS, seed)
    depth = Depth(0)
    for number in range(pairs):
        took: dict[str, float] = {}
        order = [("direct", direct), ("budwood", budwood)]
        for name, side in order if number % 2 else reversed(order):
            before = [own_cpu_s(pid) for pid in pids]
            took[name] = await side.turn(STEP_TOKENS, seed + number + 1)
            spent = [own_cpu_s(pid) - was for pid, was in zip(pids, before, strict=True)]
            if name == "direct":
                depth.direct_cpu_ms.append(spent[0] * 1e3)
            else:
                depth.front_cpu_ms.append(spent[0] * 1e3)
                depth.proxy_cpu_ms.append(spent[1] * 1e3)
        depth.direct_ms.append(took["direct"])
        depth.budwood_ms.append(took["budwood"])
        depth.ratios.append(took["budwood"] / took["direct"])
    depth.n_prompt = budwood.n_prompt
    return depth


async def compare(
    engine_url: str, proxy_url: str, key: str, options: argparse.Namespace, pids: tuple[int, int]
) -> None:
    """Measure at each depth and print."""
    direct = Side(f"{engine_url}/v1", "-", opening("one"), await connect(engine_url))
    budwood = Side(f"{proxy_url}/v1", key, opening("two"), await connect(proxy_url))
    found: list[Depth] = []
    for n_tokens in options.depths:
        found.append(await measure(direct, budwood, n_tokens, pairs=options.pairs, pids=pids))
        print(found[-1].line(), flush=True)
    costs = [depth.budwood_cpu_ms for depth in found]
    print(DEEP.line(costs[-1] / costs[0], "front end and proxy together"))
    print(f"answers that were no tool call: direct {direct.n_broken}, Budwood {budwood.n_broken}")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; nothing fails on a clock."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--depths", type=int, nargs="+", default=[8_000, 30_000, 60_000])
    parser.add_argument("--pairs", type=int, default=15)
    options = parser.parse_args(argv)
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder())
        launch = Launch(
            model=str(_model(folder, max(options.depths) + 8_000)),
            cpu=True,
            port=0,
            served_name="tiny",
            dtype="float32",
            reasoning_parser="none",  # the model's sentence is text
            max_model_len=max(options.depths) + 8_000,
            environment={"OMP_NUM_THREADS": "1"},
        )
        engine = stack.enter_context(engine_running(launch, say=print, ready_s=900))
        proxy = stack.enter_context(running_proxy(folder, engine.url, str(folder / "store.db")))
        _, key = open_rollout(proxy, "first-token")
        print(heading("First token on real vLLM, prefix cache on"), flush=True)
        pids = (engine.pid, proxy.pid)
        asyncio.run(compare(engine.url, proxy.url, key, options, pids))
        print(_how_prompted(folder))
    return 0


def _model(folder: Path, room: int) -> Path:
    """Make the model in a process of its own: torch stays out of this one."""
    (folder / "text").write_text(tool_output(4000, 1))
    command = [sys.executable, "-m", "bench.one_call_model", str(folder / "model")]
    command += ["--max-position", str(room), "--text", str(folder / "text")]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "model"


def _how_prompted(folder: Path) -> str:
    with Store.open(folder / "store.db", read_only=True) as store:
        calls = [call for rollout in store.rollouts() for call in store.calls(rollout.id)]
    modes = Counter(str(call.prompt_mode) for call in calls)
    reasons = Counter(reason for call in calls for reason in call.reasons)
    renders = sorted(call.timings["render"] for call in calls if "render" in call.timings)
    return (
        f"Budwood's prompts: {dict(modes)}, reasons {dict(reasons)}; until one was ready"
        f" {statistics.median(renders):.1f} ms, most of it the engine's render of the tail"
    )


if __name__ == "__main__":
    sys.exit(main())
