"""`budwood record`: one command, pointed at a proxy of its own, and what came of it.

The exit code is the command's own (128 + N where signal N ended it), except:

    2    the command line or a setting cannot be read
    65   the command ended, but not one model call was recorded
    69   the engine, the store or the proxy cannot be used; the command was not started
    126  the command cannot be executed
    127  the command was not found
"""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shlex
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from budwood import __version__

from .child import CannotStart, check_program, run_child, without_proxies
from .event_loop import run_loop
from .opening import StoreOption, writable_store
from .settings import load_settings
from .summary import Summary, summarise
from .terminal import fail, note, this_command

if TYPE_CHECKING:
    from budwood.harness_adapters import Dialect, Pointing
    from budwood.proxy import ProxySettings
    from budwood.proxy.server import RunningProxy
    from budwood.trajectory_store import RolloutId, Store

NO_CALL = 65
UNAVAILABLE = 69
SETTLE_S = 5.0
"""How long calls that the ended command left open may take to be recorded."""
_SECRET_OPTION = re.compile(r"key|token|secret|password", re.IGNORECASE)


@dataclass(frozen=True)
class Wanted:
    """What is to be recorded, and how."""

    argv: tuple[str, ...]
    harness: str | None = None
    model: str | None = None
    name: str | None = None
    task: str | None = None
    labels: dict[str, str] = field(default_factory=dict[str, str])
    purpose: str = "record"
    history: str = "as-sent"
    home: Path | None = None
    """Where the harness's private home is kept; None: in a temporary folder, removed."""
    cwd: Path | None = None
    environment: Mapping[str, str] | None = None
    """What the command would have had; None: this process's."""


@dataclass(frozen=True)
class Recorded:
    """What came of it."""

    rollout_id: RolloutId
    status: int
    """The command's own."""
    pointing: Pointing
    summary: Summary
    refused: dict[str, int]
    """Calls in dialects that are not spoken yet."""

    @property
    def exit_code(self) -> int:
        """The status of `budwood record`."""
        return self.status if self.summary.n_calls else NO_CALL


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "record",
        options_metavar="[OPTIONS] -- COMMAND...",
        context_settings={"allow_extra_args": True, "allow_interspersed_args": False},
    )(record)


def record(
    ctx: typer.Context,
    harness: Annotated[
        str | None, typer.Option(help="How to point it, where its program's name does not tell.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="Base URL of the engine; several separated by commas."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Name told to the harness; default: the engine's own.")
    ] = None,
    history: Annotated[
        Literal["as-sent", "keep-reasoning"],
        typer.Option(help="Whether the model reads what the harness sent, or keeps its reasoning."),
    ] = "as-sent",
    purpose: Annotated[
        Literal["record", "eval", "train"],
        typer.Option(help="train: sampling is fixed by our settings; else it is the harness's."),
    ] = "record",
    name: Annotated[
        str | None, typer.Option(help="Name of the run; default: the program's.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Name of the task, to find it again.")] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="k=v, to find it again; may be repeated.")
    ] = None,
    home: Annotated[
        Path | None,
        typer.Option(help="Keep the harness's private home (its own logs) in this folder."),
    ] = None,
    list_harnesses: Annotated[
        bool, typer.Option("--list", help="List the harnesses that are known, and stop.")
    ] = False,
    store: StoreOption = None,
    config: Annotated[Path | None, typer.Option(help="Settings file (budwood.toml).")] = None,
) -> None:
    """Run a command and record every model call it makes, exactly.

    budwood record -- COMMAND... starts a proxy on a free port of 127.0.0.1, points the command at
    it (a known harness by a private home of its own, anything else by the usual variables), runs
    it as it is and prints what was recorded. Your own configuration is neither read nor changed.
    The exit code is the command's; 65: it made no call; 69: no engine or store, it was not
    started.
    """
    if list_harnesses:
        _list_harnesses()
        return
    if not ctx.args:
        fail("a command is needed: budwood record -- COMMAND...", 2)
    changes: dict[str, Any] = {"proxy": {"port": 0, "admin_port": 0, "open_rollouts": False}}
    if engine is not None:
        changes["proxy"]["engine"] = {"urls": engine}
    changes["store"] = {"url": store}
    settings = load_settings(config, changes)
    wanted = Wanted(
        argv=tuple(ctx.args),
        harness=harness,
        model=model,
        name=name,
        task=task,
        labels=_labels(label or ()),
        purpose=purpose,
        history=history,
        home=home,
    )
    from budwood.harness_adapters import UnknownHarness
    from budwood.proxy import ConfigurationError
    from budwood.proxy.engine import EngineError
    from budwood.trajectory_store import StoreError

    from .terminal import configure_logs

    # The terminal is the harness's: only what needs the user at once may be written to it.
    configure_logs(level="ERROR")
    try:
        with writable_store(settings.store) as opened:
            recorded = run_loop(record_command(wanted, settings.proxy, opened))
    except CannotStart as error:
        fail(str(error), error.status)
    except UnknownHarness as error:
        fail(str(error), 2)
    except EngineError as error:
        fail(f"{error}\n{_no_engine(settings.proxy)}", UNAVAILABLE)
    except (StoreError, ConfigurationError, OSError) as error:
        fail(str(error), UNAVAILABLE)
    report(recorded)
    raise typer.Exit(recorded.exit_code)


