"""The way from a sandbox to the engine: who opens a rollout, and what is known when it has ended.

Three gateways, all reached by a Unix socket that sandboxes are given:

- `OwnProxy`: a recording proxy in this process, the usual one;
- `GivenProxy`: one that runs already, asked through its admin plane; a byte bridge gives it the
  socket where it has none of its own;
- `Direct` (`direct.py`): no recording at all, to compare with.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from budwood.harness_adapters import Told, told_of
from budwood.proxy import ProxySettings, running_proxy
from budwood.proxy.server import RunningProxy
from budwood.trajectory_store import Call, FailureClass, RolloutId, Run, Store

from .endings import CallFacts
from .errors import GatewayFailed, RunRefused

SETTLE_S = 30.0
"""How long calls that the ended harness left open may take to be recorded."""
LOOK_EVERY_S = 0.05
UP_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class Served:
    """The model that a gateway leads to."""

    name: str
    """The engine's own name of it."""
    told: Told
    engine: str
    """Kind and version."""
    spelling: str
    """Digests of tokenizer and template: another model under the same name may have others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A rollout that is to be opened; fields as `Store.open_rollout` takes them."""

    run: Run
    group_id: str
    attempt: int
    task: str
    harness: str
    harness_version: str | None
    labels: dict[str, Any] = field(default_factory=dict[str, Any])
    budgets: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Opened:
    """A rollout that calls can be made for."""

    id: RolloutId
    secret: str = field(repr=False)
    proxy: str | None = None
    """Which process of a proxy opened it, where that may change."""


@dataclass(frozen=True, slots=True)
class Unreached:
    """Calls that no proxy may have been there to record: it was started again meanwhile."""

    failure_class: FailureClass = FailureClass.OURS
    cause: str | None = "proxy_unreachable"


class Gateway(ABC):
    """Where the harnesses of a run make their model calls."""

    socket: Path
    """Unix socket for `Spec.proxy`."""
    served: Served

    @abstractmethod
    async def open(self, wanted: Wanted) -> Opened:
        """Open a rollout; raises GatewayFailed, StoreError."""

    @abstractmethod
    async def close(self, opened: Opened) -> Sequence[CallFacts]:
        """Close it when all its calls are recorded, and return them in their order.

        Whoever held its secret has ended before. Raises GatewayFailed, StoreError.
        """

    @abstractmethod
    async def until_up(self) -> None:
        """Return once the engine answers; the caller limits the time."""


class OwnProxy(Gateway):
    """A proxy in this process; `own_proxy` makes one."""

    def __init__(self, proxy: RunningProxy, store: Store, socket: Path, model: str | None) -> None:
        """Use a running proxy that listens on `socket` too."""
        self._proxy = proxy
        self._store = store
        self.socket = socket
        info = proxy.recorder.engine.info
        self.served = Served(
            name=info.served_model,
            told=told_of(info.served_model, info.max_model_len, model=model),
            engine=f"{info.kind} {info.version or 'of unknown version'}",
            spelling=f"{info.tokenizer_hash}/{info.template_hash}",
        )

    @property
    def admin_url(self) -> str:
        """Its admin plane, for whoever announces new weights."""
        return self._proxy.admin_url

    @property
    def admin_secret(self) -> str:
        """The admin plane's bearer secret."""
        return self._proxy.admin_secret

    async def open(self, wanted: Wanted) -> Opened:
        """Open a rollout."""
        rollout, secret = await self._proxy.rollouts.open(
            run=wanted.run, model=self.served.name, **fields_of(wanted)
        )
        return Opened(rollout.id, secret)

    async def close(self, opened: Opened) -> Sequence[CallFacts]:
        """Close it and return its calls."""
        calls = await settled_calls(self._store, opened.id)
        await self._proxy.rollouts.close(opened.id)
        return calls

    async def until_up(self) -> None:
        """Return once the engine answers."""
        while True:
            if await self._proxy.recorder.engine.is_healthy():
                return
            await asyncio.sleep(UP_EVERY_S)


@asynccontextmanager
async def own_proxy(
    settings: ProxySettings, store: Store, *, model: str | None = None
) -> AsyncIterator[OwnProxy]:
    """Run a proxy as long as the context is open.

    Raises EngineError (the engine does not answer), ConfigurationError, StoreError.
    """
    with tempfile.TemporaryDirectory(prefix="budwood-run-") as folder:
        socket = Path(folder) / "proxy.sock"
        changed = settings.model_copy(update={"port": 0, "admin_port": 0, "socket": socket})
        async with running_proxy(changed, store) as proxy:
            yield OwnProxy(proxy, store, socket, model)


