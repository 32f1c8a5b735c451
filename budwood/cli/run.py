"""`budwood run`: tasks by harnesses in sandboxes, graded.

Exit codes: 0 every attempt has an outcome that counts, whatever its reward; 1 some have none, for
all retries; 2 the command line, a task or a setting cannot be read, or the run is going on
elsewhere; 69 the engine, the store, the proxy or the sandboxes cannot be used; 130 Ctrl-C or
SIGTERM ended it: the same command goes on with it.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .event_loop import run_until_ended
from .opening import StoreOption, writable_store
from .run_report import as_json, show
from .settings import load_settings, logs_beside
from .task_folders import (
    AsLocalOption,
    PassAtOption,
    RewardOption,
    SplitOption,
    VarOption,
    tasks_in,
    variables_of,
)
from .terminal import fail, note, this_command

if TYPE_CHECKING:
    from budwood.proxy import ProxySettings
    from budwood.rollouts.attempt import Tried
    from budwood.rollouts.gateway import Gateway
    from budwood.rollouts.harnesses import Harness
    from budwood.rollouts.run import Plan
    from budwood.trajectory_store import Run, Store

INCOMPLETE, UNAVAILABLE, INTERRUPTED = 1, 69, 130


@dataclass(frozen=True)
class Way:
    """How the harnesses of the run reach the engine."""

    is_direct: bool
    proxy_url: str | None
    admin_url: str | None
    socket: Path | None
    model: str | None


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("run")(run)


def run(
    task: Annotated[
        list[Path], typer.Option(help="Folder of a task or a template; may be repeated.")
    ],
    harness: Annotated[
        list[str],
        typer.Option(help="NAME, or NAME=FOLDER of its installation; may be repeated."),
    ],
    engine: Annotated[str | None, typer.Option(help="Base URL of the engine.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Name told to the harnesses; default: the engine's own.")
    ] = None,
    attempts: Annotated[int, typer.Option(help="At each task by each harness.", min=1)] = 1,
    concurrency: Annotated[int, typer.Option(help="Rollouts at a time.", min=1)] = 1,
    purpose: Annotated[
        Literal["train", "eval"],
        typer.Option(help="train: sampling is fixed by our settings; else it is the harness's."),
    ] = "eval",
    history: Annotated[
        Literal["as-sent", "keep-reasoning"],
        typer.Option(help="Whether the model reads what the harness sent, or keeps its reasoning."),
    ] = "as-sent",
    name: Annotated[str, typer.Option(help="Name of the run.")] = "run",
    new: Annotated[
        bool, typer.Option("--new", help="Begin anew even where this very run is in the store.")
    ] = False,
    split: SplitOption = None,
    reward: RewardOption = None,
    pass_at: PassAtOption = 1.0,
    k: Annotated[
        list[int] | None, typer.Option("--pass-k", help="k of pass@k; may be repeated.", min=1)
    ] = None,
    timeout_s: Annotated[
        float | None,
        typer.Option(help="Seconds an agent may take; default: the task's.", min=0.001),
    ] = None,
    max_turns: Annotated[
        int | None, typer.Option(help="Turns an agent may take; default: its harness's.", min=1)
    ] = None,
    retries: Annotated[
        int, typer.Option(help="How often what was not the policy's doing is tried again.", min=0)
    ] = 2,
    var: VarOption = None,
    as_local: AsLocalOption = False,
    direct: Annotated[
        bool,
        typer.Option("--direct", help="Without the proxy: nothing is recorded, only compared."),
    ] = False,
    keep_requests: Annotated[
        Path | None, typer.Option(help="With --direct: keep every request's body in this folder.")
    ] = None,
    proxy: Annotated[
        str | None, typer.Option(help="URL of a proxy that runs already, on the same store.")
    ] = None,
    admin: Annotated[str | None, typer.Option(help="URL of its admin plane.")] = None,
    proxy_socket: Annotated[
        Path | None, typer.Option(help="Its Unix socket, if it has one.")
    ] = None,
    logs: Annotated[
        Path | None, typer.Option(help="Folder for outputs and logs; default: beside the store.")
    ] = None,
    json_out: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    store: StoreOption = None,
    config: Annotated[Path | None, typer.Option(help="Settings file (budwood.toml).")] = None,
) -> None:
    """Run tasks by harnesses in sandboxes, grade them, and say what came of it.

    Each attempt gets a fresh sandbox that reaches the proxy and nothing else. Repeat the same
    command to go on with an interrupted run: what is finished is not run again. What was not the
    policy's doing is tried again and never counts.
    """
    changes: dict[str, Any] = {"proxy": {}, "store": {"url": store}}
    if engine is not None:
        changes["proxy"]["engine"] = {"urls": engine}
    settings = load_settings(config, changes)
    if direct and (proxy or purpose == "train"):
        fail("--direct records nothing: it goes neither with --proxy nor with --purpose train", 2)
    if bool(proxy) != bool(admin):
        fail("--proxy and --admin go together: a proxy's two URLs", 2)
    if keep_requests and not direct:
        fail("--keep-requests is for --direct: a recorded run keeps its requests in the store", 2)
    from budwood.harness_adapters import HarnessError
    from budwood.proxy import ConfigurationError
    from budwood.proxy.engine import EngineError
    from budwood.rollouts import MissingVariable, RolloutError, RunRefused
    from budwood.rollouts.attempt import Rules
    from budwood.rollouts.report import report_of
    from budwood.rollouts.run import Plan
    from budwood.sandbox import SandboxError
    from budwood.trajectory_store import History, Purpose, StoreError

    from .terminal import configure_logs

    configure_logs(level="ERROR")
    way = Way(direct, proxy, admin, proxy_socket, model)
    unusable = (EngineError, StoreError, ConfigurationError, SandboxError, OSError)
    told = _Told()
    is_ended = True
    try:
        with TemporaryDirectory(prefix="budwood-tasks-") as workspace:
            plan = Plan(
                name=name,
                tasks=tasks_in(task, Path(workspace), split, as_local),
                harnesses=[_harness(given) for given in harness],
                attempts=attempts,
                purpose=Purpose(purpose),
                history=History(history),
                rules=Rules(
                    reward_key=reward,
                    pass_at=pass_at,
                    timeout_s=timeout_s,
                    max_turns=max_turns,
                    variables=variables_of(var or []),
                ),
                settings={
                    "way": "direct" if direct else "proxy",
                    "sampling": settings.proxy.sampling.model_dump()
                    if purpose == "train"
                    else None,
                },
                is_new=new,
            )
            with writable_store(settings.store) as opened:
                folder = logs or logs_beside(settings.store.url)
                with told.progress():
                    run_until_ended(
                        _carry_out(
                            plan, settings.proxy, opened, folder, way, told,
                            concurrency=concurrency, retries=retries, requests=keep_requests,
                        )
                    )  # fmt: skip
                is_ended = told.is_ended
                if told.run is None:
                    fail("ended before the run began", INTERRUPTED)
                report = report_of(opened, told.run, ks=k or (), pass_at=pass_at)
                if json_out:
                    typer.echo(as_json(report, folder / told.run.id))
                else:
                    show(report)
                    note(f"outputs and logs: {folder / told.run.id}")
    except (ExceptionGroup, RolloutError, HarnessError, *unusable) as failed:
        error = _first(failed)
        if isinstance(error, RunRefused | HarnessError | MissingVariable):
            fail(str(error), 2)
        if isinstance(error, EngineError):
            fail(f"{error}\nNo engine to run on: --engine URL, or `budwood engine`.", UNAVAILABLE)
        if isinstance(error, unusable):
            fail(str(error), UNAVAILABLE)
        raise
    if not is_ended:
        note("ended before all attempts were made; the same command goes on with them")
        raise typer.Exit(INTERRUPTED)
    if not report.is_complete:
        note(f"some attempts have no outcome that counts: {this_command()} run … tries them again")
        raise typer.Exit(INCOMPLETE)


async def _carry_out(
    plan: Plan,
    settings: ProxySettings,
    store: Store,
    folder: Path,
    way: Way,
    told: _Told,
    *,
    concurrency: int,
    retries: int,
    requests: Path | None,
) -> None:
    from budwood.rollouts.run import carry_out
    from budwood.sandbox import LocalSettings, backend_named

    local = LocalSettings(max_sandboxes=max(concurrency, 64))
    async with (
        backend_named("local", local) as backend,
        _gateway(way, settings, store, requests) as gateway,
    ):
        await carry_out(
            plan, store, backend, gateway, folder,
            concurrency=concurrency, retries=retries,
            on_begin=told.begin, on_tried=told.tried,
        )  # fmt: skip
    told.is_ended = True


@asynccontextmanager
async def _gateway(
    way: Way, settings: ProxySettings, store: Store, requests: Path | None
) -> AsyncIterator[Gateway]:
    from budwood.rollouts.direct import direct
    from budwood.rollouts.gateway import given_proxy, own_proxy

    if way.is_direct:
        url = settings.engine.urls[0]
        async with direct(url, store, model=way.model, requests=requests) as relay:
            yield relay
    elif way.proxy_url is not None:
        assert way.admin_url is not None
        secret = settings.admin_secret.get_secret_value() if settings.admin_secret else ""
        async with given_proxy(
            way.proxy_url, way.admin_url, secret, store, socket=way.socket, model=way.model
        ) as given:
            yield given
    else:
        async with own_proxy(settings, store, model=way.model) as own:
            yield own


@dataclass
class _Told:
    """What is shown while the run goes on, and kept for its end."""

    run: Run | None = None
    is_ended: bool = False
    n_done: int = 0
    n_all: int = 0
    _bar: Any = field(default=None, repr=False)
    _bar_id: Any = field(default=None, repr=False)

    def begin(self, run: Run, n_all: int, n_before: int) -> None:
        """Take the run."""
        self.run, self.n_all, self.n_done = run, n_all, n_before
        if n_before:
            note(f"budwood: going on with {run.id}: {n_before} of {n_all} attempts are finished")
        if self._bar is not None:
            self._bar.update(self._bar_id, total=n_all, completed=n_before)

    def tried(self, tried: Tried, is_again: bool) -> None:
        """Say what came of a try."""
        self.n_done += not is_again
        judged, planned = tried.judged, tried.planned
        text = "no reward" if judged.reward is None else f"reward {judged.reward:g}"
        if judged.cause:
            text += f", {judged.failure_class.value}: {judged.cause}"
        if is_again:
            text += ", trying again"
        line = f"{planned.task.name} by {planned.harness.name}, attempt {planned.attempt}: {text}"
        if judged.reward is None and judged.why:
            line += f" ({judged.why[:300]})"
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False)
            self._bar.update(self._bar_id, completed=self.n_done)
        else:
            note(f"[{self.n_done}/{self.n_all}] {line}")

    @contextmanager
    def progress(self) -> Iterator[None]:
        """Show a bar on a terminal."""
        if not sys.stderr.isatty():
            yield
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        columns = (TextColumn("rollouts"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            self._bar, self._bar_id = bar, bar.add_task("", total=None)
            yield
        self._bar = None


def _harness(given: str) -> Harness:
    from budwood.rollouts.harnesses import harness_named

    name, equals, folder = given.partition("=")
    return harness_named(name, Path(folder) if equals else None)


def _first(failed: Exception) -> Exception:
    """Return the first error of a group, however deep."""
    while isinstance(failed, ExceptionGroup):
        failed = failed.exceptions[0]
    return failed
