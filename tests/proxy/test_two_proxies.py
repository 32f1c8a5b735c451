"""Two proxies on one store: whichever gets a call knows what the other did."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
import pytest

from budwood.proxy.recording.steps import Step
from budwood.proxy.testing import Reply, ScriptedEngine
from budwood.proxy.testing.running import proxy_for_tests
from budwood.trajectory_store import CallState, PromptMode, Store

TOOLS = [{"type": "function", "function": {"name": "b", "parameters": {"type": "object"}}}]


@asynccontextmanager
async def two(tmp_path, script, *, observer=None, **options):
    """Two proxies before one engine, and the path secret's URL at each."""
    async with ScriptedEngine(script, **options) as engine:
        with (
            Store.open(tmp_path / "store.db") as mine,
            Store.open(tmp_path / "store.db") as others,
        ):
            async with (
                proxy_for_tests(engine.url, mine, observer=observer) as one,
                proxy_for_tests(engine.url, others) as other,
                aiohttp.ClientSession() as session,
            ):
                yield one, other, session, engine


async def ask(session, url, secret, messages, **fields):
    body = {"model": "m", "messages": messages, "tools": TOOLS, **fields}
    async with session.post(f"{url}/r/{secret}/v1/chat/completions", json=body) as answer:
        return answer.status, await answer.json()


async def until(is_so):
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110  what is waited for has no event
            await asyncio.sleep(0.005)


def answered(answer) -> list[dict]:
    message = answer["choices"][0]["message"]
    echoed = {key: message[key] for key in ("role", "content", "reasoning", "tool_calls")}
    call_id = message["tool_calls"][0]["id"]
    return [echoed, {"role": "tool", "tool_call_id": call_id, "content": "result"}]


def reply(call) -> Reply:
    return Reply(reasoning="r", content=f"n {call.index}", tool_calls=[("b", {"n": call.index})])


@pytest.mark.parametrize("as_vllm", [True, False], ids=["vllm", "text"])
async def test_conversations_that_alternate_between_proxies_stay_in_their_lanes(tmp_path, as_vllm):
    async with two(tmp_path, reply, as_vllm=as_vllm) as (one, other, session, _):
        rollout = await one.open_rollout()

        async def converse(agent: int) -> None:
            messages: list[dict] = [{"role": "user", "content": f"task {agent}"}]
            for turn in range(6):
                proxy = (one, other)[(turn + agent) % 2]
                status, answer = await ask(session, proxy.url, rollout.secret, messages)
                assert status == 200
                messages += answered(answer)

        await asyncio.gather(*(converse(agent) for agent in range(3)))
        calls = one.store.calls(rollout.id)
        assert len({call.lane for call in calls}) == 3
        assert sorted(call.turn_index for call in calls) == sorted([*range(6)] * 3)
        if as_vllm:
            modes = [call.prompt_mode for call in calls]
            assert modes.count(PromptMode.SPLICED) == 15
            assert len(one.store.sequences(rollout.id)) == 3


async def test_what_another_proxy_did_during_our_own_call_is_found(tmp_path):
    """Ours has the higher seq: looking behind it alone would miss the other's."""

    def slow_first(call):
        return replace(reply(call), delay_ms=30.0 if "slow" in call.prompt else 0.0)

    async with two(tmp_path, slow_first) as (one, other, session, _):
        rollout = await one.open_rollout()
        slow = [{"role": "user", "content": "slow task"}]
        user = [{"role": "user", "content": "task"}]
        ours = asyncio.create_task(ask(session, one.url, rollout.secret, slow))
        await until(lambda: one.running.recorder.n_in_flight)
        _, theirs = await ask(session, other.url, rollout.secret, user)
        await ours
        await ask(session, one.url, rollout.secret, [*user, *answered(theirs)])
        await one.settled()
        second, first, last = one.store.calls(rollout.id)
        assert last.parent == second.id
        assert last.prompt_mode is PromptMode.SPLICED
        assert first.lane != last.lane


async def test_an_answer_lost_at_one_proxy_is_given_once_by_the_other(tmp_path):
    asked: list[asyncio.Task] = []

    def leave(_call_id, step):
        if step is Step.TERMINAL_HELD:
            asked[0].cancel()

    async with two(tmp_path, reply, observer=leave) as (one, other, session, engine):
        rollout = await one.open_rollout()
        user = [{"role": "user", "content": "task"}]
        asked.append(asyncio.create_task(ask(session, one.url, rollout.secret, user)))
        with pytest.raises(asyncio.CancelledError):
            await asked[0]
        await until(lambda: not one.running.recorder.running)
        await one.settled()
        (call,) = one.store.calls(rollout.id)
        assert call.state is CallState.UNDELIVERED
        n_calls = engine.stats.calls
        answers = [await ask(session, other.url, rollout.secret, user) for _ in range(2)]
        assert [status for status, _ in answers] == [200, 200]
        assert engine.stats.calls == n_calls + 1
        contents = [answer["choices"][0]["message"]["content"] for _, answer in answers]
        assert contents[0] == (call.reply or {})["content"]
        assert contents[1] != contents[0]


async def test_a_rollout_closed_at_one_proxy_is_closed_at_the_other(tmp_path):
    async with two(tmp_path, reply) as (one, other, session, _):
        rollout = await one.open_rollout()
        user = [{"role": "user", "content": "task"}]
        assert (await ask(session, other.url, rollout.secret, user))[0] == 200
        await one.running.rollouts.close(rollout.id)
        async with asyncio.timeout(60):
            while (await ask(session, other.url, rollout.secret, user))[0] != 403:
                pass
