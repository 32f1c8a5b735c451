"""A whole harness in one file: a ReAct loop on OpenAI's SDK with one tool, a shell.

    OPENAI_BASE_URL=... OPENAI_API_KEY=... python -m budwood.harness_adapters.react "fix the tests"

The model is asked, the commands it calls for are run, their output is sent back, until it answers
without a call. Needs `openai` and nothing of Budwood: it is what a harness looks like from outside,
and the reference for who writes an adapter. It keeps to what makes a recording easy to train on:

- the history only grows, and what the model said goes back as it came, argument strings and
  reasoning included;
- nothing in the prompt depends on the time or the machine;
- sampling is set only where the user sets it;
- a call that failed for good ends it, with a code that says so.

Exit codes: 0 answered; 1 a model call failed; 2 the command line can't be read; 3 the limit of
turns was reached. With `--json` stdout is one JSON object a line (`start`, `call`, `tool`, `end`),
otherwise it is the answer alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

VERSION = "1"
"""Another one for each change that a model could notice."""
DONE, FAILED, LIMIT = 0, 1, 3
PIPE_BYTES = 65536
SYSTEM = """\
You solve a task in a Linux sandbox, alone: nobody answers questions.
Call the tool bash to run a command. Each starts in the working directory, in a shell of its own.
Look before you change something, and check the result.
When the task is done, answer with a short summary and no tool call."""
TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a shell command and return its output and exit code.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The command to run."}},
            "required": ["command"],
        },
    },
}
CUT_SHORT = "Your answer was cut off at the token limit. Go on, in smaller steps."
KEPT = ("role", "content", "reasoning_content", "reasoning", "tool_calls")
"""What of a message goes back; an SDK adds fields that servers refuse. Some servers send reasoning
under both names: it goes back under one."""
SECRETS = ("OPENAI_API_KEY", "OPENAI_BASE_URL")
"""Not for the commands: the second may hold a key in its path."""

Emit = Callable[[dict[str, Any]], None]


def main(argv: Sequence[str] | None = None) -> int:
    """Work on one task; return the exit code."""
    options = _parser().parse_args(argv)
    task = _task(options)
    try:
        import openai
    except ImportError:
        print("react: needs the package openai: pip install openai", file=sys.stderr)
        return FAILED

    def emit(event: dict[str, Any]) -> None:
        if options.json:
            print(json.dumps(event), flush=True)

    try:
        client = openai.OpenAI(timeout=options.timeout, max_retries=options.retries)
        end = loop(client, task, options, emit)
    except openai.OpenAIError as error:
        end = {"status": "failed", "text": "", "why": f"{type(error).__name__}: {error}"}
    emit({"type": "end", **end})
    if end["status"] == "failed":
        print(f"react: a model call failed: {end['why']}", file=sys.stderr)
        return FAILED
    if not options.json:
        print(end["text"])
    if end["status"] == "limit":
        print(f"react: no answer within {options.max_turns} turns", file=sys.stderr)
        return LIMIT
    return DONE


def loop(client: Any, task: str, options: argparse.Namespace, emit: Emit) -> dict[str, Any]:
    """Ask and act until there is an answer; return how it ended."""
    sampling = {
        name: value
        for name in ("temperature", "seed", "max_tokens")
        if (value := getattr(options, name)) is not None
    }
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": task},
    ]
    usage = {"calls": 0, "prompt_tokens": 0, "completion_tokens": 0}
    emit({"type": "start", "model": options.model, "messages": messages})
    while not options.max_turns or usage["calls"] < options.max_turns:
        answer = client.chat.completions.create(
            model=options.model, messages=messages, tools=[TOOL], **sampling
        )
        if not getattr(answer, "choices", None):
            why = f"the server's answer is no chat completion: {str(answer)[:200]}"
            return {"status": "failed", "text": "", "why": why, "usage": usage}
        choice = answer.choices[0]
        message = _as_it_came(choice.message.to_dict())
        messages.append(message)
        usage["calls"] += 1
        if answer.usage:
            usage["prompt_tokens"] += answer.usage.prompt_tokens
            usage["completion_tokens"] += answer.usage.completion_tokens
        emit({"type": "call", "message": message, "finish_reason": choice.finish_reason})
        calls = message.get("tool_calls") or []
        if not calls and choice.finish_reason != "length":
            return {"status": "done", "text": message["content"], "why": "", "usage": usage}
        if not calls:
            messages.append({"role": "user", "content": CUT_SHORT})
        for call in calls:
            output = use(call["function"], options)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})
            emit({"type": "tool", "id": call["id"], "output": output})
    return {"status": "limit", "text": "", "why": "max_turns", "usage": usage}


def _as_it_came(message: dict[str, Any]) -> dict[str, Any]:
    """Return the model's message as it goes back; content is never null where there is no call."""
    kept = {name: message[name] for name in KEPT if message.get(name) is not None}
    if "reasoning_content" in kept:
        kept.pop("reasoning", None)
    if not kept.get("tool_calls"):
        kept.pop("tool_calls", None)
        kept.setdefault("content", "")
    return kept


