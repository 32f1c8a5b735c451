"""`budwood engine`: vLLM with the flags that exact recording needs."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        name="engine",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(engine)


def engine(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(help="Folder of a model, or its name.")],
    cpu: Annotated[
        bool,
        typer.Option("--cpu", help="No GPU: vLLM's CPU build, installed privately if need be."),
    ] = False,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)
    ] = 8000,
    name: Annotated[str | None, typer.Option(help="Name to serve the model under.")] = None,
    tool_parser: Annotated[
        str | None, typer.Option(help="vLLM's tool-call parser, or none. Default: guessed.")
    ] = None,
    reasoning_parser: Annotated[
        str | None, typer.Option(help="vLLM's reasoning parser, or none. Default: guessed.")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="Longest prompt and answer together, in tokens.")
    ] = None,
    python: Annotated[
        Path | None, typer.Option(help="Python of an environment that holds vLLM.")
    ] = None,
    log: Annotated[bool, typer.Option("--log", help="Show all of vLLM's own log.")] = False,
) -> None:
    """Start vLLM so that recordings of it are exact; runs until it is interrupted.

    Further flags of vLLM may follow: budwood engine MODEL -- --tensor-parallel-size 2
    """
    from budwood.proxy.engine.launch import Launch, engine_running, parse_extra
    from budwood.proxy.engine.launch_errors import LaunchError

    from .terminal import fail, note, this_command

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    launch = Launch(
        model=model,
        cpu=cpu,
        host=host,
        port=port,
        served_name=name,
        tool_parser=tool_parser,
        reasoning_parser=reasoning_parser,
        max_model_len=max_model_len,
        python=python,
        extra=parse_extra(ctx.args),
    )
    try:
        with engine_running(launch, say=note, on_line=note if log else None) as running:
            typer.echo(f"{running.url}/v1")
            note(f"record with: {this_command()} record --engine {running.url}/v1 -- COMMAND")
            code = running.wait()
            fail(f"the engine ended with code {code}:\n" + "\n".join(list(running.log)[-20:]))
    except LaunchError as error:
        fail(str(error))
    except KeyboardInterrupt:
        note("engine stopped")
