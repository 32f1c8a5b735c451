"""Tasks, harnesses, and a tiny model that knows by heart what to say at each by each.

The teacher drives every harness once, so that the model learns the harnesses' true prompts. Where
the teacher spells oddly, the model learns to go on from both histories: as it spelled them itself
(which the proxy puts back in) and as the harness echoes them (which an engine sees without it).
"""

import argparse
import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from budwood.cli.demo.acts import END, START, conversation
from budwood.proxy import ProxySettings
from budwood.proxy.engine import EngineSettings
from budwood.proxy.testing import ScriptedEngine
from budwood.proxy.testing.chat_template import render
from budwood.proxy.testing.real_engine import TinyEngine, tiny_engine
from budwood.proxy.testing.tiny_model import Conversation, TinyModel
from budwood.rollouts.gateway import own_proxy
from budwood.rollouts.harnesses import harness_named
from budwood.rollouts.run import Plan, carry_out
from budwood.rollouts.tasks import Task, load_tasks
from budwood.sandbox import backend_named
from budwood.trajectory_store import Store

from .teacher import MAX_MODEL_LEN, NAME, Teacher, odd_spelling

CHECKOUT = Path(__file__).parents[2]
TASKS = tuple(
    CHECKOUT / "examples" / "tasks" / name
    for name in ("count-lines", "sort-unique", "find-word", "sum-column")
)
HARNESSES = ("react", "pi", "mini-swe-agent")
STEPS_EACH = 70
"""Of teaching; as many again where they do not suffice."""
GREEDY = ("--override-generation-config", '{"temperature": 0}')
"""What the engine does with a request that names no temperature, as harnesses send it."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a check runs; the same tasks in the same order every time."""

    tasks: Sequence[Task]
    harnesses: Sequence[str]
    attempts: int

    @property
    def n_rollouts(self) -> int:
        """Attempts in all."""
        return len(self.tasks) * len(self.harnesses) * self.attempts

    @property
    def words(self) -> list[str]:
        """The options of `budwood run` that say the same."""
        tasks = [word for task in self.tasks for word in ("--task", str(task.folder))]
        harnesses = [word for name in self.harnesses for word in ("--harness", name)]
        return [*tasks, *harnesses, "--attempts", str(self.attempts)]


def add_options(parser: argparse.ArgumentParser, *, tasks: Sequence[Path], attempts: int) -> None:
    """Add the options that `chosen` reads."""
    parser.add_argument("--task", type=Path, action="append", help="a task or a template's folder")
    parser.add_argument("--variants", type=int, default=1, help="of each template")
    parser.add_argument("--harness", action="append", help="may be repeated")
    parser.add_argument("--attempts", type=int, default=attempts)
    parser.add_argument("--concurrency", type=int, default=2)
    parser.set_defaults(default_tasks=tasks)


def chosen(given: argparse.Namespace, folder: Path) -> Chosen:
    """Return what the options name, tasks laid out below `folder`."""
    tasks = laid_out(given.task or given.default_tasks, folder, given.variants)
    return Chosen(tasks, given.harness or HARNESSES, given.attempts)


def laid_out(folders: Sequence[Path], folder: Path, variants: int = 1) -> list[Task]:
    """Return the tasks of folders, `variants` of each template, written below `folder`."""
    return [
        task
        for number, source in enumerate(folders)
        for task in load_tasks(source, folder / str(number))[:variants]
    ]


@contextmanager
def taught_engine(chosen: Chosen, *, say: Say = print, port: int = 0) -> Iterator[TinyEngine]:
    """Serve, at temperature 0, a model that knows what to say at every task by every harness."""
    rows = asyncio.run(_lessons(chosen, say))
    steps = STEPS_EACH * len(rows)
    what = TinyModel(vocab=2048, max_position=MAX_MODEL_LEN, steps=steps)
    cache = CHECKOUT / ".cache"
    with tiny_engine(cache, rows, what, say=say, port=port, extra=GREEDY) as engine:
        yield engine


async def _lessons(chosen: Chosen, say: Say) -> list[Conversation]:
    say(f"a scripted teacher does {len(chosen.tasks)} tasks by {', '.join(chosen.harnesses)}")
    plan = Plan(
        name="lessons", tasks=chosen.tasks, harnesses=[harness_named(n) for n in chosen.harnesses]
    )
    with tempfile.TemporaryDirectory() as work, Store.open(Path(work) / "store.db") as store:
        teacher = Teacher(chosen.tasks, spells_oddly=False)
        async with (
            ScriptedEngine(teacher, model=NAME, max_model_len=MAX_MODEL_LEN) as engine,
            backend_named("local") as backend,
            own_proxy(
                ProxySettings.model_validate({"engine": EngineSettings(urls=(engine.url,))}), store
            ) as gateway,
        ):
            done = await carry_out(plan, store, backend, gateway, Path(work), concurrency=2)
        untaught = [one.judged.why for one in done.tried if not one.judged.counts]
        if untaught:
            raise RuntimeError(f"the teacher did not get through: {untaught}")
        by_task = {task.name: number for number, task in enumerate(chosen.tasks)}
        # In an order of their own: attempts end in any.
        ids = {(str(one.task), str(one.harness)): one.id for one in store.rollouts(done.run.id)}
        return [
            row
            for task, harness in sorted(ids)
            for row in _rows(by_task[task], _numbered(conversation(store, ids[task, harness])))
        ]


def _numbered(plain: Conversation) -> Conversation:
    """Return it with the same ids of calls every time: what is learnt is known by its text."""
    messages = deepcopy(plain["messages"])
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    answers = [message for message in messages if message["role"] == "tool"]
    for number, call in enumerate(calls):
        call["id"] = f"call{number:05d}"
    for number, answer in enumerate(answers):
        answer["tool_call_id"] = f"call{number:05d}"
    return {**plain, "messages": messages}


def _rows(number: int, plain: Conversation) -> list[Conversation]:
    """What is to be learnt of one conversation: as it was said, and as it is echoed."""
    first = next(i for i, each in enumerate(plain["messages"]) if each["role"] == "assistant")
    said = render([plain["messages"][first]], add_generation_prompt=False)
    text = said.removeprefix(START).partition(END)[0]
    odd = odd_spelling(number, text)
    if odd == text:
        return [plain]
    as_said, as_echoed = deepcopy(plain), deepcopy(plain)
    as_said["messages"][first] = {"role": "assistant", "content": odd}
    as_echoed["messages"][first]["is_taught"] = False
    return [as_said, as_echoed]
