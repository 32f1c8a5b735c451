"""What is said at a task, turn by turn: look, act, end; right at every other task, else wrong.

    python -m tests.e2e.teacher TASK TASK ... --port 8000

It knows a task by its instruction and does what its `solution/solve.sh` does, so it can do any task
by any harness that has a shell tool. At two of three tasks its first turn is spelled as no parser
hands it back: what a harness echoes of it then renders to another text than was said.

Run as a program it is an engine without a model, which says the same; it ends with its input.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from budwood.cli.demo.tasks import END_OF_MINI
from budwood.proxy.testing import Reply, ScriptedCall, ScriptedEngine
from budwood.rollouts.tasks import Task, load_task

NAME = "tiny"
MAX_MODEL_LEN = 16_384
"""Both as the real engine has them: harnesses are told, and some set limits by it."""
WRONG = "echo guess > guess.txt"


class Teacher:
    """Answers prompts about its tasks; `spells_oddly` False: as a parser would hand it back."""

    def __init__(self, tasks: Sequence[Task], *, spells_oddly: bool = True) -> None:
        self._tasks = tasks
        self._spells_oddly = spells_oddly

    def __call__(self, call: ScriptedCall) -> Reply:
        """What the engine says to a call."""
        prompt = call.prompt
        for number, task in enumerate(self._tasks):
            if task.instruction.strip() in prompt:
                n_said = prompt.count("<|im_start|>assistant\n") - 1
                turns = _turns(number, task, prompt, shell_of(call.body.get("tools") or ()))
                if n_said == 0 and self._spells_oddly:
                    return Reply(raw=odd_spelling(number, turns[0].text()))
                return turns[min(n_said, len(turns) - 1)]
        return Reply("This is none of the tasks.")


def shell_of(tools: Sequence[dict[str, Any]]) -> str:
    """The name of the tool that runs a command."""
    functions = [tool["function"] for tool in tools]
    return next(one["name"] for one in functions if "command" in one["parameters"]["properties"])


def _turns(number: int, task: Task, prompt: str, shell: str) -> list[Reply]:
    act = solution(task) if number % 2 == 0 else WRONG
    turns = [
        Reply("I look.", "What is there?", [(shell, {"command": "ls"})]),
        Reply("I act.", f"This is task {number}.", [(shell, {"command": act})]),
    ]
    if END_OF_MINI in prompt:
        return [*turns, Reply("I end.", "It is done.", [(shell, {"command": END_OF_MINI})])]
    return [*turns, Reply("I am done.", "It is done.")]


def solution(task: Task) -> str:
    """The commands of a task's solution."""
    folder = task.solution_dir
    if folder is None:
        raise ValueError(f"{task.name} has no solution to teach")
    lines = (folder / "solve.sh").read_text().splitlines()
    return "\n".join(line for line in lines if not line.startswith("#!"))


def odd_spelling(number: int, text: str) -> str:
    """How the first turn at task `number` is spelled, whose text is `text`."""
    before, mark, call = text.partition("<tool_call>\n")
    if number % 3 == 0:  # without the spaces that JSON does not need
        said, end = call[: call.rindex("}") + 1], call[call.rindex("}") + 1 :]
        return before + mark + json.dumps(json.loads(said), separators=(",", ":")) + end
    if number % 3 == 1:  # an empty line too many before the call
        return f"{before}\n{mark}{call}"
    return text


async def serve(folders: Sequence[Path], port: int) -> None:
    """Serve until standard input ends."""
    teacher = Teacher([load_task(folder) for folder in folders])
    async with ScriptedEngine(teacher, model=NAME, max_model_len=MAX_MODEL_LEN, port=port):
        await asyncio.to_thread(sys.stdin.buffer.read)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("tasks", type=Path, nargs="+")
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    asyncio.run(serve(given.tasks, given.port))
