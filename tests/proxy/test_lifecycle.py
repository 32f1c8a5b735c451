"""Calls that end early, come at once, or meet a proxy that is starting or stopping."""

import asyncio
import json
import socket
import sqlite3

import aiohttp
import pytest
from structlog.testing import capture_logs

from budwood.proxy import ConfigurationError, ProxySettings, running_proxy
from budwood.proxy.engine import EngineSettings
from budwood.proxy.recording.steps import Step
from budwood.proxy.testing import Reply, ScriptedEngine
from budwood.proxy.testing.running import proxy_for_tests
from budwood.trajectory_store import CallState, PromptMode, Store

USER = {"role": "user", "content": "hi"}
SLOW = Reply(content="word " * 10, delay_ms=10)


async def ask(session, base_url, *, stream=False, headers=None, messages=(USER,), **fields):
    body = {"model": "m", "messages": list(messages), "stream": stream, **fields}
    async with session.post(f"{base_url}/chat/completions", json=body, headers=headers) as answer:
        return answer.status, await answer.read()


def numbers(choice):
    return [entry["logprob"] for entry in choice["logprobs"]["content"]]


def connections() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


async def until(is_so):
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110  what is waited for has no event
            await asyncio.sleep(0.005)


LEFT_AT = {
    Step.INTENT: {CallState.ABORTED},
    Step.UPSTREAM_OPEN: {CallState.ABORTED, CallState.UNDELIVERED},
    Step.RELAYING: {CallState.ABORTED, CallState.UNDELIVERED},
    Step.TERMINAL_HELD: {CallState.UNDELIVERED},
    Step.COMMITTED: {CallState.UNDELIVERED, CallState.DELIVERED},
    Step.TERMINAL_SENT: {CallState.UNDELIVERED, CallState.DELIVERED},
    Step.DELIVERED: {CallState.DELIVERED},
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("step", list(Step))
async def test_a_client_that_leaves_at_any_step_leaves_a_whole_record(proxied, step, stream):
    asked: list[asyncio.Task] = []

    def leave(_call_id, reached):
        if reached is step:
            asked[0].cancel()

    async with proxied([SLOW], observer=leave) as (proxy, _), connections() as session:
        rollout = await proxy.open_rollout()
        asked.append(asyncio.create_task(ask(session, rollout.base_url, stream=stream)))
        with pytest.raises(asyncio.CancelledError):
            await asked[0]
        recorder = proxy.running.recorder
        live = recorder.live.known(rollout.id)
        await until(lambda: not live.n_users and not live.n_in_flight and not recorder.running)
        await proxy.settled()
        (call,) = proxy.store.calls(rollout.id)
        assert call.state in LEFT_AT[step]
        if call.state is not CallState.DELIVERED:
            assert proxy.store.sequences(rollout.id) == []
        assert not live.in_flight


async def test_a_retry_keeps_the_call_that_its_first_client_left(proxied):
    async with proxied([SLOW]) as (proxy, engine), connections() as session:
        rollout = await proxy.open_rollout()
        first = asyncio.create_task(ask(session, rollout.base_url, stream=True))
        await until(lambda: proxy.running.recorder.n_in_flight)
        (generation,) = proxy.running.recorder.running
        await until(lambda: generation.n_followers == 1)
        again = {"x-stainless-retry-count": "1"}
        second = asyncio.create_task(ask(session, rollout.base_url, headers=again))
        await until(lambda: generation.n_followers == 2)
        first.cancel()
        status, body = await second
        assert status == 200
        assert json.loads(body)["choices"][0]["message"]["content"] == SLOW.content
        await proxy.settled()
        (call,) = proxy.store.calls(rollout.id)
        assert call.state is CallState.DELIVERED
        assert engine.stats.calls == 1


async def test_an_answer_lost_with_the_proxy_is_told_again_number_for_number(proxied, tmp_path):
    async with proxied([SLOW]) as (proxy, _), connections() as session:
        rollout = await proxy.open_rollout()
        _, body = await ask(session, rollout.base_url, logprobs=True, return_token_ids=True)
    with sqlite3.connect(tmp_path / "store.db") as store:
        store.execute("UPDATE call SET state = 'committed'")  # killed before it noted the delivery
    port = int(proxy.url.rpartition(":")[2])
    again = {"x-stainless-retry-count": "1"}
    async with proxied([], port=port) as (proxy, engine), connections() as session:
        status, told = await ask(
            session, rollout.base_url, headers=again, logprobs=True, return_token_ids=True
        )
        await proxy.settled()
        assert status == 200
        (first,), (second,) = json.loads(body)["choices"], json.loads(told)["choices"]
        assert second["message"] == first["message"]
        assert second["token_ids"] == first["token_ids"]
        assert numbers(second) == numbers(first)
        assert engine.stats.calls == 0
        (sequence,) = proxy.store.sequences(rollout.id)
        assert sequence.n_trained


async def test_calls_that_come_at_once_are_limited_and_siblings_are_sampled_apart(proxied):
    async with (
        proxied(lambda _call: SLOW, max_concurrent_calls=8) as (proxy, engine),
        connections() as session,
    ):
        rollout = await proxy.open_rollout()
        answers = await asyncio.gather(*(ask(session, rollout.base_url) for _ in range(40)))
        statuses = [status for status, _ in answers]
        assert set(statuses) == {200, 429}
        await proxy.settled()
        calls = proxy.store.calls(rollout.id)
        assert len(calls) == statuses.count(200) == engine.stats.calls
        trained = sum(found.n_trained for found in proxy.store.sequences(rollout.id))
        assert trained == sum(call.n_out or 0 for call in calls)
        live = proxy.running.recorder.live.known(rollout.id)
        assert (live.n_in_flight, live.in_flight) == (0, {})


async def test_a_budget_holds_for_calls_that_come_at_once(proxied):
    async with proxied(lambda _call: SLOW) as (proxy, engine), connections() as session:
        rollout = await proxy.open_rollout(budgets={"max_calls": 3})
        answers = await asyncio.gather(*(ask(session, rollout.base_url) for _ in range(20)))
        await proxy.settled()
        assert engine.stats.calls == 3
        states = [call.state for call in proxy.store.calls(rollout.id)]
        assert sorted(states) == sorted([CallState.DELIVERED] * 3 + [CallState.SYNTHETIC] * 2)
        assert [status for status, _ in answers].count(403) == 15


async def test_a_spent_budget_stays_spent_over_a_restart(proxied):
    async with proxied([SLOW]) as (proxy, _), connections() as session:
        rollout = await proxy.open_rollout(budgets={"max_calls": 1})
        for _ in range(3):
            assert (await ask(session, rollout.base_url))[0] == 200
    port = int(proxy.url.rpartition(":")[2])
    async with proxied([], port=port) as (proxy, _), connections() as session:
        assert (await ask(session, rollout.base_url))[0] == 403


async def test_a_wall_budget_counts_from_the_rollouts_start(proxied):
    async with proxied([]) as (proxy, _), connections() as session:
        rollout = await proxy.open_rollout(budgets={"wall_s": 1e-3})
        status, body = await ask(session, rollout.base_url)
        assert status == 200
        assert b"wall budget" in body


async def test_a_rollout_that_is_closed_mid_call_lets_it_end_and_is_then_forgotten(proxied):
    async with proxied([SLOW]) as (proxy, _), connections() as session:
        rollout = await proxy.open_rollout()
        asked = asyncio.create_task(ask(session, rollout.base_url, stream=True))
        await until(lambda: proxy.running.recorder.n_in_flight)
        await proxy.running.rollouts.close(rollout.id)
        status, body = await asked
        assert status == 200
        assert body.endswith(b"data: [DONE]\n\n")
        await proxy.settled()
        assert (await ask(session, rollout.base_url))[0] == 403
        assert len(proxy.running.recorder.live) == 0
        (call,) = proxy.store.calls(rollout.id)
        assert call.state is CallState.DELIVERED


async def test_a_stopping_proxy_takes_no_new_calls_on_open_connections(proxied):
    async with proxied([SLOW]) as (proxy, _), connections() as session:
        rollout = await proxy.open_rollout()
        proxy.running.recorder.is_stopping = True
        async with session.post(
            f"{rollout.base_url}/chat/completions", json={"model": "m", "messages": [USER]}
        ) as answer:
            assert answer.status == 503
            assert "Retry-After" in answer.headers
        assert proxy.store.calls(rollout.id) == []


async def test_a_port_that_is_taken_is_named_with_what_to_do(tmp_path):
    async with ScriptedEngine([]) as engine:
        port = int(engine.url.rpartition(":")[2])
        settings = ProxySettings.model_validate(
            {"port": port, "admin_port": 0, "engine": {"urls": [engine.url]}}
        )
        with Store.open(tmp_path / "store.db") as store:
            with pytest.raises(ConfigurationError, match=rf"{port} can't be listened on"):
                async with running_proxy(settings, store):
                    pass


async def test_a_rollout_that_met_no_engine_yet_is_recorded_exactly_once_there_is_one(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    engine = EngineSettings(urls=(f"http://127.0.0.1:{port}",), connect_s=1)
    settings = ProxySettings.model_validate(
        {"port": 0, "admin_port": 0, "drain_s": 1, "engine": engine}
    )
    with Store.open(tmp_path / "store.db") as store:
        async with (
            running_proxy(settings, store, wait_for_engine=True) as proxy,
            connections() as session,
        ):
            rollout, secret = await proxy.rollouts.open(run=store.open_run("late"))
            base_url = proxy.rollout_url(secret)
            assert (await ask(session, base_url))[0] == 503
            for path in ("/v1/models", "/v1/models/m"):
                async with session.get(proxy.url + path) as answer:
                    assert answer.status == 200
            async with ScriptedEngine(lambda _call: Reply("a"), port=port):
                await until(lambda: proxy.recorder.is_ready)
                assert (await ask(session, base_url))[0] == 200
            status, body = await ask(session, base_url)
            assert status == 503
            assert str(port).encode() not in body
        calls = store.calls(rollout.id)
        assert calls[0].prompt_mode is PromptMode.RENDERED
        assert calls[0].exact


async def test_an_engine_that_refuses_our_own_key_is_not_the_harness_to_blame(proxied):
    refused = Reply(fault="status@401")
    async with proxied([refused]) as (proxy, _), connections() as session:
        rollout = await proxy.open_rollout()
        status, body = await ask(session, rollout.base_url)
        assert status == 502
        assert json.loads(body)["error"]["type"] == "server_error"


async def test_a_store_that_is_busy_only_for_the_intent_loses_nothing(tmp_path):
    path = tmp_path / "store.db"
    other: list[sqlite3.Connection] = []

    def lock(_call_id, step):
        if step is Step.INTENT:
            other.append(sqlite3.connect(path, isolation_level=None))
            other[0].execute("BEGIN IMMEDIATE")

    slow = Reply(content="word " * 20, delay_ms=40)
    with Store.open(path, busy_s=0.2) as store:
        async with (
            ScriptedEngine(lambda _call: slow) as engine,
            proxy_for_tests(engine.url, store, observer=lock) as proxy,
            connections() as session,
        ):
            rollout = await proxy.open_rollout()
            asked = asyncio.create_task(ask(session, rollout.base_url))
            await until(lambda: other)
            await proxy.running.recorder.ledger.flushed()
            other[0].close()
            assert (await asked)[0] == 200
            await proxy.settled()
        (call,) = store.calls(rollout.id)
        assert call.exact
        assert call.state is CallState.DELIVERED


async def test_an_answer_is_not_given_once_the_stores_file_is_gone(proxied, tmp_path):
    async with proxied(lambda _call: SLOW) as (proxy, _), connections() as session:
        rollout = await proxy.open_rollout()
        assert (await ask(session, rollout.base_url))[0] == 200
        for name in ("store.db", "store.db-wal", "store.db-shm"):
            (tmp_path / name).unlink(missing_ok=True)
        with capture_logs() as logs:
            status, body = await ask(session, rollout.base_url)
            assert status == 503
            assert b"the proxy's log says why" in body
            with pytest.raises(aiohttp.ClientPayloadError):  # cut, after an error event
                await ask(session, rollout.base_url, stream=True)
        assert any("was deleted" in str(line.get("error")) for line in logs)
