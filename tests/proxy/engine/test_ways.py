"""One conformance test for every way in, and what each fault of an engine becomes."""

import asyncio

import pytest
from aiohttp import web

from budwood.proxy.engine import (
    Engine,
    EngineBroken,
    EngineRefused,
    EngineSettings,
    EngineUnreachable,
    exactness,
)
from budwood.proxy.testing import Marker, Reply, ScriptedEngine, expected
from budwood.trajectory_store import FailureClass, Purpose, class_of

from .conftest import BASH

REPLY = Reply(
    "Hi naïve ✓.", "I think.", [("bash", {"command": "ls"}), ("bash", {"command": "pwd"})]
)
WAYS = {
    "chat_prompt_token_ids": {"token_in": "chat"},
    "kv_transfer": {"token_in": "kv_transfer"},
    "generate": {"token_in": "ignored"},
    "text": {"token_in": "ignored", "scale_out": False},
}


@pytest.mark.parametrize("adversarial", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("way", WAYS)
async def test_every_way_gives_the_same_reply_exactly(
    scripted, engine_call, read, way, stream, adversarial
):
    async with scripted([REPLY], adversarial=adversarial, **WAYS[way]) as (server, engine):
        assert engine.info.way_in == way
        call = await engine_call(engine, tools=[BASH], stream=stream)
        deltas, reply = await read(engine, call)
        seen = server.calls[0]
    assert (call.prompt is None) is (way == "text")
    if call.prompt is not None:
        assert seen.prompt_ids == list(call.prompt)
        assert "Hello" in seen.prompt
        assert reply.prompt_ids_match is True
    assert exactness(reply, call.prompt.ids if call.prompt else None, engine.info) == []
    assert server.tokenizer.decode(reply.out_ids) == REPLY.text() + "<|im_end|>"
    message = reply.message
    assert message["content"].strip() == REPLY.content
    assert message["reasoning"].strip() == REPLY.reasoning
    assert [(c["name"], c["arguments"]) for c in message["tool_calls"]] == [
        ("bash", '{"command": "ls"}'),
        ("bash", '{"command": "pwd"}'),
    ]
    assert reply.finish == "tool_calls"
    # What a client is shown adds up to what is recorded.
    assert "".join(d.content or "" for d in deltas) == message["content"]
    assert "".join(d.reasoning or "" for d in deltas) == message["reasoning"]
    parts = [part for d in deltas for part in d.tool_calls]
    assert "".join(p.arguments for p in parts if p.index == 1) == '{"command": "pwd"}'
    assert reply.coarse is (way == "generate" and stream)
    assert len(deltas) > 1 or not stream or way == "generate"


@pytest.mark.parametrize("way", WAYS)
async def test_every_way_stops_by_length_and_by_stop_string(scripted, engine_call, read, way):
    script = [Reply("one two three"), Reply("one two three")]
    async with scripted(script, **WAYS[way]) as (_, engine):
        call = await engine_call(engine, max_tokens=2, stream=True)
        _, short = await read(engine, call)
        call = await engine_call(engine, stop=["two"], stream=True)
        _, cut = await read(engine, call)
    assert (short.finish, len(short.out_ids)) == ("length", 2)
    assert (cut.finish, cut.stop_reason) == ("stop", "two")
    assert cut.message["content"] == "one "
    assert exactness(short, None, engine.info) == exactness(cut, None, engine.info) == []


@pytest.mark.parametrize("stream", [False, True])
async def test_another_kind_of_server_is_recorded_as_text(scripted, engine_call, read, stream):
    async with scripted([Reply("Hi.")], as_vllm=False) as (server, engine):
        assert engine.info.kind == "openai"
        call = await engine_call(engine, stream=stream, purpose=Purpose.RECORD)
        _, reply = await read(engine, call)
    assert reply.message["content"] == "Hi."
    assert reply.out_ids is None
    assert reply.raw
    assert exactness(reply, None, engine.info) == ["no_token_ids"]
    assert "return_token_ids" not in server.calls[0].body


CAUSES = {
    "drop@3": ("cut", "cut"),
    "reset@3": ("cut", "cut"),
    "badjson@3": ("bad_event", "bad_event"),
    "error@3": ("server_error", None),
    "nodone": ("missing_done", None),
    "nousage": ("missing_usage", "missing_usage"),
    "nofinish": ("missing_finish", "missing_finish"),
    "noids@3": ("count_mismatch", "missing_ids"),
    "nologprobs@3": ("count_mismatch", "missing_ids"),
    "dup@3": ("count_mismatch", None),
    "stall@3": ("stall", None),
}


def test_every_cause_of_a_broken_answer_is_the_engines():
    causes = {cause for pair in CAUSES.values() for cause in pair if cause is not None}
    assert {class_of(cause) for cause in causes} == {FailureClass.ENGINE}


@pytest.mark.parametrize("fault", CAUSES)
@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_is_not_whole_is_a_failed_call(
    scripted, engine_call, read, fault, stream
):
    cause = CAUSES[fault][0 if stream else 1]
    messages = [{"role": "user", "content": str(Marker(seed=5, chunks=8, fault=fault))}]
    async with scripted(settings={"idle_s": 0.3}) as (_, engine):
        call = await engine_call(engine, messages, stream=stream)
        if cause is None:
            if stream:
                pytest.fail("every fault breaks a stream")
            if fault == "stall@3":
                return  # a plain answer that never begins: the first-byte limit's business
            await read(engine, call)  # the fault is one of streams
            return
        with pytest.raises(EngineBroken) as broken:
            await read(engine, call)
    assert broken.value.cause == cause
    right = expected(5, 8)["token_ids"]
    if stream:
        partial = broken.value.partial
        assert partial is not None
        assert set(partial.out_ids or ()) <= set(right)


@pytest.mark.parametrize("fault", ["split", "crlf", "cr", "comment", "big@100000"])
async def test_bytes_in_any_cut_or_line_ending_are_read_right(scripted, engine_call, read, fault):
    messages = [{"role": "user", "content": str(Marker(seed=6, chunks=40, tpc=2, fault=fault))}]
    async with scripted() as (_, engine):
        call = await engine_call(engine, messages, stream=True)
        _, reply = await read(engine, call)
    right = expected(6, 40, 2)
    assert list(reply.out_ids) == right["token_ids"]
    assert list(reply.logprobs) == pytest.approx(right["logprobs"])
    assert reply.message["content"] == right["text"]


@pytest.mark.parametrize(
    ("fault", "reason"), [("wrongids", "engine_ignored_ids"), ("sentinel@2", "bad_logprobs")]
)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_whole_answer_can_be_inexact(scripted, engine_call, read, fault, reason, stream):
    messages = [{"role": "user", "content": str(Marker(seed=7, chunks=8, fault=fault))}]
    async with scripted() as (_, engine):
        call = await engine_call(engine, messages, stream=stream)
        _, reply = await read(engine, call)
    assert exactness(reply, call.prompt.ids, engine.info) == [reason]
    if fault == "wrongids":
        assert reply.prompt_ids[0] == 1  # what the engine says it read is kept


@pytest.mark.parametrize("code", [408, 409, 429, 500, 503])
async def test_a_call_that_failed_before_its_first_byte_is_tried_again(
    scripted, engine_call, read, code
):
    text = str(Marker(seed=code, chunks=3, fault=f"flaky@{code}"))
    async with scripted() as (server, engine):
        call = await engine_call(engine, [{"role": "user", "content": text}])
        _, reply = await read(engine, call)
        assert server.stats.calls == 2
    assert len(reply.out_ids) == 3


@pytest.mark.parametrize(("code", "tries"), [(429, 3), (500, 3), (400, 1), (404, 1)])
async def test_tries_end_and_a_refusal_that_cannot_heal_is_not_repeated(
    scripted, engine_call, read, code, tries
):
    text = str(Marker(seed=1, chunks=3, fault=f"status@{code}"))
    async with scripted() as (server, engine):
        call = await engine_call(engine, [{"role": "user", "content": text}])
        with pytest.raises(EngineRefused) as refused:
            await read(engine, call)
        assert server.stats.calls == tries
    assert refused.value.status == code
    assert refused.value.message == "a scripted fault"


async def test_nothing_is_tried_again_once_an_answer_began(scripted, engine_call, read):
    text = str(Marker(seed=1, chunks=9, fault="drop@4"))
    async with scripted() as (server, engine):
        call = await engine_call(engine, [{"role": "user", "content": text}], stream=True)
        with pytest.raises(EngineBroken):
            await read(engine, call)
        assert server.stats.calls == 1


async def test_no_http_at_all_is_unreachable(scripted, engine_call, read):
    text = str(Marker(seed=1, chunks=9, fault="garbage"))
    async with scripted() as (_, engine):
        call = await engine_call(engine, [{"role": "user", "content": text}])
        with pytest.raises(EngineUnreachable):
            await read(engine, call)


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_early_ends_the_sampling_at_once(scripted, engine_call, stream):
    text = str(Marker(seed=1, chunks=500, delay=20, first=0 if stream else 5000))
    async with scripted() as (server, engine):
        call = await engine_call(engine, [{"role": "user", "content": text}], stream=stream)
        if stream:
            async with engine.call(call) as answer:
                async for _ in answer:
                    break
                assert answer.partial().message["content"]
        else:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1), engine.call(call):
                    pass
        async with asyncio.timeout(60):
            await server.aborted()


