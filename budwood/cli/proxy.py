"""`budwood proxy`: the recording proxy, long-lived."""

from pathlib import Path
from typing import Annotated

import typer

from .opening import writable_store
from .settings import load_settings


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(name="proxy")(proxy)


def proxy(
    engine: Annotated[
        str | None, typer.Option(help="Base URL of the engine, e.g. http://127.0.0.1:8000/v1.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port for harnesses; 0 takes a free one.")
    ] = None,
    socket: Annotated[
        Path | None, typer.Option(help="Unix socket to listen on as well, for sandboxes.")
    ] = None,
    admin_port: Annotated[int | None, typer.Option(help="Port of the admin plane.")] = None,
    open_rollouts: Annotated[
        bool,
        typer.Option("--open", help="On loopback: let an unknown key open a rollout of its own."),
    ] = False,
    store: Annotated[str | None, typer.Option(help="Database path or URL.")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings file (budwood.toml).")] = None,
) -> None:
    """Record every model call of any harness that is pointed here.

    Point a harness at http://HOST:PORT/v1 with a rollout's secret as its API key, or at
    http://HOST:PORT/r/SECRET/v1. SIGTERM ends it in order.
    """
    changes: dict[str, dict] = {"proxy": {}, "store": {}}
    given = {"host": host, "port": port, "socket": socket, "admin_port": admin_port}
    for name, value in given.items():
        if value is not None:
            changes["proxy"][name] = value
    if open_rollouts:
        changes["proxy"]["open_rollouts"] = True
    if engine is not None:
        changes["proxy"]["engine"] = {"urls": engine}
    if store is not None:
        changes["store"]["url"] = store
    settings = load_settings(config, changes)

    from budwood.proxy import ConfigurationError, serve
    from budwood.trajectory_store import StoreError

    from .event_loop import run_loop
    from .terminal import configure_logs, fail

    configure_logs()
    try:
        with writable_store(settings.store) as store_opened:
            run_loop(serve(settings.proxy, store_opened))
    except (ConfigurationError, StoreError, OSError) as error:
        fail(str(error))