async def record_command(wanted: Wanted, settings: ProxySettings, store: Store) -> Recorded:
    """Run a command against a proxy of its own; `store` stays the caller's.

    Raises CannotStart, UnknownHarness, EngineError, ConfigurationError, StoreError.
    """
    from budwood.harness_adapters import Endpoint, adapter_named, adapter_of, point
    from budwood.proxy import running_proxy

    adapter = adapter_named(wanted.harness) if wanted.harness else adapter_of(wanted.argv)
    cwd = wanted.cwd or Path.cwd()
    check_program(wanted.argv[0], cwd, wanted.environment)
    with ExitStack() as stack:
        home = _home(wanted.home, stack)
        async with running_proxy(settings, store) as proxy:
            told = _told(wanted, proxy)
            rollout_id, secret = await _open(proxy, store, wanted, adapter.name, cwd, told)
            endpoint = Endpoint(base_url=proxy.rollout_url(secret), secret=secret, **told)
            pointing = point(wanted.argv, endpoint, home, cwd=cwd, harness=wanted.harness)
            pointing.write_files(home)
            environment = pointing.environment(
                without_proxies(os.environ if wanted.environment is None else wanted.environment)
            )
            try:
                status = await run_child(pointing.argv, environment, wanted.cwd)
            finally:
                refused = await _close(proxy, rollout_id)
    return Recorded(rollout_id, status, pointing, summarise(store, rollout_id), refused)


def _home(kept: Path | None, stack: ExitStack) -> Path:
    if kept is None:
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="budwood-", ignore_cleanup_errors=True)
        )
        return Path(folder)
    try:
        kept.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        from budwood.proxy import ConfigurationError

        text = f"--home {kept} can't be used as a folder: {error.strerror}"
        raise ConfigurationError(text) from error
    return kept.resolve()


def _told(wanted: Wanted, proxy: RunningProxy) -> dict[str, Any]:
    """Return what the harness is told of its model; kept with the run, for a replay."""
    from budwood.harness_adapters import told_of

    info = proxy.recorder.engine.info
    return asdict(told_of(info.served_model, info.max_model_len, model=wanted.model))


async def _open(
    proxy: RunningProxy,
    store: Store,
    wanted: Wanted,
    harness: str,
    cwd: Path,
    told: dict[str, Any],
) -> tuple[RolloutId, str]:
    from budwood.trajectory_store import History, Purpose

    info = proxy.recorder.engine.info
    run = await asyncio.to_thread(
        lambda: store.open_run(
            wanted.name or Path(wanted.argv[0]).name,
            purpose=Purpose(wanted.purpose),
            history=History(wanted.history),
            settings={
                "command": shown_command(wanted.argv),
                "cwd": str(cwd),
                "endpoint": told,
            },
            versions={
                "budwood": __version__,
                "python": platform.python_version(),
                "engine": f"{info.kind} {info.version or 'of unknown version'}",
            },
        )
    )
    rollout, secret = await proxy.rollouts.open(
        run=run,
        harness=harness,
        model=info.served_model,
        task=wanted.task,
        labels=wanted.labels,
    )
    return rollout.id, secret


