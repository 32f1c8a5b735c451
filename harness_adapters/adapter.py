"""What an adapter is: a dozen values, and functions where files are written or an end is read.

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

from .errors import NotLaunched
from .installation import Installation
from .launch import Launch, LaunchContext, Prepared
from .pointing import Dialect, Endpoint, Pointing

Files = Callable[[Endpoint, Path, Path], Mapping[str, str]]
"""(endpoint, private home, working directory) → path below the private home → text."""


def no_files(endpoint: Endpoint, home: Path, cwd: Path) -> Mapping[str, str]:
    """Return none: the environment is enough."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """How one harness is pointed at an endpoint, and launched where we can."""

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
    launch: Launch | None = None
    """How it is launched in a sandbox; None: it can only be pointed."""

    def point(self, argv: Sequence[str], endpoint: Endpoint, home: Path, cwd: Path) -> Pointing:
        """Return what makes `argv` talk to `endpoint`, with `home` as its private home."""
        fields = _fields(endpoint, str(home))
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

    def prepare(self, ctx: LaunchContext, installation: Installation) -> Prepared:
        """Return what to start for one attempt: the pointing and the launch as one.

        What it takes away from a user's environment is left out: a sandbox inherits none.
        """
        launch = self.launch
        if launch is None:
            raise NotLaunched(self.name)
        pointing = self.point(installation.command, ctx.endpoint, Path(ctx.home), Path(ctx.workdir))
        fields = _fields(ctx.endpoint, ctx.home)
        extra = {name: template.format_map(fields) for name, template in launch.env.items()}
        return Prepared(
            argv=(*pointing.argv, *launch.arguments(ctx, installation)),
            env={**pointing.environment(installation.env), **extra},
            files={**pointing.files, **launch.files(ctx)},
            stdin=launch.stdin(ctx) if launch.stdin else None,
        )


def _fields(endpoint: Endpoint, home: str) -> dict[str, object]:
    return {
        "root": endpoint.root,
        "v1": endpoint.v1,
        "key": endpoint.secret,
        "model": endpoint.model,
        "context_window": endpoint.context_window,
        "max_output": endpoint.max_output,
        "home": home,
    }
