"""The running proxy: two listeners, one recorder, and an orderly end.

Start: probe the engine, then listen. Stop: no new connections, calls in flight may end until
`drain_s`, the rest is recorded as aborted, what the store refused is tried once more. A second
signal ends the process at once; what is on disk is right at every moment anyway.
"""

import asyncio
import contextlib
import ipaddress
import os
import random
import secrets
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog
from aiohttp import web

from budwood.trajectory_store import Store

from .admin import Admin
from .doors.connections import AppRunner, Server
from .doors.routes import Doors
from .engine import Engine, EngineError, EngineInfo
from .errors import ConfigurationError
from .lineage.lineage import Spelling
from .lineage.suffix import SuffixFinder
from .metrics import Metrics
from .recording.live import ASK_EVERY_S, LiveRollouts
from .recording.recorder import Recorder
from .recording.rendering import EngineRenderer
from .recording.steps import Observer
from .rollouts import Rollouts
from .settings import ProxySettings
from .tasks import Tasks

log = structlog.get_logger()

PROBE_EVERY_S = 2.0
"""Pause between probes while the engine does not answer."""

RECORD_S = 30.0
"""How long a shutdown waits for ended calls to be recorded: the store may be busy meanwhile."""

LOOK_EVERY_S = 5.0
"""How often an engine that answers is looked at: a restart takes longer."""


@dataclass(slots=True)
class RunningProxy:
    """A proxy that listens: where, and the parts that its owner may use directly."""

    url: str
    admin_url: str
    admin_secret: str
    recorder: Recorder
    rollouts: Rollouts
    admin: Admin

    def rollout_url(self, secret: str) -> str:
        """The base URL (with `/v1`) that names a rollout by its path alone."""
        return f"{self.url}/r/{secret}/v1"


def check_settings(settings: ProxySettings) -> None:
    """Refuse settings that would let strangers in; raises ConfigurationError."""
    if is_loopback(settings.host):
        return
    if settings.open_rollouts:
        raise ConfigurationError(
            f"--open lets any key in and is for loopback only; {settings.host} is not. "
            "Open rollouts through the admin plane instead."
        )
    if settings.admin_secret is None:
        raise ConfigurationError(
            f"Listening on {settings.host} needs keys: set BUDWOOD_PROXY__ADMIN_SECRET, then open "
            "rollouts with POST /admin/rollouts, or listen on 127.0.0.1."
        )


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@asynccontextmanager
async def running_proxy(
    settings: ProxySettings,
    store: Store,
    *,
    observer: Observer | None = None,
    wait_for_engine: bool = False,
) -> AsyncIterator[RunningProxy]:
    """A proxy that listens as long as the context is open; `store` stays the caller's.

    Raises ConfigurationError, EngineError (the engine does not answer, unless
    `wait_for_engine`), OSError (the port is taken).
    """
    check_settings(settings)
    rng = random.Random(settings.seed) if settings.seed is not None else random.SystemRandom()
    secret = settings.admin_secret
    admin_secret = secret.get_secret_value() if secret else secrets.token_urlsafe(32)
    metrics = Metrics()
    n_lost = await asyncio.to_thread(store.sweep)
    if n_lost:
        log.warning("calls of a dead process are lost", n_calls=n_lost)
    async with contextlib.AsyncExitStack() as stack:
        engine = await stack.enter_async_context(Engine(settings.engine))
        live = LiveRollouts(store, renderer=None, finder=None, cache_tokens=settings.cache_tokens)
        tasks = await stack.enter_async_context(Tasks())
        recorder = Recorder(
            settings, store, engine, live, metrics,
            spawn=tasks.spawn, rng=rng, observer=observer,
        )  # fmt: skip
        rollouts = Rollouts(store, live, open_unknown=settings.open_rollouts)
        engine.on_change = lambda info: _use(info, recorder, rng)
        prober = await _meet_engine(recorder, rng, tasks, wait=wait_for_engine)
        watcher = tasks.spawn(_watch(engine))
        admin = Admin(recorder, rollouts, admin_secret)
        harness_runner = web.ServerRunner(
            Server(
                Doors(recorder, rollouts),
                head_s=settings.head_s,
                handler_cancellation=True,
                access_log=None,
                auto_decompress=False,
            )
        )
        admin_runner = AppRunner(admin.app(), head_s=settings.head_s)
        if await live.is_shared():
            # Until the others have noticed us, they would miss the calls we take.
            await asyncio.sleep(2 * ASK_EVERY_S)
        url = await _listen(stack, harness_runner, settings.host, settings.port)
        admin_url = await _listen(stack, admin_runner, settings.host, settings.admin_port)
        if settings.socket is not None:
            await _listen_on_socket(stack, harness_runner, settings.socket)
        try:
            yield RunningProxy(url, admin_url, admin_secret, recorder, rollouts, admin)
        finally:
            watcher.cancel()
            await _drain(recorder, harness_runner, prober, settings.drain_s)