def use(function: dict[str, Any], options: argparse.Namespace) -> str:
    """Do what a call asks for; return what the model reads, an error of its own included."""
    if function["name"] != "bash":
        return f"error: there is no tool {function['name']!r}, only bash"
    try:
        command = json.loads(function["arguments"])["command"]
    except (ValueError, KeyError, TypeError):
        command = None
    if not isinstance(command, str):
        return 'error: the arguments must be a JSON object {"command": "..."}'
    return run(command, options.command_timeout, options.max_output)


def run(command: str, timeout_s: float, max_output: int) -> str:
    """Run a command in a group of its own; return its exit code and output for the model.

    It is over when the shell has ended: what it left running in the background keeps running, and
    what that writes later is lost. At `timeout_s` the whole group is killed.
    """
    shell = shutil.which("bash") or "/bin/sh"
    environment = {name: value for name, value in os.environ.items() if name not in SECRETS}
    try:
        process = subprocess.Popen(
            [shell, "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
    except (OSError, ValueError) as error:  # too long a word, a NUL in it
        return f"error: the command can't be run: {error}"
    kept = Kept(max_output)
    timed_out = _read(process, kept, time.monotonic() + timeout_s)
    if timed_out:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    code = process.wait()
    assert process.stdout is not None
    process.stdout.close()
    state = f"killed after {timeout_s:g} s" if timed_out else f"exit code {code}"
    text = kept.text()
    return f"{text}{'' if text.endswith(chr(10)) or not text else chr(10)}[{state}]"


class Kept:
    """The first and last bytes of an output, in bounded memory."""

    def __init__(self, limit: int) -> None:
        """Keep half of `limit` bytes from each end."""
        self._half = max(limit // 2, 1)
        self._head, self._tail, self._n_dropped = b"", b"", 0

    def add(self, data: bytes) -> None:
        """Take the next bytes."""
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        over = len(self._tail) - self._half
        if over > 0:
            self._tail, self._n_dropped = self._tail[over:], self._n_dropped + over

    def text(self) -> str:
        """Return what is kept, a gap named."""
        gap = f"\n[... {self._n_dropped} bytes left out ...]\n" if self._n_dropped else ""
        if not gap:
            return (self._head + self._tail).decode("utf-8", "replace")
        return self._head.decode("utf-8", "replace") + gap + self._tail.decode("utf-8", "replace")


def _read(process: subprocess.Popen[bytes], kept: Kept, until: float) -> bool:
    """Read until the process has ended; return whether its time was over first."""
    assert process.stdout is not None
    pipe = process.stdout.fileno()
    os.set_blocking(pipe, False)
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while process.poll() is None:
            left = until - time.monotonic()
            if left <= 0:
                return True
            # A background process may hold the pipe open: look at the shell now and then.
            if selector.select(min(left, 0.05)):
                data = os.read(pipe, PIPE_BYTES)
                kept.add(data)
                if not data:  # all have closed it: nothing to read, only to wait
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(left)
                    return process.poll() is None
        for _ in range(2):  # what the pipe still holds; a background process may write for ever
            if selector.select(0):
                kept.add(os.read(pipe, PIPE_BYTES))
    return False


def _task(options: argparse.Namespace) -> str:
    if options.task_file is not None:
        with open(options.task_file, encoding="utf-8") as file:
            return file.read()
    if options.task in (None, "-"):
        return sys.stdin.read()
    return options.task


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="react", description="A ReAct loop with one tool.")
    parser.add_argument("--version", action="version", version=VERSION)
    parser.add_argument("task", nargs="?", help="the task; '-' or none reads standard input")
    parser.add_argument("--task-file", metavar="FILE", help="read the task from a file")
    parser.add_argument("--model", default=os.environ.get("OPENAI_MODEL") or "default")
    parser.add_argument("--max-turns", type=int, default=50, metavar="N", help="0: no limit")
    parser.add_argument("--command-timeout", type=float, default=60.0, metavar="S")
    parser.add_argument("--max-output", type=int, default=10_000, metavar="BYTES",
                        help="of a command's output; the middle of more is left out")  # fmt: skip
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="of a model call")
    parser.add_argument("--retries", type=int, default=2, metavar="N", help="of a model call")
    parser.add_argument("--temperature", type=float, help="default: the server's")
    parser.add_argument("--seed", type=int, help="default: none is sent")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="default: none is sent")
    parser.add_argument("--json", action="store_true", help="write events, one JSON a line")
    return parser


if __name__ == "__main__":
    sys.exit(main())
