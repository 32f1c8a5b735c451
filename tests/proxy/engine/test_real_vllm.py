"""The engine layer on real vLLM: what is asked of it, and what it is held to."""

import math
from array import array

import pytest

from budwood.proxy.engine import Engine, EngineSettings, Prompt, exactness
from budwood.proxy.engine.checks import State, check_engine
from budwood.trajectory_store import Purpose

from .conftest import BASH

pytestmark = pytest.mark.slow
WAYS = ["kv_transfer", "generate", "text"]
MESSAGES = [
    {"role": "system", "content": "You are a helpful agent."},
    {"role": "user", "content": "List files."},
]


def _settings(server, **more):
    return EngineSettings(urls=(server.url,), connect_s=60, **more)


def _tool(server):
    return server.conversations[0]["tools"][0]


async def test_the_probe_finds_all_that_exact_recording_needs(vllm_engine):
    async with Engine(_settings(vllm_engine)) as engine:
        info = await engine.probe()
    assert (info.kind, info.way_in, info.render_route) == ("vllm", "kv_transfer", "render")
    assert info.problems == ()
    assert info.can_generate
    assert info.served_model == "tiny"
    assert len(info.end_ids) == 2


async def test_doctor_finds_nothing_wrong(vllm_engine):
    findings = await check_engine(_settings(vllm_engine))
    assert {found.state for found in findings} == {State.OK}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("way", WAYS)
async def test_every_way_gives_the_taught_reply_exactly(
    vllm_engine, engine_call, read, way, stream
):
    async with Engine(_settings(vllm_engine, way=way)) as engine:
        info = await engine.probe()
        call = await engine_call(
            engine, MESSAGES, tools=[_tool(vllm_engine)], stream=stream,
            sampling={"temperature": 0.01},
        )  # fmt: skip
        _, reply = await read(engine, call)
    assert (call.prompt is None) is (way == "text")
    assert exactness(reply, call.prompt.ids if call.prompt else None, info) == []
    call = reply.message["tool_calls"][0]
    assert (call["name"], call["arguments"]) == ("bash", '{"command": "ls"}')
    assert reply.message["reasoning"].strip() == "I call bash."
    assert reply.finish == "tool_calls"
    assert reply.out_ids[-1] in info.end_ids
    assert (reply.weight_versions is not None) is (way == "generate")


@pytest.mark.parametrize("way", WAYS)
async def test_stop_strings_and_limits_end_it(vllm_engine, engine_call, read, way):
    messages = [{"role": "user", "content": "Count to three."}]
    async with Engine(_settings(vllm_engine, way=way)) as engine:
        info = await engine.probe()
        for more, finish, text in (
            ({"stop": [" two"]}, "stop", "One,"),
            ({"max_tokens": 1}, "length", None),
        ):
            call = await engine_call(
                engine, messages, sampling={"temperature": 0.01, **more}, **more
            )
            _, reply = await read(engine, call)
            assert reply.finish == finish
            assert exactness(reply, call.prompt.ids if call.prompt else None, info) == []
            if text:
                said = (reply.message["content"] or "") + (reply.message["reasoning"] or "")
                assert text in said
                assert "two" not in said


@pytest.mark.parametrize("position", [2, 3, 4])
async def test_all_ways_show_the_same_text(vllm_engine, engine_call, read, position):
    messages = vllm_engine.conversations[position]["messages"][:1]
    shown = {}
    for way in WAYS:
        for stream in (False, True):
            async with Engine(_settings(vllm_engine, way=way)) as engine:
                await engine.probe()
                call = await engine_call(
                    engine, messages, sampling={"temperature": 0.01}, stream=stream
                )
                _, reply = await read(engine, call)
                message = reply.message
                shown[way, stream] = (message["content"], message["reasoning"], reply.finish)
    assert len(set(shown.values())) == 1, shown
    assert "<|" not in str(shown)


async def test_logprobs_are_those_of_the_temperature_that_sampled(vllm_engine, read, engine_call):
    messages = [{"role": "user", "content": "Something it was never taught, at all."}]
    sums = {}
    async with Engine(_settings(vllm_engine)) as engine:
        await engine.probe()
        for temperature in (0.5, 2.0):
            call = await engine_call(
                engine, messages, sampling={"temperature": temperature, "max_tokens": 200}
            )
            _, reply = await read(engine, call)
            assert all(-math.inf < value <= 0 for value in reply.logprobs)
            sums[temperature] = sum(reply.logprobs) / len(reply.logprobs)
    assert sums[2.0] < sums[0.5]


async def test_ids_go_in_that_no_text_would_tokenize_to(vllm_engine, engine_call, read):
    # Every character its own token: re-tokenising the text gives fewer ids.
    async with Engine(_settings(vllm_engine)) as engine:
        info = await engine.probe()
        ids = array("I")
        for char in "hello hello hello":
            ids += await engine.tokenize(char)
        assert len(await engine.tokenize("hello hello hello")) < len(ids)
        call = await engine_call(engine, sampling={"max_tokens": 3})
        call.prompt = Prompt(ids)
        _, reply = await read(engine, call)
    assert reply.prompt_ids_match is True
    assert exactness(reply, ids, info) == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_s_own_logprobs_are_kept_in_words(vllm_engine, engine_call, read, stream):
    async with Engine(_settings(vllm_engine)) as engine:
        await engine.probe()
        for top in (None, 2):
            more = {"top_logprobs": top} if top else {}
            call = await engine_call(
                engine, stream=stream, logprobs=True, purpose=Purpose.RECORD, temperature=0.01,
                **more,
            )  # fmt: skip
            _, reply = await read(engine, call)
            entries = reply.logprob_entries
            assert len(entries) == len(reply.out_ids)
            assert entries[0]["token"] == "<think>"
            assert all(len(entry["top_logprobs"]) == (top or 0) for entry in entries)


async def test_dummies_of_a_long_history_are_accepted(vllm_engine, engine_call, read):
    async with Engine(_settings(vllm_engine)) as engine:
        info = await engine.probe()
        messages = vllm_engine.conversations[0]["messages"][:6]
        call = await engine_call(engine, messages, tools=[BASH], stream=True)
        assert any(message.get("tool_calls") for message in call.messages)
        _, reply = await read(engine, call)
    assert exactness(reply, call.prompt.ids, info) == []


async def test_a_cut_connection_stops_the_generation(vllm_engine, engine_call):
    async with Engine(_settings(vllm_engine)) as engine:
        await engine.probe()
        call = await engine_call(engine, stream=True, ignore_eos=True, purpose=Purpose.RECORD)
        async with engine.call(call) as stream:
            async for _ in stream:
                break
        # The engine is idle again long before it could have sampled 16,000 tokens.
        for _ in range(200):
            response = await engine._client.open(f"{vllm_engine.url}/metrics", None, limit_s=60)
            async with response:
                metrics = (await response.read()).decode()
            running = [
                float(line.split()[-1])
                for line in metrics.splitlines()
                if line.startswith("vllm:num_requests_running")
            ]
            if sum(running) == 0:
                return
    pytest.fail("the engine still generates for a client that has left")
