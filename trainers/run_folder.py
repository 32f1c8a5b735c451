"""The folder of one training run: what it is, what it measured, where it goes on, its report.

    run.json         what is trained on what, with a digest; what was left out
    metrics.jsonl    a line a step
    tensorboard/     the same figures
    checkpoints/     what a killed run goes on from
    model/           the new weights, when all steps are done
    report.html      the closing page

A command that is repeated goes on from the newest checkpoint; figures of steps after it are
dropped, since these steps are done again. A folder that holds another run is refused.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from .errors import RunError
from .extra import naming_the_extra
from .report import write_report

IDENTITY = ("kind", "model", "data_digest", "decides")
"""What of `run.json` must be equal for a run to go on."""
PACKAGES = ("budwood", "torch", "transformers", "trl")


class RunFolder:
    """An output folder, held by one process; use it in a `with`."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        """Make the folder, or go on with the run in it; raises `RunError` where it is another's.

        `about` is what `run.json` says; `IDENTITY` of it may not change.
        """
        self.path = path
        self._about = {"versions": versions(), **about}
        self._board: Any = None
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = (path / ".lock").open("w")
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror}") from error
        try:
            _hold(self._lock, path)
            self._check()
        except BaseException:
            self._lock.close()
            raise

    def __enter__(self) -> Self:
        """Return the folder."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Let go of it."""
        if self._board is not None:
            self._board.close()
        self._lock.close()

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """Where the new weights are once the run is done."""
        return self.path / "model"

    def say(self, **more: Any) -> None:
        """Add to what `run.json` says; `facts` are added to those that are there."""
        facts = {**self._about.get("facts", {}), **more.pop("facts", {})}
        self._about |= {**more, "facts": facts}
        part = self.path / ".run.json.part"
        part.write_text(json.dumps(self._about, indent=2) + "\n", "utf-8")
        os.replace(part, self.path / "run.json")

    def begin(self, done: int) -> None:
        """Begin, or go on after `done` steps: later figures are dropped."""
        metrics = self.path / "metrics.jsonl"
        lines = metrics.read_text("utf-8").splitlines() if metrics.exists() else []
        kept = [line for line in lines if _step_of(line) <= done]
        part = self.path / ".metrics.jsonl.part"
        part.write_text("".join(line + "\n" for line in kept), "utf-8")
        os.replace(part, metrics)
        self.say()
        with naming_the_extra():
            from torch.utils.tensorboard import SummaryWriter

        self._board = SummaryWriter(str(self.path / "tensorboard"), purge_step=done + 1)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Write the figures of a step: a line, and a point in TensorBoard's."""
        known = {name: float(value) for name, value in figures.items() if math.isfinite(value)}
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **known}) + "\n")
        for name, value in known.items():
            self._board.add_scalar(name, value, step)
        self._board.flush()

    def figures(self) -> list[dict[str, float]]:
        """Return the figures of every step so far, `step` among them."""
        lines = (self.path / "metrics.jsonl").read_text("utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def finish(self, **facts: Any) -> Path:
        """Say that all is done, write the report and return its path."""
        self.say(facts=facts, finished=True)
        return write_report(self.path)

    def _stored(self) -> dict[str, Any]:
        try:
            return json.loads((self.path / "run.json").read_text("utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise RunError(f"{self.path / 'run.json'} cannot be read: {error}") from error

    def _check(self) -> None:
        stored = self._stored()
        if not stored:
            others = [p.name for p in self.path.iterdir() if p.name != ".lock"]
            if others:
                raise RunError(
                    f"{self.path} holds {others[0]} and no training run; choose another output"
                )
            return
        if not any(self.checkpoints.glob("checkpoint-*")):
            return  # nothing was trained yet: the alarm ended it, or its user
        # As JSON gives it back: tuples are lists there.
        mine = json.loads(json.dumps(self._about))
        for name in IDENTITY:
            if stored.get(name) != mine.get(name):
                raise RunError(
                    f"{self.path} holds another run: its {name.replace('_', ' ')} differs"
                    f"{_difference(stored.get(name), mine.get(name))}; choose another output, or "
                    "remove the folder"
                )
        kept = {name: stored[name] for name in ("facts", "mismatch") if name in stored}
        self._about |= kept


def _hold(lock: IO[str], path: Path) -> None:
    """Keep other processes out until the file is closed."""
    try:
        import fcntl
    except ImportError:
        return  # Windows: one trainer a folder is its user's care
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise RunError(f"another process trains into {path}") from error


def versions() -> dict[str, str]:
    """Return the versions of what decides the numbers."""
    found: dict[str, str] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError):
        return math.inf  # cut by the end of its process


def _difference(stored: Any, mine: Any) -> str:
    if isinstance(stored, dict) and isinstance(mine, dict):
        names = [n for n in {**stored, **mine} if stored.get(n) != mine.get(n)]
        return f" ({', '.join(names)})"
    return ""
