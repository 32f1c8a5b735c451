"""Requests that make no sense are refused before anything is recorded or asked of the engine."""

import json

import aiohttp
import pytest

from budwood.proxy.testing import Reply

USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    "body",
    [
        {"messages": ["x"]},
        {"messages": [None]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user", "content": [5]}]},
        {"messages": [{"role": 5, "content": "x"}]},
        {"messages": [{"content": "x"}]},
        {"messages": {"role": "user"}},
        {"messages": [USER, {"role": "assistant", "tool_calls": [5]}]},
        {"messages": [USER], "tools": {"a": 1}},
        {"messages": [USER], "stream": "yes"},
        {"messages": [USER], "max_tokens": "12"},
        {"messages": [USER], "max_tokens": -5},
        {"messages": [USER], "temperature": "NaN"},
        {"messages": [USER], "top_logprobs": 10**9, "logprobs": True},
        {"messages": [USER], "stop": ["a"] * 10_000},
        {"messages": [USER], "best_of": 5},
        {"messages": [USER], "functions": [{"name": "f"}]},
        {"messages": [USER], "chat_template_kwargs": 5},
        {"messages": [USER], "metadata": {"a": 10**30}},
    ],
)
@pytest.mark.parametrize("engine_options", [{}, {"as_vllm": False}], ids=["vllm", "text"])
async def test_a_senseless_field_is_refused_and_nothing_is_recorded(proxied, body, engine_options):
    async with proxied([], engine_options=engine_options) as (proxy, engine):
        rollout = await proxy.open_rollout()
        data = json.dumps({"model": "m", **body}).encode()
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{rollout.base_url}/chat/completions", data=data) as answer,
        ):
            assert answer.status == 400
            error = (await answer.json())["error"]
        assert error["type"] == "invalid_request_error"
        assert set(error) == {"message", "type", "param", "code"}
        assert engine.stats.calls == 0
        assert proxy.store.calls(rollout.id) == []


@pytest.mark.parametrize("engine_options", [{}, {"as_vllm": False}], ids=["vllm", "text"])
async def test_half_a_character_in_a_name_is_no_fault_of_ours(proxied, engine_options):
    async with proxied([Reply("a")], engine_options=engine_options) as (proxy, _):
        rollout = await proxy.open_rollout()
        url = f"{rollout.base_url}/chat/completions"
        start = b'{"model":"m","messages":[{"role":"user","content":"a"}],"\\ud83d":'
        async with aiohttp.ClientSession() as session:
            async with session.post(url, data=start + b"9" * 30 + b"}") as answer:
                assert answer.status == 400
                assert "too large" in (await answer.json())["error"]["message"]
            async with session.post(url, data=start + b"1}") as answer:
                assert answer.status == 200


async def test_where_a_call_is_sent_and_with_what_key_is_not_the_harness_to_say(proxied):
    async with proxied([Reply("a")], engine_options={"as_vllm": False}) as (proxy, engine):
        rollout = await proxy.open_rollout()
        fields = {"api_base": "http://evil", "base_url": "http://evil", "api_key": "k",
                  "extra_headers": {"a": "b"}, "custom_llm_provider": "x"}  # fmt: skip
        data = json.dumps({"model": "m", "messages": [USER], "seed": 5, **fields}).encode()
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{rollout.base_url}/chat/completions", data=data) as answer,
        ):
            assert answer.status == 200
        sent = engine.calls[0].body
        assert sent["seed"] == 5
        assert not sent.keys() & fields.keys()
        (call,) = proxy.store.calls(rollout.id)
        assert proxy.store.request_body(call.id) == data