async def _meet_engine(
    recorder: Recorder, rng: random.Random, tasks: Tasks, *, wait: bool
) -> asyncio.Task | None:
    """Probe the engine now; if it does not answer, raise or keep trying in the background."""
    try:
        await _probe(recorder, rng)
        return None
    except EngineError as error:
        if not wait:
            raise
        log.warning("the engine does not answer yet", error=str(error))
        return tasks.spawn(_probe_until_up(recorder, rng))


async def _probe_until_up(recorder: Recorder, rng: random.Random) -> None:
    while True:
        await asyncio.sleep(PROBE_EVERY_S)
        try:
            await _probe(recorder, rng)
        except EngineError:
            continue
        return


async def _probe(recorder: Recorder, rng: random.Random) -> None:
    """Learn what the engine can do; lineage renders through it where it can."""
    info = await recorder.engine.probe()
    recorder.is_ready = True
    _use(info, recorder, rng)


async def _watch(engine: Engine) -> None:
    """Notice that an engine was gone although nobody called it meanwhile."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        await engine.look()


def _use(info: EngineInfo, recorder: Recorder, rng: random.Random) -> None:
    """Render through the engine that was found; what was learned of another is let go."""
    renderer = finder = None
    if info.can_render and info.takes_ids:
        renderer = EngineRenderer(recorder.engine)
        finder = SuffixFinder(
            renderer,
            strict=recorder.settings.strict_templates,
            audit_share=recorder.settings.audit_share,
            rng=rng,
        )
    spelling = Spelling(info.template_hash, info.tokenizer_hash)
    recorder.live.set_renderer(renderer, finder, spelling)
    log.info(
        "engine probed",
        kind=info.kind, version=info.version, model=info.served_model, way_in=info.way_in,
        max_model_len=info.max_model_len, problems=list(info.problems),
    )  # fmt: skip


async def _listen(
    stack: contextlib.AsyncExitStack, runner: web.BaseRunner, host: str, port: int
) -> str:
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, host, port, backlog=4096)
    try:
        await site.start()
    except OSError as error:
        raise ConfigurationError(
            f"{host}:{port} can't be listened on ({os.strerror(error.errno or 0)}): stop what is "
            "there, or choose another port (proxy.port, proxy.admin_port)"
        ) from error
    taken = runner.addresses[0][1]
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{taken}"


async def _listen_on_socket(
    stack: contextlib.AsyncExitStack, runner: web.BaseRunner, path: Path
) -> None:
    """Listen on a Unix socket that its owner alone may use, and take it away at the end."""
    hint = f"choose another path than {path} (proxy.socket)"
    if await asyncio.to_thread(_is_listened_on, path):
        raise ConfigurationError(f"another process listens on this socket: stop it, or {hint}")
    try:
        await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True, mode=0o700)
        await web.UnixSite(runner, str(path), backlog=4096).start()
        made = await asyncio.to_thread(_made_private, path)
    except OSError as error:
        # A path of over 107 bytes has no errno, only a text.
        why = os.strerror(error.errno) if error.errno else str(error)
        raise ConfigurationError(f"no socket can be listened on there ({why}): {hint}") from error

    def remove() -> None:
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), made):
                path.unlink()

    stack.callback(remove)


def _made_private(path: Path) -> os.stat_result:
    path.chmod(0o600)
    return path.stat()


def _is_listened_on(path: Path) -> bool:
    """Whether somebody takes connections on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as tried:
        tried.settimeout(5.0)
        try:
            tried.connect(str(path))
        except OSError:
            return False
        return True


async def _drain(
    recorder: Recorder, runner: web.ServerRunner, prober: asyncio.Task | None, drain_s: float
) -> None:
    """Stop accepting, let calls end until `drain_s`, end the rest, record what is left."""
    recorder.is_stopping = True
    if prober is not None:
        prober.cancel()
    for site in list(runner.sites):
        await site.stop()
    try:
        async with asyncio.timeout(drain_s):
            await recorder.idle()
    except TimeoutError:
        log.warning("calls ended by the shutdown", n_calls=recorder.n_in_flight)
        recorder.end_all()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RECORD_S):
                await recorder.idle()
        if recorder.n_in_flight:
            log.error("calls not recorded as ended", n_calls=recorder.n_in_flight)
    await recorder.ledger.settle()
    await recorder.ledger.flushed()


async def serve(settings: ProxySettings, store: Store) -> None:
    """Run a proxy until SIGTERM or SIGINT; a second signal ends the process at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask_to_stop(number: int) -> None:
        if stop.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask_to_stop, number)
    async with running_proxy(settings, store, wait_for_engine=True) as proxy:
        log.info("proxy listening", url=proxy.url, admin_url=proxy.admin_url)
        await stop.wait()
        log.info("proxy stopping", drain_s=settings.drain_s)
