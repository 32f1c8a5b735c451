"""`budwood harness`: which harnesses are here, and installing those that can be launched.

Exit codes of `install`: 0 all are installed; 1 one could not be; 2 the command line can't be read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from .terminal import Screen, fail, note


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    harness = typer.Typer(help="List and install harnesses.", no_args_is_help=True)
    harness.command("list")(list_harnesses)
    harness.command("install")(install)
    app.add_typer(harness, name="harness")


def list_harnesses(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List the harnesses that can be launched in a sandbox, and where each is.

    Others are only recorded, with a command of yours: `budwood record --list`.
    """
    from budwood.harness_adapters import LAUNCHED

    rows = [_found(name) for name in LAUNCHED]
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    screen = Screen()
    screen.table(
        ["harness", "version", "pinned", "where"],
        [
            [row["harness"], row["version"] or "not installed", row["pinned"], row["folder"] or "-"]
            for row in rows
        ],
    )
    missing = [row["harness"] for row in rows if row["version"] is None]
    if missing:
        screen.line(f"budwood harness install {' '.join(missing)}", style="dim")


def install(
    names: Annotated[
        list[str], typer.Argument(help="Names from `budwood harness list`.", metavar="NAME...")
    ],
    root: Annotated[
        Path | None,
        typer.Option(help="Put them below this folder; default: where Budwood looks for them."),
    ] = None,
) -> None:
    """Install harnesses in environments of their own, in the versions they were tested in.

    What is there and up to date is left as it is. Nothing else of this machine is changed.
    """
    from budwood.harness_adapters import InstallFailed, UnknownHarness
    from budwood.harness_adapters.installing import install as install_all

    try:
        install_all(names, root, say=note)
    except UnknownHarness as error:
        fail(str(error), 2)
    except InstallFailed as error:
        fail(str(error))


def _found(name: str) -> dict[str, Any]:
    from budwood.harness_adapters import ADAPTERS, NotInstalled, installation_of

    launch = ADAPTERS[name].launch
    assert launch is not None
    row: dict[str, Any] = {"harness": name, "version": None, "folder": None, "why": None}
    row["pinned"] = launch.pinned_version
    try:
        found = installation_of(name)
    except NotInstalled as error:
        row["why"] = str(error)
    else:
        row |= {"version": found.version, "folder": str(found.folder)}
    return row
