"""What the demo prints: a clock, the commands a user would type, and their own words."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ..terminal import safe


class DemoFailed(Exception):
    """A step of the demo did not end as it must; the message says which and what it said."""


@dataclass
class Clock:
    """Says what happens, each line with the seconds since the start."""

    started: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def say(self, text: str) -> None:
        """Print a line with the time."""
        print(f"[{self.elapsed_s:6.1f} s] {safe(text)}", flush=True)

    def more(self, text: str) -> None:
        """Print lines that belong to the last one."""
        for line in safe(text).splitlines():
            print(f"{'':12}{line}", flush=True)


@dataclass(frozen=True)
class Place:
    """The demo's folder, and how its commands are run there."""

    folder: Path
    clock: Clock
    path: tuple[Path, ...] = ()
    """Folders of harnesses, put first in PATH."""

    @property
    def store(self) -> Path:
        """The store of what is recorded."""
        return self.folder / "store.db"

    @property
    def logs(self) -> Path:
        """Where the harnesses' own output goes."""
        return self.folder / "logs"

    def environment(self) -> dict[str, str]:
        """Return the environment of the demo's commands: a home of its own, no settings."""
        kept = {name: value for name, value in os.environ.items() if not _is_set_aside(name)}
        home = self.folder / "home"
        home.mkdir(parents=True, exist_ok=True)
        path = os.pathsep.join([*map(str, self.path), kept.get("PATH", os.defpath)])
        return {**kept, "PATH": path, "HOME": str(home), "NO_COLOR": "1", "PYTHONUTF8": "1"}

    def budwood(
        self,
        *words: str,
        cwd: Path | None = None,
        allowed: Sequence[int] = (0,),
        log: str | None = None,
        store: Path | None = None,
        is_quiet: bool = False,
    ) -> str:
        """Run a command of ours as a user would; return its stdout, or raise DemoFailed.

        With `log`, all output goes to that file too, and what a harness wrote is not shown.
        """
        verb, *rest = words
        command = [verb, "--store", str(store or self.store), *rest]
        if not is_quiet:
            shown = shlex.join([verb, "--store", self.store.name, *_for_people(rest)])
            self.clock.say(f"$ budwood {shown}")
        done = subprocess.run(
            [sys.executable, "-m", "budwood", *command],
            cwd=cwd or self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        if log is not None:
            self.logs.mkdir(exist_ok=True)
            (self.logs / log).write_text(done.stdout + done.stderr, encoding="utf-8")
        if done.returncode not in allowed:
            said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-25:])
            raise DemoFailed(f"`budwood {verb}` ended with {done.returncode}:\n{said}")
        if not is_quiet:
            self.clock.more(done.stdout if log is None else _from_us(done.stdout, done.stderr))
        return done.stdout


def _is_set_aside(name: str) -> bool:
    return name.startswith(("BUDWOOD_", "OPENAI_", "ANTHROPIC_", "MSWEA_", "PI_", "XDG_"))


def _for_people(words: Sequence[str]) -> list[str]:
    """Shorten what only lets the demo stand alone: nothing but long paths of programs."""
    return [Path(word).name if word == sys.executable else word for word in words]


def _from_us(out: str, err: str) -> str:
    """Return what we said after a harness's own words: a recording's figures, a verdict."""
    lines = err.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith("budwood: ")), len(lines))
    said = [line for line in lines[start:] if not line.startswith("  next ")]
    return "\n".join(said or out.strip().splitlines()[-1:])


@contextmanager
def teacher_running(
    environment: Mapping[str, str], *words: str, module: str = "budwood.cli.demo.teacher"
) -> Iterator[str]:
    """Run a scripted teacher in a process of its own; yield its address.

    words: its arguments.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", module, *words],
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        if not url:
            raise DemoFailed("the scripted teacher did not start")
        yield url
    finally:
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