async def _close(proxy: RunningProxy, rollout_id: RolloutId) -> dict[str, int]:
    """Close the rollout when its last calls are recorded; return what was refused."""
    try:
        async with asyncio.timeout(SETTLE_S):
            await proxy.recorder.idle()
    except TimeoutError:
        proxy.recorder.end_all()
        await proxy.recorder.idle()
    live = proxy.recorder.live.known(rollout_id)
    refused = dict(live.refused_doors) if live is not None else {}
    await proxy.rollouts.close(rollout_id)
    return refused


def shown_command(argv: tuple[str, ...]) -> str:
    """Return a command as text, with the values of options that look like secrets left out."""
    words: list[str] = []
    hides_next = False
    for word in argv:
        option, equals, _ = word.partition("=")
        is_secret = option.startswith("-") and bool(_SECRET_OPTION.search(option))
        if hides_next and not word.startswith("-"):
            words.append("***")
        elif is_secret and equals:
            words.append(f"{option}=***")
        else:
            words.append(word)
        hides_next = is_secret and not equals
    return shlex.join(words)


def _labels(given: list[str] | tuple[()]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            fail(f"--label {text!r}: a label is written k=v", 2)
        labels[name] = value
    return labels


def report(recorded: Recorded) -> None:
    """Say on stderr what was recorded, and where nothing was, what to try."""
    for dialect, count in recorded.refused.items():
        times = "once" if count == 1 else f"{count} times"
        note(
            f"budwood: {recorded.pointing.harness} asked in the {dialect} dialect {times}, which "
            "is not supported yet: this version speaks chat completions only."
        )
    if not recorded.summary.n_calls:
        note(_nothing(recorded))
        return
    note(f"budwood: recorded {recorded.rollout_id} ({recorded.pointing.harness})")
    for line in recorded.summary.lines():
        note(f"  {line}")
    note(f"  next      {_next(recorded.summary)}")


def _next(summary: Summary) -> str:
    """Return the commands that are of use now; there is nothing to export without exact calls."""
    if not summary.n_exact:
        return f"{this_command()} show last --why"
    return f"{this_command()} show last; {this_command()} export last --to trl-sft"


def _nothing(recorded: Recorded) -> str:
    pointing = recorded.pointing
    lines = [f"budwood: {recorded.rollout_id}: not one model call was recorded."]
    if recorded.refused:
        return lines[0]
    if recorded.status:
        lines.append(f"The command ended with status {recorded.status}: see its own output first.")
    if pointing.harness == "generic":
        names = ", ".join(name for name, value in pointing.env.items() if value)
        lines += [
            f"It was pointed by variables: {names}.",
            "It may not obey them: look for a base URL among its options or in its configuration,",
            "and give it $OPENAI_BASE_URL and $OPENAI_API_KEY as they stand in its environment.",
            "Is it one of the harnesses we know, under another name? budwood record --harness NAME",
            "(budwood record --list). Does it run in a container, or already in the background?",
            "Then start `budwood proxy --open` and point it there.",
        ]
    else:
        lines += [
            f"It was taken for {pointing.harness}, pointed by its own configuration.",
            "An option of the command may name another provider or model: leave it out.",
            "Is it another program of that name? budwood record --harness generic -- COMMAND",
        ]
    return "\n".join(lines)


def _no_engine(settings: ProxySettings) -> str:
    urls = ", ".join(settings.engine.urls)
    return (
        f"No engine answers at {urls}. Start one with `budwood engine MODEL` (--cpu without a "
        "GPU), or name another: --engine URL, or BUDWOOD_PROXY__ENGINE__URLS."
    )


def _dialect(dialect: Dialect | None) -> str:
    name = "chat" if dialect is None else dialect.value
    return name if name == "chat" else f"{name}: not recorded yet"


def _list_harnesses() -> None:
    from budwood.harness_adapters import ADAPTERS

    from .terminal import Screen

    Screen().table(
        ("harness", "programs", "dialect", "pointed by", "tested"),
        [
            (
                adapter.name,
                ", ".join(adapter.programs) or "any other",
                _dialect(adapter.dialect),
                adapter.pointed_by,
                adapter.tested or "-",
            )
            for adapter in ADAPTERS.values()
        ],
    )
