"""New weights into an engine: the order, and every failure, on a scripted engine and proxy."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from pydantic import SecretStr

from budwood.trainers import (
    SyncFailed,
    SyncSettings,
    WeightSync,
)
from budwood.trainers.weight_sync import Served


class Scripted:
    """Answers the routes of an engine and of an admin plane; some fail, the n-th time or always."""

    def __init__(self, fails=()):
        self.fails = dict(fails)
        self.seen = []
        self.paused = False
        self.serves = "/weights/0"
        self.announced = 0
        self.url = ""

    async def answer(self, request):
        body = await request.text()
        said = json.loads(body) if body else dict(request.query)
        path = request.path
        self.seen.append((path, said))
        left = self.fails.get(path, 0)
        if left:
            self.fails[path] = left - 1
            return web.json_response({"error": "scripted"}, status=500)
        match path:
            case "/pause":
                assert said == {"mode": "keep"}
                self.paused = True
            case "/collective_rpc":
                assert self.paused
                self.serves = said["kwargs"]["weights_path"]
                await asyncio.sleep(0.05)
            case "/reset_prefix_cache":
                return web.json_response({"success": True})
            case "/resume":
                self.paused = False
            case "/admin/policy":
                assert request.headers["Authorization"] == "Bearer secret"
                self.announced = said["version"]
        return web.json_response({})

    def paths(self):
        return [path for path, _ in self.seen]


@asynccontextmanager
async def scripted(fails=()):
    """The same server as engine and as admin plane, and what speaks to it."""
    server = Scripted(fails)
    app = web.Application()
    app.router.add_post("/{path:.*}", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    settings = SyncSettings(
        engines=(server.url,), proxies=(server.url,), admin_secret=SecretStr("secret")
    )
    try:
        async with WeightSync(settings) as sync:
            yield server, sync
    finally:
        await runner.cleanup()


ORDER = [
    "/admin/policy", "/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version",
    "/admin/policy", "/resume",
]  # fmt: skip


async def test_the_order_is_announce_pause_reload_reset_version_resume(tmp_path):
    async with scripted() as (server, sync):
        synced = await sync.push(tmp_path, 3)
        assert server.paths() == ORDER
        assert server.seen[0][1] == {"version": None, "label": None}
        assert server.seen[4][1] == {"new_version": "step-3"}
        assert server.seen[5][1] == {"version": 3, "label": "step-3"}
        assert sync.serving == synced.served == Served(tmp_path, 3, "step-3")
        assert 0 < synced.paused_s <= synced.total_s
        assert not server.paused


@pytest.mark.parametrize("path", sorted(set(ORDER) - {"/resume", "/admin/policy"}))
async def test_what_was_served_before_is_put_back_where_a_step_fails(tmp_path, path):
    async with scripted() as (server, sync):
        first = (await sync.push(tmp_path / "one", 1)).served
        server.fails[path] = 1
        with pytest.raises(SyncFailed, match="the engines serve step-1 as before") as caught:
            await sync.push(tmp_path / "two", 2)
        assert caught.value.serving == "step-1"
        assert path in str(caught.value)
        assert sync.serving == first
        assert (server.announced, server.serves) == (1, str(tmp_path / "one"))
        assert not server.paused
        await sync.push(tmp_path / "two", 2)
        assert (server.announced, server.serves) == (2, str(tmp_path / "two"))


async def test_where_nothing_can_be_put_back_the_version_stays_unknown(tmp_path):
    async with scripted({"/collective_rpc": 1}) as (server, sync):
        with pytest.raises(SyncFailed, match="is unknown, and the proxies say so") as caught:
            await sync.push(tmp_path, 1)
        assert caught.value.serving is None
        assert (server.announced, server.paused) == (None, False)
    async with scripted() as (server, sync):
        await sync.push(tmp_path, 1)
        server.fails["/collective_rpc"] = 2
        with pytest.raises(SyncFailed, match="going back to step-1 failed too") as caught:
            await sync.push(tmp_path, 2)
        assert caught.value.serving is None
        assert sync.serving is None
        assert (server.announced, server.paused) == (None, False)


async def test_an_engine_that_stays_paused_is_said(tmp_path):
    async with scripted({"/resume": 1}) as (server, sync):
        with pytest.raises(SyncFailed, match="engines stay paused"):
            await sync.push(tmp_path, 1)
        # The next push heals it.
        await sync.push(tmp_path, 2)
        assert (server.announced, server.paused) == (2, False)


async def test_a_push_that_is_cancelled_comes_to_its_end(tmp_path):
    async with scripted() as (server, sync):
        push = asyncio.create_task(sync.push(tmp_path, 1))
        while not server.paused:  # noqa: ASYNC110  no event tells
            await asyncio.sleep(0.001)
        push.cancel()
        with pytest.raises(asyncio.CancelledError):
            await push
        assert server.paths() == ORDER
        assert (server.announced, server.paused) == (1, False)


async def test_an_engine_that_is_not_there_is_said(tmp_path):
    settings = SyncSettings(engines=("http://127.0.0.1:1",))
    async with WeightSync(settings) as sync:
        with pytest.raises(SyncFailed, match="did not answer"):
            await sync.push(tmp_path, 1)
