"""`budwood view`: recorded trajectories as pages on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from .event_loop import run_until_ended
from .opening import StoreOption, explanations, opened
from .settings import load_settings
from .terminal import Screen, configure_logs, fail


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("view")(view)


def view(
    selector: Annotated[
        str | None, typer.Argument(help="A rollout to begin with; default: all runs.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one.")] = None,
    browser: Annotated[bool, typer.Option("--browser", help="Open a browser.")] = False,
    store: StoreOption = None,
) -> None:
    """Serve recorded trajectories as pages, to read only.

    Prints an address that opens once and leaves a cookie. On an address that other machines can
    reach, set a token of your own in BUDWOOD_VIEWER__TOKEN.
    """
    from budwood.trajectory_store.viewer import Access, ViewerError, serve

    configure_logs()
    settings = load_settings(changes={"viewer": {"host": host, "port": port}}).viewer
    with opened(store) as found:
        start = f"?begin={found.select(selector)[-1]}" if selector else ""

        def ready(access: Access) -> None:
            screen = Screen()
            screen.line(access.url + start)
            screen.line("Ctrl-C ends it.")
            if browser:
                import webbrowser

                webbrowser.open(access.url + start)

        token = settings.token.get_secret_value() if settings.token else None
        try:
            run_until_ended(
                serve(
                    found,
                    settings.host,
                    settings.port,
                    token=token,
                    names=settings.allowed_hosts,
                    explanations=explanations(),
                    page_size=settings.page_size,
                    ready=ready,
                )
            )
        except ViewerError as error:
            fail(str(error), 2)
        except OSError as error:
            fail(f"{settings.host}:{settings.port} cannot be listened on: {error.strerror}")
