"""The demo's small tasks, and how its teacher does each of them, turn by turn.

Nothing here may depend on the time or the machine: the taught model knows these conversations by
heart, so what a harness shows it must be what it was shown before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from budwood.proxy.testing import Reply

END_OF_MINI = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


@dataclass(frozen=True)
class Task:
    """A folder, what to do in it, and what it should hold afterwards."""

    name: str
    text: str
    files: Mapping[str, str]
    wanted: Mapping[str, str]
    turns: Mapping[str, Sequence[Reply]]
    """Harness → what the teacher says, one reply a call."""


def _mini(thought: str, command: str) -> Reply:
    return Reply(thought, f"Next command: {command}", [("bash", {"command": command})])


GREET = Task(
    name="greet",
    text="Put the line Hello from Budwood. into hello.txt.",
    files={},
    wanted={"hello.txt": "Hello from Budwood.\n"},
    turns={
        "mini-swe-agent": (
            _mini("I write the file.", "echo 'Hello from Budwood.' > hello.txt"),
            _mini("I look at it.", "cat hello.txt"),
            _mini("It is right.", END_OF_MINI),
        ),
        "pi": (
            Reply(
                reasoning="One line in a new file: the write tool does it.",
                tool_calls=[
                    ("write", {"path": "hello.txt", "content": "Hello from Budwood.\n"}),
                ],
            ),
            Reply("I wrote hello.txt.", "It is written, nothing else was asked."),
        ),
        "loop": (
            Reply(
                reasoning="One line in a new file.",
                tool_calls=[
                    ("write_file", {"path": "hello.txt", "text": "Hello from Budwood.\n"}),
                ],
            ),
            Reply(
                "I read it back.", "I check it.", tool_calls=[("read_file", {"path": "hello.txt"})]
            ),
            Reply("I wrote hello.txt.", "It is right."),
        ),
    },
)

REPAIR = Task(
    name="repair",
    text="greet.py fails. Repair it.",
    files={"greet.py": 'pritn("hello")\n'},
    wanted={"greet.py": 'print("hello")\n'},
    turns={
        "mini-swe-agent": (
            _mini("I look at the file.", "cat greet.py"),
            _mini("The name is misspelt.", "sed -i 's/pritn/print/' greet.py && cat greet.py"),
            _mini("It is right.", END_OF_MINI),
        ),
        "pi": (
            Reply(
                reasoning="I have to see it first.",
                tool_calls=[("read", {"path": "greet.py"})],
            ),
            Reply(
                "The name is misspelt.",
                "pritn should be print.",
                tool_calls=[
                    (
                        "edit",
                        {
                            "path": "greet.py",
                            "edits": [{"oldText": "pritn", "newText": "print"}],
                        },
                    )
                ],
            ),
            Reply("I repaired greet.py.", "One word was wrong, now it is right."),
        ),
        "loop": (
            Reply(reasoning="I see it first.", tool_calls=[("read_file", {"path": "greet.py"})]),
            Reply(
                "The name is misspelt.",
                "pritn should be print.",
                tool_calls=[("write_file", {"path": "greet.py", "text": 'print("hello")\n'})],
            ),
            Reply("I repaired greet.py.", "One word was wrong."),
        ),
    },
)

TASKS = (GREET, REPAIR)
MARKS = {"loop": "a loop of Budwood's demo", "pi": "running inside pi", "mini-swe-agent": "bash"}
"""Harness → words of its system prompt or tools by which the teacher tells who asks."""


def answer(prompt: str) -> Reply:
    """Return what the teacher says to a rendered prompt; raises LookupError for a foreign one."""
    task = next((task for task in TASKS if task.text in prompt), None)
    harness = next((name for name, mark in MARKS.items() if mark in prompt), None)
    if task is None or harness is None:
        raise LookupError("this is none of the demo's tasks")
    turns = task.turns[harness]
    n_said = prompt.count("<|im_start|>assistant\n") - 1
    return turns[min(n_said, len(turns) - 1)]
