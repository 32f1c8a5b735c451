"""A real proxy in this process, for tests: real sockets, a real store, any engine by its URL."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from budwood.trajectory_store import History, Purpose, RolloutId, Store

from ..engine import EngineSettings
from ..recording.steps import Observer
from ..server import RunningProxy, running_proxy
from ..settings import ProxySettings


@dataclass(frozen=True, slots=True)
class OpenedRollout:
    """A rollout to send calls to."""

    id: RolloutId
    secret: str
    base_url: str
    """With `/v1`; identifies the rollout by its path, whatever the API key."""


@dataclass(slots=True)
class TestProxy:
    """A proxy that listens on free ports of 127.0.0.1."""

    __test__ = False

    running: RunningProxy
    store: Store

    @property
    def url(self) -> str:
        """Address of the harness plane, without `/v1`."""
        return self.running.url

    @property
    def admin_url(self) -> str:
        """Address of the admin plane."""
        return self.running.admin_url

    async def settled(self) -> None:
        """Return once no call is in flight and every record, deliveries too, is written."""
        await self.running.recorder.idle()
        await self.running.recorder.ledger.flushed()

    async def open_rollout(
        self,
        *,
        run: str = "test",
        purpose: Purpose = Purpose.RECORD,
        history: History = History.AS_SENT,
        **fields: Any,
    ) -> OpenedRollout:
        """A new rollout; `fields` as `Store.open_rollout` takes them."""
        opened = await self.running.admin.run(run, purpose, history)
        rollout, secret = await self.running.rollouts.open(run=opened, **fields)
        return OpenedRollout(rollout.id, secret, self.running.rollout_url(secret))


@asynccontextmanager
async def proxy_for_tests(
    engine_url: str, store: Store, *, observer: Observer | None = None, **settings: Any
) -> AsyncIterator[TestProxy]:
    """A proxy before the engine at `engine_url`; `settings` as ProxySettings takes them."""
    engine = settings.pop("engine", None) or EngineSettings(urls=(engine_url,))
    values = {"port": 0, "admin_port": 0, "drain_s": 5.0, "seed": 1, **settings}
    proxy_settings = ProxySettings(engine=engine, **values)
    async with running_proxy(proxy_settings, store, observer=observer) as running:
        yield TestProxy(running, store)