async def test_redirects_are_not_followed(aiohttp_server):
    async def elsewhere(_):
        raise web.HTTPFound("http://127.0.0.1:9/")

    app = web.Application()
    app.router.add_get("/v1/models", elsewhere)
    server = await aiohttp_server(app)
    settings = EngineSettings(urls=(str(server.make_url("")),))
    async with Engine(settings) as engine:
        with pytest.raises(EngineRefused) as refused:
            await engine.probe()
    assert refused.value.status == 302


async def test_the_key_goes_to_the_engine_and_into_no_message(read):
    async with ScriptedEngine() as server:
        values = {"urls": (server.url,), "api_key": "sk-secret-key"}
        async with Engine(EngineSettings(**values)) as engine:
            await engine.probe()
            assert "sk-secret-key" not in repr(engine.settings)
    async with Engine(EngineSettings(**{**values, "tries": 1})) as engine:
        with pytest.raises(EngineUnreachable) as failed:
            await engine.probe()
    assert "sk-secret-key" not in str(failed.value)


async def test_a_field_that_the_engine_refuses_is_dropped_once_and_remembered(
    aiohttp_server, engine_call, read
):
    bodies = []

    async def chat(request):
        body = await request.json()
        bodies.append(body)
        if "parallel_tool_calls" in body:
            error = {"message": "Unknown parameter: 'parallel_tool_calls'", "param": None}
            return web.json_response({"error": error}, status=400)
        message = {"role": "assistant", "content": "ok"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response({"choices": [choice]})

    async def models(_):
        return web.json_response({"data": [{"id": "m"}]})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/chat/completions", chat)
    server = await aiohttp_server(app)
    async with Engine(EngineSettings(urls=(str(server.make_url("")),))) as engine:
        await engine.probe()
        for _ in range(2):
            call = await engine_call(
                engine, tools=[BASH], parallel_tool_calls=True, purpose=Purpose.RECORD
            )
            _, reply = await read(engine, call)
            assert reply.message["content"] == "ok"
    assert len(bodies) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_that_comes_with_status_200_is_told_in_the_engines_words(
    odd_engine, engine_call, read, stream
):
    error = {"error": {"message": "EngineCore died", "type": "x"}}
    async with odd_engine(lambda _: web.json_response(error)) as engine:
        call = await engine_call(engine, stream=stream)
        with pytest.raises(EngineBroken, match="EngineCore died") as broken:
            await read(engine, call)
        assert broken.value.cause == "server_error"


@pytest.mark.parametrize("status", [201, 204, 302])
async def test_a_status_that_is_neither_success_nor_refusal_is_the_engines_fault(
    odd_engine, engine_call, read, status
):
    headers = {"Location": "http://elsewhere"}
    async with odd_engine(lambda _: web.Response(status=status, headers=headers)) as engine:
        with pytest.raises(EngineRefused) as refused:
            await read(engine, await engine_call(engine))
        assert refused.value.cause == "bad_event"


@pytest.mark.parametrize(
    ("text", "seconds"), [("²", None), ("nan", None), ("-1", None), ("inf", None), ("1.5", 1.5)]
)
async def test_a_wait_that_makes_no_sense_is_not_waited(
    odd_engine, engine_call, read, text, seconds
):
    def busy(_):
        return web.Response(status=429, headers={"Retry-After": text})

    async with odd_engine(busy) as engine:
        with pytest.raises(EngineRefused) as refused:
            await read(engine, await engine_call(engine))
        assert refused.value.retry_after_s == seconds


async def test_a_server_that_does_not_stream_is_read_whole(odd_engine, engine_call, read):
    message = {"role": "assistant", "content": "hello"}
    answer = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    async with odd_engine(lambda _: web.json_response(answer)) as engine:
        deltas, reply = await read(engine, await engine_call(engine, stream=True))
    assert [delta.content for delta in deltas] == ["hello"]
    assert reply.coarse
