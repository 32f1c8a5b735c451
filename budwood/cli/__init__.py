"""The one command. It parses, calls a room and shows progress; the logic is in the rooms.

It may use every room. No room imports it.

Each command is a module of this package with `register(app)`, which adds one command to a Typer
app. Modules are imported only when their command runs, so that `budwood --help` answers at once;
the line each shows there stands in `COMMANDS`.
"""

import errno
import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from budwood import __version__

__all__ = ["COMMANDS", "app", "main"]

COMMANDS: dict[str, str] = {
    "record": "Record a command: a rollout is opened, the command pointed at the proxy and run.",
    "proxy": "Serve the recording proxy.",
    "engine": "Start vLLM with the flags that exact recording needs.",
    "doctor": "Check a running engine and this machine, and say what to do.",
    "show": "Show runs, a rollout's lanes, a call as messages or tokens, and why.",
    "view": "Serve the same as pages on this machine.",
    "score": "Give rewards to recorded rollouts.",
    "export": "Write recorded rollouts in a trainer's format.",
    "replay": "Serve a rollout's stored answers to its harness again, and compare.",
    "harness": "List the harnesses that can be launched, and install them.",
    "task": "Check tasks: their solution passes, and doing nothing fails.",
    "run": "Run tasks by harnesses in sandboxes, and grade them.",
    "train": "Train a model on recorded rollouts.",
    "config": "Print the effective settings and where each came from.",
    "demo": "See it all once, with a real harness.",
}
"""Command name, which is also its module's name → its line in `budwood --help`."""


_OUTPUT_LOST = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF}


def _module(name: str) -> str:
    return f"{__name__}.{name}"


def load_command(name: str) -> Any:
    """Import a command's module and return the command it registers."""
    from typer.main import get_command

    sub_app = typer.Typer(callback=lambda: None, pretty_exceptions_enable=False)
    import_module(_module(name)).register(sub_app)
    group = get_command(sub_app)
    assert isinstance(group, TyperGroup)
    return group.commands[name]


class _CommandsOnDemand(TyperGroup):
    """The commands of the table above; each is imported when it is to run."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name in COMMANDS if find_spec(_module(name))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.list_commands(ctx):
            return None
        if cmd_name not in self.commands:
            # Help and suggestions need the name and one line only.
            stub = typer.Typer(add_completion=False)
            stub.command(cmd_name, help=COMMANDS[cmd_name])(lambda: None)
            return typer.main.get_command(stub)
        return self.commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0] if args else ""
        if name not in self.commands and name in self.list_commands(ctx):
            self.commands[name] = load_command(name)
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="budwood", cls=_CommandsOnDemand, no_args_is_help=True, pretty_exceptions_enable=False
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"budwood {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Record a harness exactly, look at it, export it, replay it."""


def main() -> None:
    """Run the command line; the console script `budwood` calls this."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: what is written goes nowhere
            setattr(sys, name, open(os.devnull, "w"))
    try:
        app()
    except OSError as error:
        if error.errno not in _OUTPUT_LOST or error.filename is not None:
            raise
        sys.stdout = open(os.devnull, "w")  # else Python tries once more, and says so
        typer.echo(f"budwood: the output can't be written: {error.strerror}", err=True)
        sys.exit(1)
