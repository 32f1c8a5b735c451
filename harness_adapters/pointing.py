"""Where a harness is to be pointed, and what has to be set for it: plain values, no effects.

A pointing is applied in this order: make the private home, write `files` into it, start the
program with `env` laid over the environment it would have had. Nothing outside the private home
is written, so the user's own configuration stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class Dialect(StrEnum):
    """A wire protocol that a harness speaks."""

    CHAT = "chat"
    RESPONSES = "responses"
    MESSAGES = "messages"
    COMPLETIONS = "completions"
    GEMINI = "gemini"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One rollout's address on the proxy, and what a harness has to know of the model there."""

    base_url: str
    """With or without a closing `/v1`; `root` and `v1` give both forms."""
    secret: str = field(repr=False)
    """The rollout's secret, used as the API key."""
    model: str
    """A name without slashes or spaces; the proxy takes any and says it back."""
    context_window: int
    """Tokens of prompt and answer together."""
    max_output: int
    """Most tokens of one answer."""

    @property
    def root(self) -> str:
        """The base URL without `/v1`, as Anthropic's and Google's clients want it."""
        return self.base_url.rstrip("/").removesuffix("/v1")

    @property
    def v1(self) -> str:
        """The base URL with `/v1`, as OpenAI's clients want it."""
        return f"{self.root}/v1"


@dataclass(frozen=True, slots=True)
class Pointing:
    """What makes one program talk to one endpoint."""

    harness: str
    """The adapter's name."""
    dialect: Dialect | None
    """What the harness will speak; None where that is unknown (generic)."""
    argv: tuple[str, ...]
    """The command to run: as given, unless a harness can be pointed in no other way."""
    env: Mapping[str, str | None]
    """Laid over the environment; None takes a variable away."""
    files: Mapping[str, str]
    """Path below the private home → text. Each holds the secret: mode 0600."""
    notes: tuple[str, ...] = ()
    """What a user should know of this harness, one line each."""

    def write_files(self, home: Path) -> None:
        """Write the files below the private home, readable by their owner alone."""
        for name, text in self.files.items():
            path = home / name
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)
            path.write_text(text, encoding="utf-8")

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return `base` with this pointing laid over it."""
        merged: dict[str, str | None] = {**base, **self.env}
        return {name: value for name, value in merged.items() if value is not None}
