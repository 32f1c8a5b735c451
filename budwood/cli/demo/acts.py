"""What the demo does with one harness and one task: record, export, replay, count."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from budwood.proxy.testing.chat_template import render

from .screen import DemoFailed, Place
from .tasks import Task

if TYPE_CHECKING:
    from budwood.trajectory_store import RolloutId, Store

START = "<|im_start|>assistant\n"
END = "<|im_end|>"


@dataclass(frozen=True)
class Part:
    """One harness at one task."""

    harness: str
    task: Task

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        """Name of its folder, label, log and table column."""
        return f"{self.harness}-{self.task.name}"

    @property
    def command(self) -> list[str]:
        """What a user would type to have the task done."""
        if self.harness == "mini-swe-agent":
            # A limit, for a tiny model that strays would go on for ever.
            limit = ["-c", "mini.yaml", "-c", "agent.step_limit=8"]
            return ["mini", "--yolo", "--exit-immediately", *limit, "-t", self.task.text]
        if self.harness == "pi":
            return ["pi", "--print", "--no-context-files", self.task.text]
        return [sys.executable, "-m", "budwood.cli.demo.loop", self.task.text]

    def lay_out(self, place: Place) -> Path:
        """Make the task's scratch folder as it is at the start; return it.

        Always the same path: it stands in pi's prompt.
        """
        folder = place.folder / "scratch" / self.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, text in self.task.files.items():
            (folder / name).write_text(text, encoding="utf-8", newline="\n")
        return folder

    def is_done(self, place: Place) -> bool:
        """Whether the scratch folder holds what the task asks for."""
        folder = place.folder / "scratch" / self.name
        return all(
            (folder / name).is_file() and (folder / name).read_text("utf-8") == text
            for name, text in self.task.wanted.items()
        )

    def record(self, place: Place, engine: str, **how: Any) -> None:
        """Record the harness at the task; `how` as `Place.budwood` takes it."""
        label = ("--label", f"demo={self.name}")
        words = ("record", "--engine", engine, *label, "--", *self.command)
        place.budwood(*words, cwd=self.lay_out(place), log=f"{self.name}.txt", **how)

    def attempts(self, store: Store) -> list[RolloutId]:
        """Return its rollouts, the latest last."""
        found = store.select(f"label.demo={self.name}")
        return sorted(found, key=lambda rollout_id: store.rollout(rollout_id).created_at)

    def rollout(self, store: Store) -> RolloutId:
        """Return its latest rollout."""
        return self.attempts(store)[-1]

    def went_as_taught(self, place: Place, store: Store) -> bool:
        """Whether the latest attempt did the task in as many calls as the teacher needs."""
        n_calls = len(store.calls(self.rollout(store)))
        return self.is_done(place) and n_calls == len(self.task.turns[self.harness])

    def replay(self, place: Place, rollout_id: RolloutId) -> str:
        """Serve the stored answers to the harness again; return the verdict in a word or two."""
        words = ("replay", rollout_id, "--", *self.command)
        folder, log = self.lay_out(place), f"{self.name}-replay.txt"
        out = place.budwood(*words, cwd=folder, allowed=(0, 1, 3), log=log)
        lines = out.strip().splitlines()
        verdict = next((line for line in lines if line.startswith("identical")), None)
        return "identical" if verdict else " ".join(lines[-3:])[:200]


def conversation(store: Store, rollout_id: RolloutId) -> dict[str, Any]:
    """Return a recorded conversation in the chat form: the last call's request and its reply."""
    calls = [call for call in store.calls(rollout_id) if call.state.is_complete]
    if not calls:
        raise DemoFailed(f"{rollout_id} has no complete call")
    body = json.loads(store.request_body(calls[-1].id))
    reply = calls[-1].reply
    assert reply is not None
    return {"messages": [*body["messages"], _as_message(reply)], "tools": body.get("tools")}


def _as_message(reply: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": call["arguments"]},
        }
        for call in reply["tool_calls"]
    ]
    message = {"role": "assistant", "content": reply["content"], "tool_calls": calls}
    return message | {"reasoning_content": reply["reasoning"]}


def n_repaired(store: Store, rollout_id: RolloutId, decode: Callable[[Sequence[int]], str]) -> int:
    """Return how many outputs are not what the template writes of their parsed form."""
    count = 0
    for call in store.calls(rollout_id):
        if not call.state.is_complete or not call.has_ids or call.reply is None:
            continue
        said = decode(store.tokens(call.id).out_ids).removesuffix(END)
        try:
            written = render([_as_message(call.reply)], add_generation_prompt=False)
        except ValueError:  # arguments that are not JSON: the parser let them through
            count += 1
            continue
        count += written.removeprefix(START).partition(END)[0] != said
    return count
