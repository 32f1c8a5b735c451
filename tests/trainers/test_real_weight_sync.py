"""New weights into real vLLM behind a real proxy, with calls in flight."""

import asyncio

import openai
import pytest
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
