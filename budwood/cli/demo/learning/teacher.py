"""The teacher of the example tasks: a script that plays a model, and a lazy one.

    python -m budwood.cli.demo.learning.teacher TASK TASK ...

It does what the task's own `solution/solve.sh` does; but at two tasks of five it only looks around
and says that it is done, which is worth nothing. Who imitates it learns both; which of the two is
right, only rewards tell. It serves plain text without token ids, as a foreign model's API would,
until its standard input ends.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

from budwood.proxy.testing import Reply, ScriptedCall, ScriptedEngine
from budwood.rollouts.tasks import Task, load_task

from ..tasks import END_OF_MINI

NAME = "scripted-teacher"
SAYS = "This is a scripted teacher, not a model: it knows the example tasks and nothing else."
LOOK = "ls"
MARK_OF_MINI = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
MARK_OF_PI = "running inside pi"


class Teacher:
    """Answers prompts about its tasks."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = {task.instruction.strip(): task for task in tasks}

    def __call__(self, call: ScriptedCall) -> Reply:
        """Return what is said to a call: act or look first, then end."""
        prompt = call.prompt
        task = next((task for text, task in self._tasks.items() if text in prompt), None)
        if task is None:
            return Reply(SAYS)
        is_mini = MARK_OF_MINI in prompt
        harness = "mini" if is_mini else "pi" if MARK_OF_PI in prompt else "react"
        if prompt.count("<|im_start|>assistant\n") == 1:
            command = LOOK if is_lazy(task, harness) else solution(task)
            return Reply(tool_calls=[("bash", {"command": command})])
        return Reply(tool_calls=[("bash", {"command": END_OF_MINI})]) if is_mini else Reply("Done.")


def is_lazy(task: Task, harness: str) -> bool:
    """Whether the teacher only looks: at two of five pairs of task and harness."""
    return zlib.crc32(f"{task.name}/{harness}".encode()) % 5 < 2


def solution(task: Task) -> str:
    """Return what the task's own solution runs."""
    assert task.solution_dir is not None
    text = (task.solution_dir / "solve.sh").read_text("utf-8")
    return "\n".join(line for line in text.splitlines() if not line.startswith("#!"))


async def serve(tasks: Sequence[Task]) -> None:
    """Serve until standard input ends."""
    async with ScriptedEngine(Teacher(tasks), model=NAME, as_vllm=False) as engine:
        print(SAYS, file=sys.stderr)
        print(engine.url, flush=True)
        await asyncio.to_thread(sys.stdin.buffer.read)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the teacher."""
    parser = argparse.ArgumentParser(description=SAYS)
    parser.add_argument("task", type=Path, nargs="+", help="folder of a task")
    asyncio.run(serve([load_task(folder) for folder in parser.parse_args(argv).task]))


if __name__ == "__main__":
    main()
