"""The online loop on real vLLM behind a real proxy: rollouts, a step, new weights, and again."""

import json
from typing import Any

import openai
import pytest
from pydantic import SecretStr

from budwood.proxy.testing.running import proxy_for_tests
from budwood.trainers import OnlineConfig, RunError, SyncSettings, WeightSync, train_online
from budwood.trainers.weight_sync import Served
from budwood.trajectory_store import Purpose, Store

QUESTION: Any = {"role": "user", "content": "Hello"}
GROUP = 4


class Asker:
    """Makes rollouts of one call each and pays every other one; no sandbox is needed for that.

    Those of the middle step are all paid: there is nothing to compare.
    """

    def __init__(self, proxy, store):
        self.proxy, self.store, self.asked, self.ends_after = proxy, store, [], None

    async def __call__(self, step):
        if self.ends_after is not None and len(self.asked) == self.ends_after:
            raise KeyboardInterrupt
        self.asked.append(step)
        found = []
        for attempt in range(GROUP):
            opened = await self.proxy.open_rollout(
                run=f"step {step}", purpose=Purpose.TRAIN, group_id="hello", attempt=attempt
            )
            async with openai.AsyncOpenAI(base_url=opened.base_url, api_key="-") as sdk:
                await sdk.chat.completions.create(model="tiny", messages=[QUESTION], max_tokens=16)
            await self.proxy.running.rollouts.close(opened.id)
            self.store.score(opened.id, float(attempt % 2 or step == 1), by="test")
            found.append(opened.id)
        return found


def versions(store, step):
    """The policy versions that the calls of a step's rollouts carry."""
    run = next(run for run in store.runs() if run.name == f"step {step}")
    calls = [call for one in store.rollouts(run.id) for call in store.calls(one.id)]
    assert all(call.exact for call in calls)
    return {call.policy_before for call in calls} | {call.policy_after for call in calls}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")  # torch and accelerate about machines without a GPU
async def test_each_step_trains_on_rollouts_of_the_weights_before_it(vllm_engine, tmp_path):
    config = OnlineConfig.model_validate(
        {
            "model": str(vllm_engine.folder),
            "output": tmp_path / "online",
            "steps": 3,
            "optimizer": {"learning_rate": 1e-3},
            "hardware": {"device": "cpu"},
            "mismatch": {"max_mean": 1e-4, "max_single": 1e-3},
            "checkpoint": {"every": 1},
        }
    )
    with Store.open(tmp_path / "store.db") as store:
        async with proxy_for_tests(vllm_engine.url, store) as proxy:
            settings = SyncSettings(
                engines=(vllm_engine.url,),
                proxies=(proxy.admin_url,),
                admin_secret=SecretStr(proxy.running.admin_secret),
            )
            async with WeightSync(settings, serving=Served(vllm_engine.folder, 0, "begin")) as sync:
                asker = Asker(proxy, store)
                try:
                    await _through(store, config, asker, sync)
                finally:  # other tests use this engine
                    await sync.push(vllm_engine.folder, 99, label="as before online")


async def _through(store, config, asker, sync):
    asker.ends_after = 1
    with pytest.raises(KeyboardInterrupt):
        await train_online(store, config, asker, sync)
    asker.ends_after = None

    said = []
    trained = await train_online(store, config, asker, sync, say=said.append)

    assert asker.asked == [0, 1, 2]
    assert "going on after step 1 of 3" in said
    assert [versions(store, step) for step in range(3)] == [{0}, {1}, {1}]
    assert trained.mismatch is not None
    assert trained.mismatch.largest <= 1e-3
    lines = [json.loads(line) for line in (config.output / "metrics.jsonl").open()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert ["loss" in line for line in lines] == [True, False, True]
    assert all(line.get("staleness/max", 0) == 0 for line in lines)
    assert all(line["calls"] == line["calls/exact"] == GROUP for line in lines)
    told = json.loads((config.output / "run.json").read_text())["facts"]
    assert told["rollouts"] == 3 * GROUP  # those before the end and those after
    assert told["steps with something to compare"] == 2
    assert trained.report.exists()
    assert sync.serving is not None
    assert sync.serving.version == 3
    assert sorted(p.name for p in (config.output / "weights").iterdir()) == ["step-1", "step-3"]

    changed = config.model_copy(update={"seed": 7})
    with pytest.raises(RunError, match="another run"):
        await train_online(store, changed, asker, sync)
