"""`budwood config`: the effective settings and their origins."""

import json
from pathlib import Path
from typing import Annotated

import typer

from .settings import load_settings
from .terminal import Screen


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("config")(config)


def config(
    config: Annotated[Path | None, typer.Option(help="Settings file (budwood.toml).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Print the effective settings and where each came from; secrets are masked.

    The first of these counts: the command line, BUDWOOD_ROOM__FIELD, budwood.toml, the default.
    """
    settings = list(load_settings(config).effective())
    if as_json:
        typer.echo(
            json.dumps({s.name: {"value": s.value, "origin": s.origin} for s in settings}, indent=2)
        )
        return
    Screen().table(["setting", "value", "origin"], [(s.name, s.value, s.origin) for s in settings])
