"""Tool conversations on real vLLM whose client edits its history as harnesses do; all checked.

    python -m tests.e2e.drift --conversations 200 --temperature 1.3 --engine URL --model DIR

Each conversation is a rollout of two agents that take turns, each with a history of its own. Before
each call the client edits what it sends back (`client_edits.py`) or leaves it as it is. The model
is tiny and hot, so that it often writes what the engine's parsers mend on the way out: what the
client sends back then renders to other ids than those that were sampled. `audit.py` says what must
hold of the record.

`--model` names the files that the engine serves (in float32); without `--engine` a tiny taught
model is made and served.
"""

import argparse
import asyncio
import logging
import sys
import tempfile
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import openai
import structlog

from budwood.proxy.testing.real_engine import tiny_engine
from budwood.proxy.testing.running import OpenedRollout, TestProxy, proxy_for_tests
from budwood.trajectory_store import CallId, RolloutId, Store

from .audit import Audit, audit
from .client_edits import EDITS, Edit, History, Message
from .sdk_client import Answer, ask
from .transformers_oracle import Oracle

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
OPENINGS = ("List files.", "Where am I, and who?")
"""What the two agents are asked first: never the same, so no call of one is one of the other.

Some send it in two parts, which the template writes one behind the other.
"""
SYSTEMS = ("You are a helpful agent.", "You are a helpful agent.", "You help the agent.")
RESULTS = ("a.txt", "hello", "/tmp", "root", "a.txt\nb.txt", "", "no such file: <x>", "naïve 漢字")
NEXT = ("Show it.", "Thanks. Count to three.", "Say it with accents.", "List files again.", "Hello")
N_CALLS = 5
MAX_TOKENS = 96
P_EDIT = 0.75
P_KEPT = 0.4
"""How often a cosmetic edit is written back into the client's own history."""


@dataclass(slots=True)
class Sent:
    """One call as the client knows it."""

    rollout: RolloutId
    agent: int
    call_id: CallId
    follows: CallId | None
    """The call whose reply is the last assistant message of the history, edited or not."""
    edit: Edit | None
    message: Message
    """The answer, as it is sent back."""


@dataclass(slots=True)
class Agent:
    """One conversation: a history, and what its user and its tools say."""

    number: int
    rng: Random
    history: History
    tools: list[Any]
    last: Answer | None = None

    def says(self) -> None:
        """Add what follows the last answer: results of its calls, or the user's next words."""
        if self.last is None:
            return
        self.history.append(self.last.message)
        for call in self.last.message.get("tool_calls") or ():
            result = self.rng.choice(RESULTS)
            self.history.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        if not self.last.message.get("tool_calls"):
            self.history.append({"role": "user", "content": self.rng.choice(NEXT)})

    def edited(self) -> tuple[History, Edit | None]:
        """What is sent, and the edit that made it; an edit of meaning stays in the history."""
        if self.last is None or self.rng.random() > P_EDIT:
            return self.history, None
        wanted = self.rng.random() < 0.35
        kinds = [edit for edit in EDITS if edit.is_meaning == wanted]
        for edit in self.rng.sample(kinds, len(kinds)):
            new = edit.make(self.history, self.rng)
            if new is not None:
                if edit.is_meaning or self.rng.random() < P_KEPT:
                    self.history = deepcopy(new)
                return new, edit
        return self.history, None


@dataclass(slots=True)
class Conversation:
    """A rollout with two agents that call in turn, or at the same time."""

    sdk: openai.AsyncOpenAI
    rollout: OpenedRollout
    rng: Random
    temperature: float
    sent: list[Sent] = field(default_factory=list)

    async def run(self) -> None:
        """All calls of both agents."""
        agents = [self._agent(number) for number in range(2)]
        left = [number for number in range(2) for _ in range(N_CALLS)]
        self.rng.shuffle(left)
        while left:
            together = len(left) > 1 and left[0] != left[1] and self.rng.random() < 0.4
            n = 2 if together else 1
            async with asyncio.TaskGroup() as group:
                for number in left[:n]:
                    group.create_task(self._call(agents[number]))
            del left[:n]

    def _agent(self, number: int) -> Agent:
        rng = Random(self.rng.random())
        system = rng.choice(SYSTEMS) if number else SYSTEMS[0]
        asked: Any = OPENINGS[number]
        if rng.random() < 0.25:
            head, space, rest = asked.partition(" ")
            asked = [{"type": "text", "text": text} for text in (head + space, rest)]
        history = [{"role": "system", "content": system}, {"role": "user", "content": asked}]
        return Agent(number, rng, history, deepcopy(TOOLS))

    async def _call(self, agent: Agent) -> None:
        agent.says()
        messages, edit = agent.edited()
        answer = await ask(
            self.sdk,
            messages,
            stream=agent.rng.random() < 0.7,
            tools=agent.tools,
            temperature=self.temperature,
            max_tokens=MAX_TOKENS,
        )
        follows = agent.last.call_id if agent.last else None
        agent.last = answer
        self.sent.append(
            Sent(self.rollout.id, agent.number, answer.call_id, follows, edit, answer.message)
        )


async def converse(
    proxy: TestProxy, n: int, *, temperature: float, seed: int, at_once: int = 8
) -> list[Sent]:
    """Hold `n` conversations, some at the same time; returns their calls when all are recorded."""
    free = asyncio.Semaphore(at_once)
    sent: list[Sent] = []

    async def one(number: int) -> None:
        async with free:
            rollout = await proxy.open_rollout(run="drift", harness="sdk")
            async with openai.AsyncOpenAI(
                base_url=rollout.base_url, api_key="-", max_retries=0
            ) as sdk:
                rng = Random(f"{seed} {number}")
                conversation = Conversation(sdk, rollout, rng, temperature)
                await conversation.run()
                sent.extend(conversation.sent)

    async with asyncio.TaskGroup() as group:
        for number in range(n):
            group.create_task(one(number))
    await proxy.settled()
    return sent


async def drift(
    engine_url: str, model: Path, folder: Path, *, n: int, temperature: float, seed: int
) -> Audit:
    """Hold the conversations through a proxy of its own and check the record."""
    with Store.open(folder / "store.db") as store:
        async with proxy_for_tests(engine_url, store, seed=seed) as proxy:
            sent = await converse(proxy, n, temperature=temperature, seed=seed)
        return await asyncio.to_thread(
            audit, store, sent, Oracle(model), temperature, folder / "rows.jsonl"
        )


def main() -> int:
    """Run as the arguments say; 0 if everything held."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--conversations", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=1.3)
    parser.add_argument("--engine", help="URL of a running engine; default: one is started")
    parser.add_argument("--model", type=Path, help="the files that it serves")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if bool(given.engine) != bool(given.model):
        parser.error("--engine and --model belong together")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with ExitStack() as stack:
        url, model = given.engine, given.model
        if url is None:
            engine = stack.enter_context(tiny_engine(Path(".cache")))
            url, model = engine.url, engine.folder
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found = asyncio.run(
            drift(
                url.removesuffix("/v1"), model, folder, n=given.conversations,
                temperature=given.temperature, seed=given.seed,
            )
        )  # fmt: skip
    print(found.report())
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main())
