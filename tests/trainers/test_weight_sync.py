"""New weights into an engine: the order, every failure, and real vLLM before a real proxy."""

import asyncio
import json
from contextlib import asynccontextmanager

import openai
import pytest
from aiohttp import web
from pydantic import SecretStr

from budwood.proxy.testing.real_engine import TAUGHT
from budwood.proxy.testing.running import proxy_for_tests
from budwood.trainers import (
    Attempt,
    Mismatched,
    PolicySettings,
    SyncFailed,
    SyncSettings,
    WeightSync,
    sft_batch,
)
from budwood.trainers.settings import MismatchSettings
from budwood.trainers.weight_sync import Served
from budwood.trajectory_store import Store

# -- order and failures, on a scripted engine and proxy ------------------------------------------


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


# -- real vLLM -----------------------------------------------------------------------------------

CLOSE = MismatchSettings(max_mean=1e-3, max_single=1e-3)
QUESTION = {"role": "user", "content": "Hello"}
LONG = {"max_tokens": 5000, "extra_body": {"ignore_eos": True}}
"""Long enough that a process which is kept waiting for seconds still finds it in flight."""


def rows_of(store, rollout_id):
    sequences = tuple(store.sequences(rollout_id))
    return sft_batch([Attempt(rollout_id=rollout_id, group=None, reward=None,
                              sequences=sequences)]).rows  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")  # torch and accelerate about machines without a GPU
async def test_after_a_sync_the_engine_says_what_the_trainer_says(vllm_engine, tmp_path):
    from transformers import AutoTokenizer

    from budwood.trainers.policy import Policy

    tokenizer = AutoTokenizer.from_pretrained(vllm_engine.folder)
    prompts = [
        tokenizer.apply_chat_template(
            [QUESTION], add_generation_prompt=True, tokenize=True, return_dict=True
        )["input_ids"],
        tokenizer.encode("One, two, three. ls -la /tmp"),
    ]
    settings = PolicySettings.model_validate(
        {"hardware": {"device": "cpu"}, "optimizer": {"learning_rate": 5e-3}}
    )
    policy = await asyncio.to_thread(Policy, vllm_engine.folder, settings)
    served = Served(vllm_engine.folder, 0, "step-0")
    with Store.open(tmp_path / "store.db") as store:
        async with proxy_for_tests(vllm_engine.url, store) as proxy:
            sync_settings = SyncSettings(
                engines=(vllm_engine.url,),
                proxies=(proxy.admin_url,),
                admin_secret=SecretStr(proxy.running.admin_secret),
            )
            async with WeightSync(sync_settings, serving=served) as sync:
                try:
                    await _through(proxy, sync, policy, prompts, tmp_path, served)
                finally:  # other tests use this engine
                    await sync.push(vllm_engine.folder, 99)
                    fresh = await asyncio.to_thread(Policy, vllm_engine.folder, settings)
                    await sync.verify(fresh, prompts, CLOSE)


async def _through(proxy, sync, policy, prompts, tmp_path, served):
    store = proxy.store
    await sync.announce(served)
    before = await sync.verify(policy, prompts, CLOSE)
    print(f"before the sync: {before.largest:.2g} at most over {before.n_tokens} tokens")
    opened = await proxy.open_rollout()
    async with openai.AsyncOpenAI(base_url=opened.base_url, api_key="-", max_retries=0) as sdk:

        async def ask(message, **more):
            return await sdk.chat.completions.create(model="tiny", messages=[message], **more)

        await ask(QUESTION, max_tokens=40)
        await proxy.settled()
        (first,) = store.calls(opened.id)
        assert (first.policy_before, first.policy_after) == (0, 0)
        rows = rows_of(store, opened.id)
        assert policy.mismatch(rows).largest < 1e-3

        # Steps that change the weights, a call in flight, and the sync.
        for _ in range(3):
            await asyncio.to_thread(policy.step, sft_batch_of(rows))
        weights = await asyncio.to_thread(policy.save, tmp_path / "step-1")
        stream = await ask(TAUGHT[3]["messages"][0], stream=True, **LONG)
        await anext(aiter(stream))
        assert proxy.running.recorder.n_in_flight == 1
        synced = await sync.push(weights, 1)
        print(f"push: engine paused {synced.paused_s:.3f} s, {synced.total_s:.3f} s in all")
        stale = await asyncio.to_thread(type(policy), served.weights, policy.settings)
        with pytest.raises(Mismatched, match="tied heads"):
            await sync.verify(stale, prompts, CLOSE)
        after = await sync.verify(policy, prompts, CLOSE)
        print(f"after the sync: {after.largest:.2g} at most over {after.n_tokens} tokens")
        n_chunks = sum([1 async for _ in stream])
        assert n_chunks > 100  # it went on

        # The same prompt again: its prefix was cached under the old weights.
        await ask(QUESTION, max_tokens=40)
        await proxy.settled()
        calls = store.calls(opened.id)
        kinds = [(c.policy_before, c.policy_after, "mixed" in c.flags) for c in calls]
        assert sorted(kinds) == [(0, 0, False), (0, 1, True), (1, 1, False)]
        new = next(call for call in calls if call.policy_before == 1)
        assert new.policy_label == "step-1"
        (row,) = [r for r in rows_of(store, opened.id) if r.calls[-1].call_id == new.id]
        found = policy.mismatch([row])
        print(f"recorded through the proxy, after: {found.largest:.2g}")
        assert found.largest < 1e-3
        trained = {call.call_id for r in rows_of(store, opened.id) for call in r.calls}
        assert {call.id for call in calls if "mixed" in call.flags}.isdisjoint(trained)

        # A folder that is not there: the engine goes on with what it had.
        with pytest.raises(SyncFailed, match="the engines serve step-1 as before"):
            await sync.push(tmp_path / "nothing", 2)
        await sync.verify(policy, prompts, CLOSE)
        await ask(QUESTION, max_tokens=5)
        await proxy.settled()
        assert store.calls(opened.id)[-1].policy_after == 1


def sft_batch_of(rows):
    """A batch that makes its rows' tokens less likely: their own words, with advantage -1."""
    from dataclasses import replace

    from budwood.trainers import Batch

    rows = tuple(replace(row, advantages=-row.advantages) for row in rows)
    return Batch(rows=rows, normaliser=1.0)
