"""A task folder → a frozen `Task`, or one clear error.

task.toml            what the task asks for
instruction.md       what the agent is told
environment/         what the image is made of; files/ is all of it that a local task has
tests/test.sh        the verifier, in the sandbox as /tests after the agent's end
solution/solve.sh    a solution, in the sandbox as /solution for `check` alone
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import BrokenTask, Problem
from .checksum import checksum
from .config import Split, TaskConfig
from .parsing import parse_config

WORKDIR = "/app"
"""Where commands start in a task without an image that names no `workdir`."""
VARIANTS = "variants.toml"
"""Beside `task.toml`, it makes the folder a template of many tasks (`template.py`)."""
_CANARY = re.compile(r"(<!--.*canary.*-->|#.*canary.*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task, as its folder was when it was read."""

    name: str
    """`org/name` of `task.toml`, or the folder's name."""
    folder: Path
    config: TaskConfig
    instruction: str
    """What the agent is told; empty where each step has its own."""
    test_script: str
    """The text of `tests/test.sh`; empty where steps or a verifier's image have their own."""
    checksum: str
    """`sha256:...` of the whole folder."""

    @property
    def is_local(self) -> bool:
        """True where the programs of an ordinary Linux host are enough."""
        return self.config.metadata.budwood.local

    @property
    def split(self) -> Split | None:
        """What the task is for: to train on, or only to evaluate with; None: either."""
        return self.config.metadata.budwood.split

    @property
    def workdir(self) -> str:
        """Where the agent, the verifier and the solution start."""
        return self.config.environment.workdir or WORKDIR

    @property
    def environment_dir(self) -> Path:
        """The folder an image is built from; it need not exist where an image is named."""
        return self.folder / "environment"

    @property
    def files_dir(self) -> Path | None:
        """The files that a local task begins with, if there are any."""
        return _if_folder(self.environment_dir / "files")

    @property
    def tests_dir(self) -> Path:
        """The folder of the verifier."""
        return self.folder / "tests"

    @property
    def solution_dir(self) -> Path | None:
        """The folder of the solution, if there is one that can be run."""
        return _if_folder(self.folder / "solution", holding="solve.sh")


def load_task(folder: Path | str) -> Task:
    """Return the task in a folder; raises BrokenTask.

    It may ask for what can't be run here: `require_runnable` says so.
    """
    folder = Path(folder).resolve()
    if not folder.is_dir():
        raise _broken(folder, "is not a folder; name the folder of a task")
    if (folder / VARIANTS).exists():
        raise _broken(folder / VARIANTS, "makes this a template of many tasks; load one of them")
    config = parse_config(_text(folder / "task.toml"), folder / "task.toml")
    total = checksum(folder)
    _require_environment(folder, config)
    return Task(
        name=config.task.name if config.task else folder.name,
        folder=folder,
        config=config,
        instruction=_instructions(folder, config),
        test_script=_test_scripts(folder, config),
        checksum=total,
    )


def _require_environment(folder: Path, config: TaskConfig) -> None:
    if not config.environment.docker_image and not (folder / "environment").is_dir():
        raise _broken(
            folder / "environment",
            "is missing; add the folder (with a Dockerfile, or for a local task with files/), "
            "or name an image in environment.docker_image",
        )


def _instructions(folder: Path, config: TaskConfig) -> str:
    """Return the task's instruction; those of steps are only held to be there."""
    if not config.steps:
        return _instruction(folder / "instruction.md")
    for step in config.steps:
        _instruction(folder / "steps" / step.name / "instruction.md")
    return ""


def _instruction(file: Path) -> str:
    text = without_canary(_text(file))
    if not text.strip():
        raise _broken(file, "is empty; write what the agent shall do")
    return text


def _test_scripts(folder: Path, config: TaskConfig) -> str:
    script = "test.bat" if config.environment.os == "windows" else "test.sh"
    shared = folder / "tests" / script
    if not config.steps:
        is_elsewhere = config.verifier.is_separate and not shared.exists()
        return "" if is_elsewhere else _text(shared)
    for step in config.steps:
        own = folder / "steps" / step.name / "tests" / script
        if not step.verifier.is_separate and not shared.exists():
            _text(own)
    return ""


def without_canary(text: str) -> str:
    """Return an instruction without the marks at its head that keep it out of training data."""
    lines = text.split("\n")
    while lines and _CANARY.fullmatch(lines[0].strip()):
        del lines[0]
        while lines and not lines[0].strip():
            del lines[0]
    return "\n".join(lines)


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8")
    except FileNotFoundError as error:
        raise _broken(file, f"is missing; {_PURPOSE[file.name]}") from error
    except UnicodeDecodeError as error:
        text = f"is not UTF-8 at byte {error.start}; save it as UTF-8"
        raise _broken(file, text) from error
    except OSError as error:
        raise _broken(file, f"can't be read: {error.strerror}; correct that") from error


_PURPOSE = {
    "task.toml": "a task folder needs it, an empty one will do",
    "instruction.md": "write what the agent shall do into it",
    "test.sh": "write a script that checks the result and writes /logs/verifier/reward.txt",
    "test.bat": "write a script that checks the result and writes the reward",
}


def _broken(file: Path, text: str) -> BrokenTask:
    return BrokenTask(file, [Problem("", text)])


def _if_folder(path: Path, *, holding: str | None = None) -> Path | None:
    is_there = path.is_dir() and (holding is None or (path / holding).is_file())
    return path if is_there else None
