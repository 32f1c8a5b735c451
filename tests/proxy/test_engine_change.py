"""An engine that goes away and comes back, as itself or as another one."""

import socket
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from budwood.proxy.engine import EngineSettings
from budwood.proxy.testing import Reply, ScriptedEngine
from budwood.proxy.testing.chat_template import CHAT_TEMPLATE
from budwood.proxy.testing.running import proxy_for_tests
from budwood.trajectory_store import CallState, FailureClass, PromptMode, Store

OTHER_TEMPLATE = CHAT_TEMPLATE.replace("<|im_start|>", "<|im_start|>the ")
HISTORY: Any = [
    {"role": "user", "content": "One."},
    {"role": "assistant", "content": "First."},
    {"role": "user", "content": "Two."},
]


@pytest.fixture
def port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.fixture
def met(port, tmp_path):
    """A context manager: a proxy that has recorded one call of an engine that is gone since."""

    @asynccontextmanager
    async def start():
        url = f"http://127.0.0.1:{port}"
        settings = EngineSettings(urls=(url,), tries=1, connect_s=1)
        with Store.open(tmp_path / "store.db") as store:
            engine = ScriptedEngine([Reply("First.")], port=port)
            await engine.__aenter__()
            async with proxy_for_tests(url, store, engine=settings) as proxy:
                rollout = await proxy.open_rollout()
                async with openai.AsyncOpenAI(
                    base_url=rollout.base_url, api_key="-", max_retries=0
                ) as sdk:
                    await sdk.chat.completions.create(model="m", messages=HISTORY[:1])
                    await engine.__aexit__(None, None, None)
                    yield proxy, rollout, sdk

    return start


@pytest.mark.parametrize("was_called_meanwhile", [True, False])
@pytest.mark.parametrize(
    ("template", "mode", "reasons"),
    [
        (CHAT_TEMPLATE, PromptMode.SPLICED, ()),
        (OTHER_TEMPLATE, PromptMode.RENDERED, ("engine_changed",)),
    ],
)
async def test_tokens_are_continued_only_by_an_engine_that_spells_alike(
    met, port, template, mode, reasons, was_called_meanwhile
):
    async with met() as (proxy, rollout, sdk):
        if was_called_meanwhile:
            with pytest.raises(openai.APIStatusError) as caught:
                await sdk.chat.completions.create(model="m", messages=HISTORY)
            assert caught.value.status_code == 503
        else:
            await proxy.running.recorder.engine.look()
        async with ScriptedEngine([Reply("Second.")], port=port, template=template) as engine:
            await sdk.chat.completions.create(model="m", messages=HISTORY)
            (read,) = [call.prompt for call in engine.calls]
        await proxy.settled()
        calls = proxy.store.calls(rollout.id)
        assert calls[-1].state is CallState.DELIVERED
        assert calls[-1].exact
        assert (calls[-1].prompt_mode, calls[-1].reasons) == (mode, reasons)
        assert ("<|im_start|>the user" in read) is (template is OTHER_TEMPLATE)
        assert [call.failure_class for call in calls[1:-1]] == [FailureClass.ENGINE] * (
            was_called_meanwhile
        )
        rows = proxy.store.sequences(rollout.id)
        assert len(rows) == (1 if mode is PromptMode.SPLICED else 2)


async def test_the_model_of_the_new_engine_is_asked_for(met, port):
    async with met() as (proxy, _, sdk):
        await proxy.running.recorder.engine.look()
        async with ScriptedEngine([Reply("Second.")], port=port, model="another") as engine:
            await sdk.chat.completions.create(model="m", messages=HISTORY)
            (call,) = engine.calls
            assert call.body["model"] == "another"


async def test_a_replica_that_is_another_engine_from_the_start_gets_no_call(tmp_path):
    async with (
        ScriptedEngine(lambda _: Reply("Good.")) as first,
        ScriptedEngine(lambda _: Reply("Bad."), template=OTHER_TEMPLATE) as second,
    ):
        settings = EngineSettings(urls=(first.url, second.url), unhealthy_s=0, backoff_min_s=0)
        with Store.open(tmp_path / "store.db") as store:
            async with proxy_for_tests(first.url, store, engine=settings) as proxy:
                for number in range(8):  # each a lane, so each replica is somebody's first
                    assert await _said(proxy, number) == "Good."
        assert first.stats.calls == 8


async def _said(proxy, number):
    rollout = await proxy.open_rollout()
    async with openai.AsyncOpenAI(base_url=rollout.base_url, api_key="-", max_retries=0) as sdk:
        messages: Any = [{"role": "user", "content": f"Go {number}."}]
        answer = await sdk.chat.completions.create(model="m", messages=messages)
        return answer.choices[0].message.content


async def test_a_replica_that_comes_back_as_another_engine_is_left_alone(port, tmp_path):
    async with ScriptedEngine(lambda _: Reply("Good.")) as first:
        urls = (first.url, f"http://127.0.0.1:{port}")
        settings = EngineSettings(urls=urls, unhealthy_s=0, backoff_min_s=0)
        with Store.open(tmp_path / "store.db") as store:
            second = ScriptedEngine(lambda _: Reply("Good."), port=port)
            await second.__aenter__()
            async with proxy_for_tests(first.url, store, engine=settings) as proxy:
                await second.__aexit__(None, None, None)
                await proxy.running.recorder.engine.look()
                async with ScriptedEngine(
                    lambda _: Reply("Bad."), port=port, template=OTHER_TEMPLATE
                ):
                    for number in range(8):  # each a lane, so each replica is somebody's first
                        assert await _said(proxy, number) == "Good."
