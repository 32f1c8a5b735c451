"""A recorded rollout served again: the answers, and what is found to differ."""

import json

import aiohttp
import openai
import pytest

from budwood.proxy.replay import Canon, ReplayServer, load_recording
from budwood.trajectory_store import CallState, Store
from budwood.trajectory_store.replay import Replay, Verdict
from budwood.trajectory_store.testing import Scribe


@pytest.fixture
async def play(recorded_store):
    """Return a function that serves the replay of a rollout."""
    servers = []

    async def served(rollout_id):
        canon = Canon()
        replay = Replay(load_recording(recorded_store, rollout_id, canon))
        server = await ReplayServer(recorded_store, replay, canon).__aenter__()
        servers.append(server)
        return server

    yield served
    for server in servers:
        await server.__aexit__(None, None, None)


async def _post(server, body, **headers):
    url = f"{server.base_url}/v1/chat/completions"
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=data, headers=headers) as a,
    ):
        return a.status, await a.read()


async def test_the_recorded_bodies_sent_again_are_identical(play, recorded, recorded_store):
    server = await play(recorded.hostile)
    for name in ("hostile.1", "hostile.2"):
        status, _ = await _post(server, recorded_store.request_body(recorded.calls[name]))
        assert status == 200
    verdict, text = server.replay.verdict()
    assert verdict is Verdict.IDENTICAL
    assert text == "identical: 2 calls, each as recorded"


async def test_an_answer_has_the_recorded_ids_usage_and_finish(play, recorded, recorded_store):
    server = await play(recorded.hostile)
    call = recorded_store.call(recorded.calls["hostile.1"])
    assert call.reply is not None
    body = json.loads(recorded_store.request_body(call.id))
    client = openai.AsyncOpenAI(base_url=f"{server.base_url}/v1", api_key="other", max_retries=0)
    async with client:
        stream = await client.chat.completions.create(
            **body | {"stream_options": {"include_usage": True}}
        )
        chunks = [chunk async for chunk in stream]
        plain = await client.chat.completions.create(
            **json.loads(recorded_store.request_body(recorded.calls["hostile.2"]))
        )
    assert {chunk.id for chunk in chunks} == {f"chatcmpl-{call.id}"}
    calls = [
        c for chunk in chunks for choice in chunk.choices for c in choice.delta.tool_calls or ()
    ]
    assert [c.id for c in calls] == [call.reply["tool_calls"][0]["id"]]
    assert calls[0].function.arguments == '{"cmd": "cat notes"}'
    assert chunks[-2].choices[0].finish_reason == "tool_calls"
    assert chunks[-1].usage.model_dump(exclude_none=True) == call.usage
    second = recorded_store.call(recorded.calls["hostile.2"])
    assert plain.choices[0].message.content == second.reply["content"]
    assert plain.choices[0].finish_reason == "stop"
    assert plain.usage.model_dump(exclude_none=True) == second.usage
    assert server.replay.verdict()[0] is Verdict.IDENTICAL


async def test_cosmetic_edits_are_identical(play, recorded, recorded_store):
    server = await play(recorded.tree)
    body = json.loads(recorded_store.request_body(recorded.calls["tree.1"]))
    await _post(server, body)
    body = json.loads(recorded_store.request_body(recorded.calls["tree.2"]))
    said = body["messages"][2]
    said["tool_calls"][0]["function"]["arguments"] = '{"cmd":"ls"}'
    said["tool_calls"][0]["id"] = body["messages"][3]["tool_call_id"] = "renamed"
    said["reasoning"] = f" {said.pop('reasoning_content')}\n"
    body["messages"][1]["content"] = [{"type": "text", "text": body["messages"][1]["content"]}]
    status, _ = await _post(server, body | {"user": "someone else", "stream": False})
    assert status == 200
    assert server.replay.divergences == []


