"""What a harness did to its history, by name; and what a text engine's lanes are."""

import json
from typing import Any

import aiohttp
import pytest

from budwood.proxy.testing import Reply
from budwood.trajectory_store import PromptMode

SYSTEM = {"role": "system", "content": "You are a helpful agent."}
USER = {"role": "user", "content": "List all files of the folder, please."}
TOOLS = [{"type": "function", "function": {"name": "b", "parameters": {"type": "object"}}}]
MORE = [*TOOLS, {"type": "function", "function": {"name": "c"}}]


def reply(call) -> Reply:
    return Reply(
        reasoning=f"I think {call.index}.",
        content=f"Step {call.index} is next.",
        tool_calls=[("b", {"n": call.index})],
    )


async def ask(session, base_url, messages, **fields) -> dict[str, Any]:
    body = {"model": "m", "messages": messages, "tools": TOOLS, **fields}
    async with session.post(f"{base_url}/chat/completions", json=body) as answer:
        assert answer.status == 200
        return (await answer.json())["choices"][0]["message"]


def answered(message: dict, text: str) -> list[dict]:
    echoed = {key: message[key] for key in ("role", "content", "reasoning_content", "tool_calls")}
    return [
        echoed,
        {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": text},
    ]


def changed(messages: list[dict], index: int, **fields: Any) -> list[dict]:
    return [{**m, **fields} if n == index else m for n, m in enumerate(messages)]


def without(messages: list[dict], *indices: int) -> list[dict]:
    return [m for n, m in enumerate(messages) if n not in indices]


def other_arguments(messages: list[dict]) -> list[dict]:
    edited = json.loads(json.dumps(messages))
    edited[2]["tool_calls"][0]["function"]["arguments"] = '{"n":99}'
    return edited


EDITS = {
    "nothing": (lambda m: m, TOOLS, None),
    "reasoning of all": (
        lambda m: [{k: v for k, v in x.items() if k != "reasoning_content"} for x in m],
        TOOLS,
        "reasoning_dropped",
    ),
    "a cut tool result": (
        lambda m: changed(m, 3, content="a long result number [cut]"),
        TOOLS,
        "truncated",
    ),
    "a cleared tool result": (lambda m: changed(m, 3, content="[gone]"), TOOLS, "history_edited"),
    "other system text": (
        lambda m: changed(m, 0, content="You are evil."),
        TOOLS,
        "history_edited",
    ),
    "other arguments": (other_arguments, TOOLS, "history_edited"),
    "a turn left out": (lambda m: without(m, 2, 3), TOOLS, "message_removed"),
    "a reply left out": (lambda m: without(m, 4), TOOLS, "message_removed"),
    "a result left out": (lambda m: without(m, 3), TOOLS, "message_removed"),
    "a summary": (
        lambda m: [m[0], {"role": "user", "content": "So far: x."}, *m[-2:]],
        TOOLS,
        "compacted",
    ),
    "a reminder put in": (
        lambda m: [*m[:2], {"role": "user", "content": "Mind the time."}, *m[2:]],
        TOOLS,
        "history_edited",
    ),
    "another order": (lambda m: [*m[:2], *m[4:6], *m[2:4], *m[6:]], TOOLS, "history_edited"),
    "more tools": (lambda m: m, MORE, "tools_changed"),
    "no tools": (lambda m: m, None, "tools_changed"),
}


@pytest.mark.parametrize("as_vllm", [True, False], ids=["vllm", "text"])
@pytest.mark.parametrize("kind", EDITS)
async def test_an_edit_of_the_history_is_named_and_stays_in_its_lane(proxied, kind, as_vllm):
    edit, tools, reason = EDITS[kind]
    options = {"as_vllm": as_vllm}
    async with (
        proxied(reply, engine_options=options) as (proxy, engine),
        aiohttp.ClientSession() as session,
    ):
        rollout = await proxy.open_rollout()
        messages = [SYSTEM, USER]
        for turn in range(3):
            message = await ask(session, rollout.base_url, messages)
            messages += answered(message, f"a long result number {turn} of a tool")
        await ask(session, rollout.base_url, edit(messages), tools=tools)
        await proxy.settled()
        calls = proxy.store.calls(rollout.id)
        assert len({call.lane for call in calls}) == 1
        last = calls[-1]
        if reason is None:
            assert last.parent == calls[-2].id
        else:
            assert reason in last.reasons
            assert last.edit_of == calls[-2].id
        if as_vllm:
            assert last.exact
            assert last.prompt_mode is (PromptMode.RENDERED if reason else PromptMode.SPLICED)
            assert proxy.store.tokens(last.id).prompt_ids.tolist() == engine.calls[-1].prompt_ids
            trained = sum(found.n_trained for found in proxy.store.sequences(rollout.id))
            assert trained == sum(call.n_out or 0 for call in calls)
        else:
            assert last.prompt_mode is PromptMode.ENGINE_RENDERED
            assert not last.exact
            assert "no_token_ids" in last.reasons
            assert proxy.store.sequences(rollout.id) == []


async def test_a_text_engines_conversation_goes_on_after_a_restart(proxied):
    options = {"as_vllm": False}
    async with proxied(reply, engine_options=options) as (proxy, _):
        rollout = await proxy.open_rollout()
        async with aiohttp.ClientSession() as session:
            message = await ask(session, rollout.base_url, [USER])
    port = int(proxy.url.rpartition(":")[2])
    async with proxied(reply, engine_options=options, port=port) as (proxy, _):
        async with aiohttp.ClientSession() as session:
            await ask(session, rollout.base_url, [USER, *answered(message, "r")])
        first, second = proxy.store.calls(rollout.id)
        assert second.parent == first.id
        assert (second.lane, second.turn_index) == (first.lane, 1)


async def test_siblings_are_told_apart_by_the_ids_of_their_calls(proxied):
    same = Reply(content="Same.", tool_calls=[("b", {})])
    async with (
        proxied(lambda _call: same) as (proxy, _),
        aiohttp.ClientSession() as session,
    ):
        rollout = await proxy.open_rollout()
        siblings = [await ask(session, rollout.base_url, [USER]) for _ in range(3)]
        for message in siblings:
            await ask(session, rollout.base_url, [USER, *answered(message, "r")])
        calls = proxy.store.calls(rollout.id)
        assert [call.parent for call in calls[3:]] == [call.id for call in calls[:3]]
        assert not any("ambiguous" in call.flags for call in calls)


def said(message: dict) -> dict:
    """What a loop keeps that knows nothing of reasoning."""
    return {"role": "assistant", "content": message["content"] or ""}


@pytest.mark.parametrize("content", ["A word.", ""])
async def test_a_chat_that_keeps_no_reasoning_stays_in_its_lane(proxied, content):
    talk = Reply(reasoning="I think.", content=content)
    async with (
        proxied(lambda _call: talk) as (proxy, _),
        aiohttp.ClientSession() as session,
    ):
        rollout = await proxy.open_rollout()
        messages = [SYSTEM, USER]
        for turn in range(3):
            message = await ask(session, rollout.base_url, messages)
            messages += [said(message), {"role": "user", "content": f"Go on, {turn}."}]
        await proxy.settled()
        first, *others = proxy.store.calls(rollout.id)
        assert first.reasons == ("first_call",)
        assert {call.lane for call in others} == {first.lane}
        assert [call.reasons for call in others] == [("reasoning_dropped",)] * 2
        assert all(call.exact for call in others)


async def test_chats_that_keep_no_reasoning_are_not_merged_where_they_read_alike(proxied):
    async with (
        proxied(lambda _call: Reply(reasoning="I think.", content="Yes.")) as (proxy, _),
        aiohttp.ClientSession() as session,
    ):
        rollout = await proxy.open_rollout()
        twins = [await ask(session, rollout.base_url, [USER]) for _ in range(2)]
        history = [USER, said(twins[0]), {"role": "user", "content": "And?"}]
        await ask(session, rollout.base_url, history)
        *begun, last = proxy.store.calls(rollout.id)
        assert last.lane not in {call.lane for call in begun}
        assert last.reasons == ("unknown_history",)
