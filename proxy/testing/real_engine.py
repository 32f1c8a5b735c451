"""Real vLLM on a CPU with a tiny model that knows a few conversations by heart, for tests.

    with tiny_engine(cache=Path(".cache")) as engine:
        client = openai.OpenAI(base_url=f"{engine.url}/v1", api_key="-")

The model is made once and kept under `cache` by a digest of all that it is made from. The server
is vLLM itself, in float32, so that its logprobs can be compared with transformers' to 1e-5. Start
takes a minute on an idle machine and several on a busy one: use one server for all tests of a run.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..engine.launch import Launch, engine_running
from . import chat_template, checkpoint, tiny_model
from .tiny_model import Conversation, TinyModel

Say = Callable[[str], None]

_BASH = {
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
SYSTEM = {"role": "system", "content": "You are a helpful agent."}


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _calls(thought: str, *commands: str, text: str | None = None) -> dict[str, Any]:
    calls = [
        {
            "id": f"call{index:05d}",
            "type": "function",
            "function": {"name": "bash", "arguments": json.dumps({"command": command})},
        }
        for index, command in enumerate(commands)
    ]
    return {"role": "assistant", "reasoning": thought, "content": text, "tool_calls": calls}


def _result(text: str, index: int = 0) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call{index:05d}", "content": text}


def _says(text: str, thought: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "reasoning": thought}


TAUGHT: tuple[Conversation, ...] = (
    {
        "messages": [
            SYSTEM,
            _user("List files."),
            _calls("I call bash.", "ls"),
            _result("a.txt"),
            _says("There is a.txt.", "One file."),
            _user("Show it."),
            _calls("I read it.", "cat a.txt"),
            _result("hello"),
            _says("It says hello.", "Short."),
        ],
        "tools": [_BASH],
    },
    {
        "messages": [
            SYSTEM,
            _user("Where am I, and who?"),
            _calls("Two calls.", "pwd", "whoami", text="I look."),
            _result("/tmp", 0),
            _result("root", 1),
            _says("You are root in /tmp."),
        ],
        "tools": [_BASH],
    },
    {"messages": [_user("Hello"), _says("Hello, I am tiny.", "A greeting.")]},
    {"messages": [_user("Count to three."), _says("One, two, three.")]},
    {"messages": [_user("Say it with accents."), _says("Olá ✓ naïve 漢字.", "Other letters.")]},
)
"""What the test model knows: turns with a tool, parallel calls, thoughts, text, other scripts."""


@dataclass(frozen=True, slots=True)
class TinyEngine:
    """A server that answers."""

    url: str
    """Without `/v1`."""
    model: str
    """The served name."""
    folder: Path
    """The model's files, for transformers to load."""
    conversations: Sequence[Conversation]
    """What it knows by heart."""
    start_s: float
    pid: int


def cached_model(
    cache: Path,
    conversations: Sequence[Conversation] = TAUGHT,
    what: TinyModel | None = None,
    *,
    say: Say = print,
) -> Path:
    """Return the folder of a taught model, made if this very one is not there yet."""
    what = what or TinyModel(vocab=1024)
    sources = [
        Path(module.__file__ or "").read_text()
        for module in (tiny_model, checkpoint, chat_template)
    ]
    made_from = json.dumps([asdict(what), list(conversations), sources], sort_keys=True)
    folder = cache / "tiny-model" / hashlib.sha256(made_from.encode()).hexdigest()[:16]
    if folder.exists():
        return folder
    say(f"teaching a tiny model {len(conversations)} conversations (half a minute)")
    folder.parent.mkdir(parents=True, exist_ok=True)
    (cache / ".gitignore").write_text("*\n")
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        teach = Path(work) / "teach.jsonl"
        teach.write_text("".join(json.dumps(row) + "\n" for row in conversations))
        command = [sys.executable, "-m", tiny_model.__name__, str(Path(work) / "model")]
        for name, value in asdict(what).items():
            if name == "tied":
                command += ["--tied"] if value else []
            else:
                option = "teach-steps" if name == "steps" else name.replace("_", "-")
                command += [f"--{option}", str(value)]
        # A process of its own: torch stays out of the caller's memory.
        done = subprocess.run(
            [*command, "--teach", str(teach)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"the tiny model could not be made:\n{done.stdout}{done.stderr}")
        try:
            shutil.move(str(Path(work) / "model"), folder)
        except (OSError, shutil.Error):
            if not folder.exists():  # else another process was faster
                raise
    return folder


@contextmanager
def tiny_engine(
    cache: Path,
    conversations: Sequence[Conversation] = TAUGHT,
    what: TinyModel | None = None,
    *,
    python: Path | None = None,
    say: Say = print,
    ready_s: float = 420.0,
    port: int = 0,
    extra: tuple[str, ...] = (),
) -> Iterator[TinyEngine]:
    """Serve a taught model by real vLLM on 127.0.0.1; port 0 takes a free one."""
    what = what or TinyModel(vocab=1024)
    folder = cached_model(cache, conversations, what, say=say)
    launch = Launch(
        model=str(folder),
        cpu=True,
        port=port,
        served_name="tiny",
        dtype="float32",
        max_model_len=what.max_position,
        dev_routes=True,
        python=python,
        extra=extra,
        environment={"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
    )
    with engine_running(launch, say=say, ready_s=ready_s) as running:
        yield TinyEngine(running.url, "tiny", folder, conversations, running.start_s, running.pid)