async def test_a_changed_tool_output_is_found_at_that_very_call(play, recorded, recorded_store):
    server = await play(recorded.hostile)
    await _post(server, recorded_store.request_body(recorded.calls["hostile.1"]))
    body = json.loads(recorded_store.request_body(recorded.calls["hostile.2"]))
    body["messages"][3]["content"] = "another output"
    status, answer = await _post(server, body)
    assert status == 400
    assert json.loads(answer)["error"]["code"] == "replay_diverged"
    verdict, text = server.replay.verdict()
    assert verdict is Verdict.DIFFERS
    assert text.startswith(f"call 2 ({recorded.calls['hostile.2']}, main): message 3 (tool), text")
    assert "+another output" in text


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"temperature": 0.3}, "a field beside the messages"),
        ({"tools": []}, "tools"),
        ({"model": "another"}, "a field beside the messages"),
    ],
)
async def test_changed_tools_and_fields_differ(play, recorded, recorded_store, change, where):
    server = await play(recorded.hostile)
    body = json.loads(recorded_store.request_body(recorded.calls["hostile.1"]))
    assert (await _post(server, body | change))[0] == 400
    assert where in server.replay.verdict()[1]


async def test_lanes_may_come_in_another_order(play, recorded, recorded_store):
    server = await play(recorded.tree)
    for call in reversed(recorded_store.calls(recorded.tree)):
        if call.state.is_complete:
            assert (await _post(server, recorded_store.request_body(call.id)))[0] == 200
    assert server.replay.verdict()[0] is Verdict.IDENTICAL


async def test_fewer_and_more_calls_are_told_apart(play, recorded, recorded_store):
    server = await play(recorded.hostile)
    body = recorded_store.request_body(recorded.calls["hostile.1"])
    await _post(server, body)
    assert "1 of 2" in server.replay.verdict()[1]
    await _post(server, recorded_store.request_body(recorded.calls["hostile.2"]))
    await _post(server, body)
    assert server.replay.verdict() == (
        Verdict.FEWER_OR_MORE,
        "the harness made a call more than was recorded",
    )


async def test_a_failed_call_fails_again(play, recorded, recorded_store):
    server = await play(recorded.tree)
    status, answer = await _post(server, recorded_store.request_body(recorded.calls["tree.failed"]))
    assert status == 503
    assert json.loads(answer)["error"]["code"] == "cut"
    assert server.replay.divergences == []


async def test_a_cut_call_waits_until_its_client_leaves(play, recorded, recorded_store):
    server = await play(recorded.tree)
    url = f"{server.base_url}/v1/chat/completions"
    data = recorded_store.request_body(recorded.calls["tree.aborted"])
    async with aiohttp.ClientSession() as session, session.post(url, data=data) as answer:
        first = await answer.content.readuntil(b"\n\n")
    assert b'"role":"assistant"' in first
    assert server.replay.divergences == []


async def test_a_replay_needs_its_secret(play, recorded, recorded_store):
    server = await play(recorded.hostile)
    body = recorded_store.request_body(recorded.calls["hostile.1"])
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{server.root}/v1/chat/completions", data=body) as answer:
            assert answer.status == 401
        headers = {"Authorization": f"Bearer {server.secret}"}
        async with session.get(f"{server.root}/v1/models", headers=headers) as answer:
            assert [m["id"] for m in (await answer.json())["data"]] == ["example"]
    assert server.replay.n_requests == 0


async def test_an_answer_of_our_own_is_given_again(recorded_path, recorded):
    with Store.open(recorded_path) as store:
        rollout = store.open_rollout(recorded.run_id)
        scribe = Scribe(store, rollout)
        reply = {"role": "assistant", "content": "spent", "reasoning": None, "tool_calls": []}
        lane = scribe.lane()
        scribe.call(
            lane,
            [{"role": "user", "content": "x"}],
            state=CallState.SYNTHETIC,
            reply=reply,
            finish="stop",
        )
        canon = Canon()
        replay = Replay(load_recording(store, rollout.id, canon))
        async with ReplayServer(store, replay, canon) as server:
            call = store.calls(rollout.id)[0]
            _, answer = await _post(server, store.request_body(call.id))
    assert b"spent" in answer
    assert replay.verdict()[0] is Verdict.IDENTICAL