class GivenProxy(Gateway):
    """A proxy that somebody else runs, on the same store; `given_proxy` makes one."""

    def __init__(
        self, url: str, admin_url: str, session: aiohttp.ClientSession, store: Store,
        socket: Path, served: Served,
    ) -> None:  # fmt: skip
        """Ask a proxy's admin plane; `session` carries its secret."""
        self._url = url
        self._admin_url = admin_url
        self._session = session
        self._store = store
        self.socket = socket
        self.served = served

    async def open(self, wanted: Wanted) -> Opened:
        """Open a rollout of the run that is in the store."""
        body = {"run_id": wanted.run.id, "model": self.served.name, **fields_of(wanted)}
        answer = await self._ask("/admin/rollouts", body)
        return Opened(RolloutId(answer["rollout_id"]), answer["secret"], answer.get("proxy"))

    async def close(self, opened: Opened) -> Sequence[CallFacts]:
        """Close it and return its calls."""
        calls = await settled_calls(self._store, opened.id)
        answer = await self._ask(f"/admin/rollouts/{opened.id}/close", {})
        was_restarted = answer.get("proxy") != opened.proxy
        if was_restarted and (not calls or calls[-1].failure_class is FailureClass.NONE):
            # A harness that gave up now did so over calls that nobody recorded.
            return [*calls, Unreached()]
        return calls

    async def until_up(self) -> None:
        """Return once the proxy says that it and its engine are up."""
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with self._session.get(f"{self._url}/health") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(UP_EVERY_S)

    async def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            async with self._session.post(f"{self._admin_url}{path}", json=body) as answer:
                if answer.status >= 400:
                    text = f"the proxy refused {path}: {answer.status} {await answer.text()}"
                    raise GatewayFailed(text, FailureClass.OURS, "proxy_refused")
                return await answer.json()
        except (aiohttp.ClientError, TimeoutError) as error:
            text = f"the proxy's admin plane at {self._admin_url} does not answer: {error}"
            raise GatewayFailed(text, FailureClass.OURS, "proxy_unreachable") from error


@asynccontextmanager
async def given_proxy(
    url: str,
    admin_url: str,
    admin_secret: str,
    store: Store,
    *,
    socket: Path | None = None,
    model: str | None = None,
) -> AsyncIterator[GivenProxy]:
    """Use a proxy that runs already, on the same store as `store`.

    socket: the proxy's own Unix socket (its setting `proxy.socket`), if it has one.
    Raises RunRefused where it does not answer or is not to be used.
    """
    async with AsyncExitStack() as stack:
        headers = {"Authorization": f"Bearer {admin_secret}"}
        limit = aiohttp.ClientTimeout(total=60.0)
        session = await stack.enter_async_context(
            aiohttp.ClientSession(headers=headers, timeout=limit)
        )
        served = await _served_by(session, admin_url.rstrip("/"), model)
        if socket is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="budwood-run-"))
            socket = Path(folder) / "proxy.sock"
            await stack.enter_async_context(bridge(socket, url))
        yield GivenProxy(url.rstrip("/"), admin_url.rstrip("/"), session, store, socket, served)


async def _served_by(session: aiohttp.ClientSession, admin_url: str, model: str | None) -> Served:
    """Ask a proxy what it serves; raises RunRefused."""
    try:
        async with session.get(f"{admin_url}/admin/engine") as answer:
            if answer.status == 401:
                raise RunRefused(f"{admin_url} wants its secret: set BUDWOOD_PROXY__ADMIN_SECRET")
            if answer.status != 200:
                text = f"the proxy's admin plane at {admin_url} answers {answer.status}"
                raise RunRefused(f"{text}: {await answer.text()}")
            info = await answer.json()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        text = f"no proxy answers at {admin_url} ({error}): start one with `budwood proxy`"
        raise RunRefused(text) from error
    return Served(
        name=info["served_model"],
        told=told_of(info["served_model"], info["max_model_len"], model=model),
        engine=f"{info['kind']} {info['version'] or 'of unknown version'}",
        spelling=f"{info['tokenizer_hash']}/{info['template_hash']}",
    )


@asynccontextmanager
async def bridge(socket: Path, url: str) -> AsyncIterator[None]:
    """Pass bytes between a Unix socket and a TCP address as long as the context is open."""
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.write_eof()
        except OSError:
            writer.close()

    async def relay(inner: asyncio.StreamReader, inner_out: asyncio.StreamWriter) -> None:
        with contextlib.closing(inner_out):
            try:
                outer, outer_out = await asyncio.open_connection(host, port)
            except OSError:
                return
            with contextlib.closing(outer_out):
                async with asyncio.TaskGroup() as ways:
                    ways.create_task(copy(inner, outer_out))
                    ways.create_task(copy(outer, inner_out))

    async with await asyncio.start_unix_server(relay, socket):
        yield


async def settled_calls(store: Store, rollout_id: RolloutId) -> Sequence[CallFacts]:
    """Return a rollout's calls once none is open; those that stay open are told as they are.

    The harness has ended: what it left open ends as soon as the proxy notices that it hung up.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SETTLE_S):
            while any(call.state.is_open for call in await _calls(store, rollout_id)):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_EVERY_S)  # the proxy may be another process: no event
    found = await _calls(store, rollout_id)
    # Those without a result have no place in the order: they come last.
    found.sort(key=lambda call: (call.seq is None, call.seq or 0))
    return found


async def _calls(store: Store, rollout_id: RolloutId) -> list[Call]:
    return await asyncio.to_thread(store.calls, rollout_id)


def fields_of(wanted: Wanted) -> dict[str, Any]:
    """Return what `Store.open_rollout` takes, but for the run and the model."""
    return {
        "group_id": wanted.group_id,
        "attempt": wanted.attempt,
        "task": wanted.task,
        "harness": wanted.harness,
        "harness_version": wanted.harness_version,
        "labels": wanted.labels,
        "budgets": wanted.budgets,
    }
