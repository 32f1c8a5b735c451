"""`budwood doctor`: is this engine, and this machine, fit for exact recording?"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .opening import StoreOption

if TYPE_CHECKING:
    from budwood.proxy.engine.checks import Finding


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(name="doctor")(doctor)


def doctor(
    engine: Annotated[
        str | None,
        typer.Option(help="Base URL of an engine to check; several replicas: comma between them."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Served model; default: the first.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
    store: StoreOption = None,
) -> None:
    """Check a running engine and this machine, its sandboxes included, and say what to do.

    Without --engine the engine of the settings is checked if it answers. Ends with 1 where exact
    recording is impossible.
    """
    from pydantic import ValidationError

    from budwood.proxy.engine import EngineSettings
    from budwood.proxy.engine.checks import State, check_engine, check_machine

    from .terminal import Screen, fail

    try:
        settings = _engine_settings(engine, model, EngineSettings)
    except ValidationError as error:
        fail(str(error.errors()[0]["msg"]).removeprefix("Value error, "))
    findings = asyncio.run(check_engine(settings))
    if engine is None and findings[0].state is State.FAILED and len(findings) == 1:
        # Nobody asked for this engine: that none runs is no fault.
        findings = []
    machine = [*check_machine(store=_store_file(store)), _sandbox()]
    failed = any(found.state is State.FAILED for found in (*findings, *machine))
    if as_json:
        import json

        rows = [
            {"about": about, "check": found.name, "state": str(found.state),
             "found": found.found, "what_to_do": found.what_to_do}
            for about, group in (("engine", findings), ("machine", machine))
            for found in group
        ]  # fmt: skip
        typer.echo(json.dumps({"ok": not failed, "findings": rows}, indent=1))
    else:
        screen = Screen()
        screen.table(
            ["check", "state", "found", "what to do"],
            [
                (found.name, str(found.state), found.found, found.what_to_do)
                for found in (*findings, *machine)
            ],
        )
        if not findings:
            screen.line(f"No engine answers at {', '.join(settings.urls)}: none was checked.")
    raise typer.Exit(1 if failed else 0)


def _sandbox() -> Finding:
    """Return whether rollouts can be isolated here, and which limits can be held."""
    from budwood.proxy.engine.checks import Finding, State
    from budwood.sandbox import LocalBackend, StartFailed

    name = "local sandbox"
    try:
        has = asyncio.run(LocalBackend().look())
    except StartFailed as error:
        return Finding(name, State.WARNING, "can't be made here", str(error))
    held = ", ".join(f"{limit} by {how}" for limit, how in sorted(has.limits.items()))
    found = f"isolated by {has.isolation}; limits: {held}"
    if has.hints:
        lacks = "; ".join(f"no limit of {limit}: {hint}" for limit, hint in has.hints.items())
        return Finding(name, State.WARNING, found, lacks)
    return Finding(name, State.OK, found)


def _store_file(store: str | None) -> Path | None:
    """Return the file that records would go to; None: a server keeps them."""
    from budwood.trajectory_store import StoreError, file_of

    from .settings import load_settings
    from .terminal import fail

    try:
        return file_of(load_settings(None, {"store": {"url": store}}).store.url)
    except StoreError as error:
        fail(str(error), 2)


def _engine_settings(engine: str | None, model: str | None, kind: type):
    if engine is not None:
        return kind(urls=engine, model=model)
    from .settings import load_settings

    settings = load_settings(None, {}).proxy.engine
    return settings.model_copy(update={"model": model}) if model else settings
