"""`budwood replay`: a rollout's stored answers for its harness again, compared call by call.

Exit codes: 0 identical; 1 a call differs, or the replay could not be served; 2 the command line
or the selector cannot be read; 3 fewer or more calls than were recorded.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .event_loop import run_until_ended
from .opening import SELECTOR_HELP, StoreOption, one_rollout, opened
from .task_folders import VarOption, tasks_in, variables_of
from .terminal import Screen, fail, note

if TYPE_CHECKING:
    from budwood.proxy.replay import ReplayServer
    from budwood.trajectory_store import RolloutId, Store
    from budwood.trajectory_store.replay import Replay

CONTEXT_WINDOW, MAX_OUTPUT = 131_072, 16_384
"""Told to a harness where neither the options nor the recording say more."""
QUIET_S = 2.0
"""Without a command: how long to wait for one call too many after all have been made."""


@dataclass(frozen=True)
class Harness:
    """The command to run against the replay."""

    argv: tuple[str, ...]
    name: str | None
    model: str
    context_window: int
    max_output: int


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("replay")(replay)


def replay(
    selector: Annotated[str, typer.Argument(help=SELECTOR_HELP)],
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="The harness to run.")
    ] = None,
    harness: Annotated[
        str | None, typer.Option(help="How to point the command, where its name does not tell.")
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(help="Regular expression for what changes from run to run; repeatable."),
    ] = None,
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65535)] = 0,
    context_window: Annotated[
        int | None, typer.Option(help="Told to the harness; default: what it was told then.")
    ] = None,
    max_output: Annotated[
        int | None, typer.Option(help="Most tokens an answer, told likewise.")
    ] = None,
    task: Annotated[
        Path | None,
        typer.Option(help="Make a rollout of `budwood run` again in a sandbox: its task's folder."),
    ] = None,
    var: VarOption = None,
    store: StoreOption = None,
) -> None:
    """Serve the stored answers of a rollout to its harness again, and compare its requests.

    budwood replay SELECTOR -- COMMAND... runs the harness, pointed at the replay. Without a
    command the address is printed for one that you start, or, with --task, the harness is started
    as `budwood run` had started it, in a fresh sandbox. Start your own where and as it was started:
    what it reads must be what it read then. Ends with the verdict, as the exit code says:
    0 identical, 1 a call differs (its first difference is shown), 3 fewer or more calls.
    """
    from budwood.proxy.replay import Canon, ReplayServer, load_recording
    from budwood.trajectory_store.replay import Replay

    if task is not None and (command or harness):
        fail("--task starts the harness of the recording: give no command and no --harness", 2)
    patterns = [_pattern(text) for text in ignore or ()]
    with opened(store) as found:
        rollout_id = one_rollout(found, selector)
        canon = Canon()
        played = Replay(load_recording(found, rollout_id, canon), ignore=patterns)
        if not played.n_expected:
            fail(f"{rollout_id} has no answered call to replay")
        run = None
        if command:
            from budwood.harness_adapters import ADAPTERS

            told = _told(found, rollout_id)
            recorded = found.rollout(rollout_id).harness
            run = Harness(
                tuple(command),
                harness or (recorded if recorded in ADAPTERS else None),
                _asked(played) or str(told.get("model") or "budwood"),
                context_window or int(told.get("context_window") or CONTEXT_WINDOW),
                max_output or int(told.get("max_output") or MAX_OUTPUT),
            )
        if task is not None:
            _replay_task(found, rollout_id, played, canon, task, variables_of(var or ()))
        else:
            run_until_ended(_serve(ReplayServer, found, played, canon, port, run))
        verdict, text = played.verdict()
        Screen().line(found.secrets.mask(text))
    raise typer.Exit(verdict.value)


def _replay_task(
    store: Store,
    rollout_id: RolloutId,
    played: Replay,
    canon: object,
    folder: Path,
    variables: Mapping[str, str],
) -> None:
    """Make a rollout of `budwood run` again in a fresh sandbox; its faults end the command."""
    from budwood.harness_adapters import HarnessError
    from budwood.proxy.replay import ReplayServer
    from budwood.rollouts import RolloutError
    from budwood.rollouts.attempt import Rules
    from budwood.rollouts.harnesses import harness_named
    from budwood.rollouts.replaying import replay_in_sandbox, setting_of
    from budwood.sandbox import SandboxError, backend_named

    rollout = store.rollout(rollout_id)
    with tempfile.TemporaryDirectory(prefix="budwood-tasks-") as workspace:
        tasks = tasks_in([folder], Path(workspace), None, True)
        named = [one for one in tasks if one.name == rollout.task]
        if not named:
            fail(f"{folder} has no task {rollout.task}, which {rollout_id} is an attempt at", 2)
        try:
            setting = setting_of(
                store.run(rollout.run_id), rollout, named[0],
                harness_named(rollout.harness or "none"), Rules(variables=variables),
            )  # fmt: skip
        except (RolloutError, HarnessError) as error:
            fail(str(error), 2)
        diverged = asyncio.Event()

        def on_request() -> None:
            if played.divergences:
                diverged.set()

        async def go() -> None:
            server = ReplayServer(store, played, canon, port=0, on_request=on_request)  # pyright: ignore
            async with backend_named("local") as backend, server:
                url, secret = server.base_url, server.secret
                done = await replay_in_sandbox(setting, url, secret, backend, diverged)
            if done is not None and not done.exit.is_success:
                note(f"budwood: the harness ended with {done.exit.code or done.exit.cause}")

        try:
            run_until_ended(go())
        except (SandboxError, RolloutError) as error:
            fail(str(error), 1)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        fail(f"--ignore {text!r} is no regular expression: {error}", 2)


def _told(store: Store, rollout_id: RolloutId) -> Mapping[str, Any]:
    """Return what the harness was told of its endpoint, where the recording says it."""
    found = store.run(store.rollout(rollout_id).run_id).settings.get("endpoint")
    return found if isinstance(found, dict) else {}


def _asked(played: Replay) -> str | None:
    for call in played.calls:
        if call.request.fields.get("model"):
            return str(call.request.fields["model"])
    return None


async def _serve(
    make: type[ReplayServer],
    store: Store,
    played: Replay,
    canon: object,
    port: int,
    command: Harness | None,
) -> None:
    moved, diverged = asyncio.Event(), asyncio.Event()

    def on_request() -> None:
        moved.set()
        if played.divergences:
            diverged.set()

    try:
        server = make(store, played, canon, port=port, on_request=on_request)  # pyright: ignore
        async with server:
            if command is None:
                note(f"OPENAI_BASE_URL={server.base_url}/v1  (any API key)")
                note(f"{played.n_expected} calls are expected; Ctrl-C ends it")
                await _until_over(played, moved)
            else:
                await _run(server, command, diverged)
    except OSError as error:
        fail(f"127.0.0.1:{port} cannot be listened on: {error.strerror}")


async def _until_over(played: Replay, moved: asyncio.Event) -> None:
    while not played.divergences:
        moved.clear()
        try:
            async with asyncio.timeout(QUIET_S if played.is_over else None):
                await moved.wait()
        except TimeoutError:
            return


async def _run(server: ReplayServer, command: Harness, diverged: asyncio.Event) -> None:
    """Run the harness, pointed at the replay as `budwood record` points it, to its end.

    After a call that differs there is nothing left to learn, and some try for minutes: it is ended.
    """
    from budwood.harness_adapters import Endpoint, UnknownHarness, point

    from .child import CannotStart, run_child, without_proxies

    with tempfile.TemporaryDirectory(prefix="budwood-replay-") as folder:
        home = Path(folder)
        endpoint = Endpoint(
            base_url=server.base_url,
            secret=server.secret,
            model=command.model,
            context_window=command.context_window,
            max_output=command.max_output,
        )
        try:
            pointing = point(command.argv, endpoint, home, harness=command.name)
            pointing.write_files(home)
            environment = pointing.environment(without_proxies(os.environ))
            status = await run_child(pointing.argv, environment, give_up=diverged)
        except UnknownHarness as error:
            fail(str(error), 2)
        except CannotStart as error:
            fail(str(error), 2)
    if status:
        note(f"budwood: the harness ended with status {status}")
