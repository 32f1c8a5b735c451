"""`task.toml` as values: Harbor's schema 1.4 (harbor 0.26.0, `models/task/config.py`).

Every key is known here, whether this version can run it or not; what it can't run is refused by
name in `support.py`. A key that is not known is an error, so nothing is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    field_validator,
    model_validator,
)

from .environment import Environment, Healthcheck
from .network import Network
from .table import Flag, Number, Seconds, Table, Text, User

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*/[A-Za-z0-9_-][A-Za-z0-9._-]*")
_STEP = re.compile(r"[^<>:\"/\\|?*\x00-\x1f\x7f]{1,255}")


class Author(Table):
    """Who wrote the task."""

    name: Text
    email: str | None = None


class Package(Table):
    """The `[task]` table: under which name the task is known."""

    name: str
    """`org/name`."""
    version: Text | None = None
    description: str = ""
    authors: tuple[Author, ...] = ()
    keywords: tuple[str, ...] = ()

    @field_validator("name")
    @classmethod
    def _has_two_parts(cls, value: str) -> str:
        if not _NAME.fullmatch(value) or ".." in value:
            raise ValueError(f"wants org/name of letters, digits, `-`, `_`, `.`; found {value!r}")
        return value


Split = Literal["train", "held-out"]


class Ours(Table):
    """The `[metadata.budwood]` table: what only this software reads."""

    local: Flag = False
    """True: the programs of an ordinary Linux host are enough, no image is needed. The files of
    `environment/files/` are then laid into the working directory."""
    split: Split | None = None
    """What the task is for: to train on, or only to evaluate with; None: either."""


class Metadata(BaseModel):
    """The `[metadata]` table: free, but for our own part of it."""

    model_config = ConfigDict(frozen=True, extra="allow")

    budwood: Ours = Ours()


class Agent(Network):
    """Limits of the agent; None where the task sets none."""

    timeout_sec: Seconds | None = None
    user: User = None


class Collect(Table):
    """A command that runs after the agent, for a separate verifier."""

    command: Text
    service: Text = "main"
    timeout_sec: Seconds = 60.0
    user: User = None


class Verifier(Network):
    """How `tests/test.sh` is run."""

    timeout_sec: Seconds = 600.0
    env: Mapping[str, str] = {}
    user: User = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: Environment | None = None
    collect: tuple[Collect, ...] = ()

    @property
    def is_separate(self) -> bool:
        """True where the verifier has an environment of its own."""
        if self.environment_mode is None:
            return self.environment is not None
        return self.environment_mode == "separate"

    @model_validator(mode="after")
    def _shares_or_not(self) -> Self:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError(
                'environment_mode = "shared" has no [verifier.environment]: take one of them out'
            )
        return self


class Solution(Table):
    """How `solution/solve.sh` is run."""

    env: Mapping[str, str] = {}


def _by_source(value: object) -> object:
    return {"source": value} if isinstance(value, str) else value


class Artifact(Table):
    """A path of the environment that is kept."""

    source: Text
    destination: str | None = None
    exclude: tuple[str, ...] = ()
    service: Text | None = None

    @field_validator("source", "destination")
    @classmethod
    def _stays_below(cls, value: str | None) -> str | None:
        if value is not None and ".." in PurePosixPath(value).parts:
            raise ValueError(f"wants a path without `..`, found {value!r}")
        return value

    @field_validator("destination")
    @classmethod
    def _is_relative(cls, value: str | None) -> str | None:
        if value is not None and PurePosixPath(value).is_absolute():
            raise ValueError(f"wants a relative path, found {value!r}")
        return value


Artifacts = tuple[Annotated[Artifact, BeforeValidator(_by_source)], ...]


def _by_key(value: object) -> object:
    """A number alone is the bar of the key `reward`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return {"reward": value} if is_number else value


class Step(Table):
    """One step of a task that has several; its files are in `steps/NAME/`."""

    name: str
    agent: Agent = Agent()
    verifier: Verifier = Verifier()
    min_reward: Annotated[Mapping[str, Number] | None, BeforeValidator(_by_key)] = None
    """Reward key → the bar below which the later steps are not begun."""
    healthcheck: Healthcheck | None = None
    artifacts: Artifacts = ()

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, value: str) -> str:
        if not _STEP.fullmatch(value) or value != value.strip(" ") or value.endswith("."):
            raise ValueError(f"wants the name of a folder below steps/, found {value!r}")
        return value


class TaskConfig(Table):
    """The whole of `task.toml`."""

    schema_version: Literal["1.0", "1.1", "1.2", "1.3", "1.4"] = "1.4"
    task: Package | None = None
    metadata: Metadata = Metadata()
    agent: Agent = Agent()
    verifier: Verifier = Verifier()
    environment: Environment = Environment()
    solution: Solution = Solution()
    source: str | None = None
    steps: tuple[Step, ...] = ()
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    artifacts: Artifacts = ()

    @model_validator(mode="before")
    @classmethod
    def _read_old_keys(cls, data: object) -> object:
        """`version` is the old name of `schema_version`."""
        if isinstance(data, dict) and "version" in data:
            data = dict(data)
            old: Any = data.pop("version")
            if data.setdefault("schema_version", old) != old:
                raise ValueError(
                    f"version says {old!r} and schema_version {data['schema_version']!r}: "
                    "take version out"
                )
        return data

    @field_validator("steps")
    @classmethod
    def _step_names_differ(cls, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        names = [step.name.casefold() for step in steps]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"wants a name of its own for each step; found twice: {twice[0]}")
        return steps


__all__ = [
    "Agent",
    "Artifact",
    "Author",
    "Collect",
    "Environment",
    "Healthcheck",
    "Metadata",
    "Ours",
    "Package",
    "Solution",
    "Split",
    "Step",
    "TaskConfig",
    "Verifier",
]
