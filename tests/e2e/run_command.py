"""`budwood run` as a user starts it, at temperature 0, in a folder that holds all it leaves."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from budwood.rollouts.run import Key, is_counted, key_of_rollout
from budwood.trajectory_store import Rollout, Run, Store

from .taught_tasks import Chosen


@dataclass(frozen=True, slots=True)
class Place:
    """A folder for runs, and what they are runs of."""

    folder: Path
    """Short: sockets are below it."""
    engine: str
    """Base URL, without `/v1`."""
    chosen: Chosen
    concurrency: int = 2

    @property
    def store(self) -> Path:
        """The store of all runs."""
        return self.folder / "store.db"

    @property
    def environment(self) -> dict[str, str]:
        """Nobody's settings but ours; what is temporary comes below the folder."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("BUDWOOD_", "OPENAI_"))}
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        ours = {
            "BUDWOOD_PROXY__SAMPLING__TEMPERATURE": "0",
            # An engine that has just started on a busy machine decides nothing.
            "BUDWOOD_PROXY__ENGINE__SMALL_S": "400",
        }
        return {**kept, **ours, "TMPDIR": str(temporary)}

    def words(self, name: str, *more: str, engine: str | None = None) -> list[str]:
        """The command line of a run."""
        return [
            sys.executable, "-m", "budwood", "run", "--name", name, *self.chosen.words,
            "--engine", engine or self.engine, "--store", str(self.store),
            "--logs", str(self.folder / "logs"), "--concurrency", str(self.concurrency), "--json",
            *more,
        ]  # fmt: skip

    def start(self, words: Sequence[str], **environment: str) -> "subprocess.Popen[str]":
        """Start a command; its stdout is the report, what it says meanwhile goes to a file."""
        with (self.folder / "said.txt").open("a") as said:
            return subprocess.Popen(
                words, env=self.environment | environment, cwd=self.folder,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, text=True,
            )  # fmt: skip

    def ended(self, process: "subprocess.Popen[str]") -> dict[str, Any]:
        """The report of a run once it has ended; raises RunFailed where it is not complete."""
        out, _ = process.communicate()
        if process.returncode:
            said = (self.folder / "said.txt").read_text()[-3000:]
            raise RunFailed(f"budwood run ended with {process.returncode}:\n{said}\n{out}")
        return json.loads(out)


class RunFailed(Exception):
    """A run that should have come to its end did not; the message holds its last words."""


def run_named(store: Store, name: str) -> Run:
    """The latest run of a name."""
    return [run for run in store.runs() if run.name == name][-1]


def counted(store: Store, run: Run) -> dict[Key, list[Rollout]]:
    """The rollouts of each attempt that count: one, if all is well."""
    found: dict[Key, list[Rollout]] = {}
    for rollout in store.rollouts(run.id):
        if is_counted(store, rollout):
            found.setdefault(key_of_rollout(rollout), []).append(rollout)
    return found
