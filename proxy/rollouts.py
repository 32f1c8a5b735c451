"""Opening, finding and closing rollouts: what every door asks first."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

import structlog
from aiohttp import web

from budwood.trajectory_store import History, Purpose, Rollout, RolloutId, Run, Store

from .errors import NotIdentified
from .identity import carried_keys, hash_secret, identify, new_secret, open_name, split_path
from .recording.live import ASK_EVERY_S, LiveRollout, LiveRollouts

log = structlog.get_logger()

MAX_KNOWN_KEYS = 100_000
"""Key hashes remembered in memory; beyond it all are forgotten and read from the store again."""


class Rollouts:
    """The rollouts of one proxy, by key hash; the store is the truth, this only saves reads."""

    def __init__(self, store: Store, live: LiveRollouts, *, open_unknown: bool) -> None:
        """Find rollouts in `store`; with `open_unknown`, an unknown key opens one."""
        self._store = store
        self._live = live
        self._open_unknown = open_unknown
        self._by_hash: dict[bytes, Rollout] = {}
        self._read_at: dict[bytes, float] = {}
        self._open_run: Run | None = None
        self._opening = asyncio.Lock()

    async def identify(self, request: web.BaseRequest) -> LiveRollout:
        """The live rollout of a request; raises NotIdentified (401, or 403 when closed)."""
        path_secret, _ = split_path(request.path)
        keys = [key for key in (path_secret, *carried_keys(request.headers, request.query)) if key]
        if not keys:
            raise NotIdentified(
                401, "No key: set the API key to a rollout's secret, or use the path /r/<secret>."
            )
        hashes = [hash_secret(key) for key in keys]
        unknown = [h for h in hashes if h not in self._by_hash]
        if not unknown and await self._live.is_shared():
            # Another process may have closed it.
            now = time.monotonic()
            unknown = [h for h in hashes if now - self._read_at.get(h, 0.0) >= ASK_EVERY_S]
        if unknown:
            await asyncio.to_thread(self._look_up, unknown)
        rollout = identify(path_secret, request.headers, request.query, self._by_hash.get)
        if rollout is None:
            if not self._open_unknown:
                raise NotIdentified(401, "This key belongs to no open rollout.")
            rollout = await self._open_for(keys[0])
        if rollout.state == "closed":
            self._live.drop(rollout.id)
        self._check_usable(rollout)
        return await self._live.get(rollout)

    async def open(
        self,
        *,
        run: Run,
        secret: str | None = None,
        **fields: Any,
    ) -> tuple[Rollout, str]:
        """A new rollout of `run` and its secret; `fields` as `Store.open_rollout` takes them."""
        secret = secret or new_secret()
        key_hash = hash_secret(secret)
        rollout = await asyncio.to_thread(
            lambda: self._store.open_rollout(run.id, key_hash=key_hash, **fields)
        )
        self._by_hash[key_hash] = rollout
        return rollout, secret

    async def open_run(
        self, name: str, *, purpose: Purpose = Purpose.RECORD, history: History = History.AS_SENT
    ) -> Run:
        """A new run."""
        return await asyncio.to_thread(
            lambda: self._store.open_run(name, purpose=purpose, history=history)
        )

    async def close(self, rollout_id: RolloutId) -> None:
        """Close a rollout: its key answers 403 from now on."""
        await asyncio.to_thread(self._store.close_rollout, rollout_id)
        closed = await asyncio.to_thread(self._store.rollout, rollout_id)
        if closed.key_hash is not None:
            self._by_hash[closed.key_hash] = closed
        self._live.drop(rollout_id)

    def _look_up(self, hashes: list[bytes]) -> None:
        if len(self._by_hash) > MAX_KNOWN_KEYS:
            self._by_hash.clear()
            self._read_at.clear()
        for key_hash in hashes:
            rollout = self._store.rollout_by_key(key_hash)
            if rollout is not None:
                self._by_hash[key_hash] = rollout
                self._read_at[key_hash] = time.monotonic()

    async def _open_for(self, secret: str) -> Rollout:
        """Open a rollout for an unknown key (loopback and `open_rollouts` only)."""
        async with self._opening:
            known = self._by_hash.get(hash_secret(secret))
            if known is not None:
                return known
            if self._open_run is None:
                self._open_run = await self.open_run("open")
            name = open_name(secret)
            rollout, _ = await self.open(run=self._open_run, secret=secret, labels={"name": name})
            log.info("rollout opened by an unknown key", rollout_id=rollout.id, name=name)
            return rollout

    @staticmethod
    def _check_usable(rollout: Rollout) -> None:
        if rollout.state == "closed":
            raise NotIdentified(403, "This rollout is closed.")
        if rollout.expires_at is not None and rollout.expires_at <= datetime.now(UTC):
            raise NotIdentified(401, "This rollout's key has expired.")
