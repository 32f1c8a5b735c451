"""What an adapter is: a dozen values, and one function where configuration files are needed.

Values of `env` are templates. They may name

    {root} {v1}    the endpoint without and with /v1
    {key}          the rollout's secret
    {model} {context_window} {max_output}
    {home}         the private home of this run, an absolute path
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .pointing import Dialect, Endpoint, Pointing

Files = Callable[[Endpoint, Path, Path], Mapping[str, str]]
"""(endpoint, private home, working directory) → path below the private home → text."""


def no_files(endpoint: Endpoint, home: Path, cwd: Path) -> Mapping[str, str]:
    """Return none: the environment is enough."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """How one harness is pointed at an endpoint."""

    name: str
    programs: tuple[str, ...]
    """Names of its commands, by which it is known."""
    packages: tuple[str, ...] = ()
    """Names of its packages and modules: for `npx PACKAGE`, `python -m MODULE`, `node FILE`."""
    dialect: Dialect | None
    streams: bool | None = True
    """Whether it asks for streamed answers; None: sometimes."""
    pointed_by: str
    """For people: what makes it talk to an endpoint."""
    env: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    """Variable → template (above), or None to take the user's own away."""
    files: Files = no_files
    notes: tuple[str, ...] = ()
    tested: str = ""
    """The version that was seen to work."""

    def point(self, argv: Sequence[str], endpoint: Endpoint, home: Path, cwd: Path) -> Pointing:
        """Return what makes `argv` talk to `endpoint`, with `home` as its private home."""
        fields = {
            "root": endpoint.root,
            "v1": endpoint.v1,
            "key": endpoint.secret,
            "model": endpoint.model,
            "context_window": endpoint.context_window,
            "max_output": endpoint.max_output,
            "home": home,
        }
        return Pointing(
            harness=self.name,
            dialect=self.dialect,
            argv=tuple(argv),
            env={
                name: None if template is None else template.format_map(fields)
                for name, template in self.env.items()
            },
            files=self.files(endpoint, home, cwd),
            notes=self.notes,
        )
