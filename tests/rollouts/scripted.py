"""Whole rollouts in small: a real harness in real sandboxes, a real proxy, a scripted engine.

What is scripted is the model alone: it looks up the task in its prompt and calls for the commands
that it was given.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from budwood.proxy import ProxySettings
from budwood.proxy.engine import EngineSettings
from budwood.proxy.testing import Reply, ScriptedEngine
from budwood.rollouts.gateway import own_proxy
from budwood.rollouts.harnesses import Harness, harness_named
from budwood.rollouts.run import Finished, Plan, carry_out
from budwood.rollouts.tasks import Task, load_task
from budwood.sandbox import LocalSettings, backend_named
from budwood.trajectory_store import Store

TEST = """\
#!/bin/sh
if grep -qx {word} out.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


class Model:
    """Says `commands[task]` one by one, then that it is done."""

    def __init__(self, commands: Mapping[str, Sequence[str | Reply]]) -> None:
        self.commands = commands
        self.n_calls = 0

    def __call__(self, call: Any) -> Reply:
        task = next((name for name in self.commands if f"Task {name}:" in call.prompt), None)
        if task is None:
            return Reply(content="probe")
        self.n_calls += 1
        commands = self.commands[task]
        n_done = call.prompt.count("<tool_response>")
        if n_done >= len(commands):
            return Reply(content="It is done.")
        said = commands[n_done]
        return said if isinstance(said, Reply) else Reply(tool_calls=[("bash", {"command": said})])


def write(word: str) -> str:
    """Return the command that does the task of that name."""
    return f"echo {word} > out.txt"


def write_task(folder: Path, *, test: str = TEST, toml: str = "") -> Task:
    """Write a task that wants its name in out.txt."""
    for path, text in {
        "task.toml": f"[metadata.budwood]\nlocal = true\n{toml}",
        "instruction.md": f"Task {folder.name}: write {folder.name} into out.txt.\n",
        "environment/files/in.txt": "here\n",
        "tests/test.sh": test.replace("{word}", folder.name),
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return load_task(folder)


@dataclass
class Bench:
    """`await bench(tasks, ...)` is `carry_out` of a plan by react on a scripted model."""

    store: Store
    backend: Any
    engine: ScriptedEngine
    gateway: Any
    folder: Path

    async def __call__(
        self,
        tasks: Sequence[Task],
        *,
        retries: int = 2,
        concurrency: int = 1,
        on_tried: Any = None,
        harness: Harness | None = None,
        **plan: Any,
    ) -> Finished:
        harnesses = [harness or harness_named("react")]
        return await carry_out(
            Plan(name="test", tasks=tasks, harnesses=harnesses, **plan),
            self.store, self.backend, self.gateway, self.folder,
            retries=retries, concurrency=concurrency, on_tried=on_tried,
        )  # fmt: skip


@asynccontextmanager
async def running(folder: Path, model: Model, **engine: Any) -> AsyncIterator[Bench]:
    """Open a bench on a folder, with a store that stays there."""
    with Store.open(folder / "store.db") as store:
        async with (
            ScriptedEngine(model) as scripted,
            backend_named("local", LocalSettings(root=folder / "sandboxes")) as backend,
        ):
            urls = EngineSettings(urls=(scripted.url,), **engine)
            settings = ProxySettings.model_validate({"engine": urls})
            async with own_proxy(settings, store) as gateway:
                yield Bench(store, backend, scripted, gateway, folder / "runs")
