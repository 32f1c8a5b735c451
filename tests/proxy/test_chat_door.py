"""The chat door, through real sockets and the official SDK, before a scripted engine."""

import asyncio
import gzip
import sqlite3
import threading
from typing import Any

import aiohttp
import openai
import pytest

from budwood.proxy.call import parse_chat
from budwood.proxy.recording.steps import Step
from budwood.proxy.testing import Reply
from budwood.trajectory_store import CallState, FailureClass, History, LaneKind, PromptMode, Purpose

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run a command.",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
        },
    }
]
USER: Any = {"role": "user", "content": "List the files."}
SYSTEM = {"role": "system", "content": "You are helpful."}
CALL = Reply(reasoning="I look.", tool_calls=[("bash", {"command": "ls"})])
DONE = Reply(reasoning="I answer.", content="Two files.")


def client(rollout) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=rollout.base_url, api_key="sk-own", max_retries=0)


async def say(sdk, messages, *, stream=True, **fields):
    """One call; returns the assistant message as a harness echoes it."""
    if not stream:
        answer = await sdk.chat.completions.create(model="m", messages=messages, **fields)
        message = answer.choices[0].message.model_dump(exclude_none=True)
        return {k: v for k, v in message.items() if k in ECHOED}
    chunks = await sdk.chat.completions.create(model="m", messages=messages, stream=True, **fields)
    message: dict = {"role": "assistant", "content": "", "reasoning_content": ""}
    calls: dict[int, dict] = {}
    async for chunk in chunks:
        for choice in chunk.choices:
            delta = choice.delta.model_dump(exclude_none=True)
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for part in delta.get("tool_calls", ()):
                call = calls.setdefault(
                    part["index"], {"type": "function", "function": {"name": "", "arguments": ""}}
                )
                if part.get("id"):
                    call["id"] = part["id"]
                for key, value in part["function"].items():
                    call["function"][key] += value
    if calls:
        message["tool_calls"] = [calls[i] for i in sorted(calls)]
    return message


ECHOED = ("role", "content", "reasoning_content", "tool_calls")


async def until(is_so):
    """Let the event loop turn until something is so."""
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110  what is waited for has no event
            await asyncio.sleep(0.005)


def answer_to(message, text="a.txt b.txt"):
    return {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": text}


@pytest.mark.parametrize("stream", [True, False])
async def test_a_tool_loop_is_recorded_as_one_exact_spliced_branch(proxied, stream):
    async with proxied([CALL, CALL, DONE]) as (proxy, _):
        rollout = await proxy.open_rollout(harness="test")
        async with client(rollout) as sdk:
            messages = [SYSTEM, USER]
            for _turn in range(2):
                message = await say(sdk, messages, stream=stream, tools=TOOLS)
                messages += [message, answer_to(message)]
            last = await say(sdk, messages, stream=stream, tools=TOOLS)
        assert last["content"].strip() == "Two files."
        await proxy.settled()
        calls = proxy.store.calls(rollout.id)
        assert [call.prompt_mode for call in calls] == [
            PromptMode.RENDERED,
            PromptMode.SPLICED,
            PromptMode.SPLICED,
        ]
        assert all(call.exact and call.state is CallState.DELIVERED for call in calls)
        assert [call.turn_index for call in calls] == [0, 1, 2]
        (sequence,) = proxy.store.sequences(rollout.id)
        assert sequence.is_exact
        assert sequence.n_trained == sum(call.n_out or 0 for call in calls)


async def test_the_record_is_what_the_engine_read_and_sampled(proxied):
    async with proxied([CALL, DONE]) as (proxy, engine):
        rollout = await proxy.open_rollout()
        async with client(rollout) as sdk:
            message = await say(sdk, [USER], tools=TOOLS)
            await say(sdk, [USER, message, answer_to(message)], tools=TOOLS)
        for call, seen in zip(proxy.store.calls(rollout.id), engine.calls, strict=True):
            tokens = proxy.store.tokens(call.id)
            assert tokens.prompt_ids.tolist() == seen.prompt_ids
            assert seen.was_sent_ids
            assert len(tokens.logprobs) == len(tokens.out_ids) == call.n_out


async def test_reserialised_arguments_and_white_space_are_spliced(proxied):
    async with proxied([CALL, DONE]) as (proxy, _):
        rollout = await proxy.open_rollout()
        async with client(rollout) as sdk:
            message = await say(sdk, [USER], tools=TOOLS)
            message["tool_calls"][0]["function"]["arguments"] = '{"command":"ls"}'
            message["reasoning_content"] = message["reasoning_content"].strip()
            message["content"] = None
            tail = answer_to(message)
            await say(sdk, [USER, message, tail], tools=TOOLS)
        assert proxy.store.calls(rollout.id)[1].prompt_mode is PromptMode.SPLICED


async def test_dropped_reasoning_is_rendered_as_a_new_branch_of_the_same_lane(proxied):
    async with proxied([CALL, DONE]) as (proxy, engine):
        rollout = await proxy.open_rollout()
        async with client(rollout) as sdk:
            message = await say(sdk, [USER], tools=TOOLS)
            del message["reasoning_content"]
            await say(sdk, [USER, message, answer_to(message)], tools=TOOLS)
        first, second = proxy.store.calls(rollout.id)
        assert second.prompt_mode is PromptMode.RENDERED
        assert "reasoning_dropped" in second.reasons
        assert second.lane == first.lane
        assert second.parent is None
        assert second.edit_of == first.id
        assert second.exact
        assert "I look." not in engine.calls[-1].prompt


async def test_keep_reasoning_puts_dropped_reasoning_back(proxied):
    async with proxied([CALL, DONE]) as (proxy, engine):
        rollout = await proxy.open_rollout(history=History.KEEP_REASONING)
        async with client(rollout) as sdk:
            message = await say(sdk, [USER], tools=TOOLS)
            del message["reasoning_content"]
            await say(sdk, [USER, message, answer_to(message)], tools=TOOLS)
        assert proxy.store.calls(rollout.id)[1].prompt_mode is PromptMode.SPLICED
        assert "I look." in engine.calls[-1].prompt


async def test_a_sub_agent_and_a_title_call_have_lanes_of_their_own(proxied):
    script = [Reply(content="A title"), CALL, CALL, Reply(content="Sub done."), DONE]
    async with proxied(script) as (proxy, _):
        rollout = await proxy.open_rollout()
        async with client(rollout) as sdk:
            await say(sdk, [{"role": "user", "content": "Title for: list files"}])
            message = await say(sdk, [SYSTEM, USER], tools=TOOLS)
            sub = [{"role": "system", "content": "You are a helper."}, USER]
            inner = await say(sdk, sub, tools=TOOLS)
            await say(sdk, [*sub, inner, answer_to(inner)], tools=TOOLS)
            await say(sdk, [SYSTEM, USER, message, answer_to(message)], tools=TOOLS)
        kinds = {lane.id: lane.kind for lane in proxy.store.lanes(rollout.id)}
        assert [kinds[call.lane] for call in proxy.store.calls(rollout.id)] == [
            LaneKind.SIDE,
            LaneKind.MAIN,
            LaneKind.SUB_AGENT,
            LaneKind.SUB_AGENT,
            LaneKind.MAIN,
        ]


async def test_an_unknown_key_is_refused_and_nothing_is_recorded(proxied):
    async with proxied([DONE]) as (proxy, engine):
        async with openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="bad") as sdk:
            with pytest.raises(openai.AuthenticationError):
                await sdk.chat.completions.create(model="m", messages=[USER])
        assert engine.stats.calls == 0


async def test_a_closed_rollout_answers_403(proxied):
    async with proxied([DONE]) as (proxy, _):
        rollout = await proxy.open_rollout()
        await proxy.running.rollouts.close(rollout.id)
        async with client(rollout) as sdk:
            with pytest.raises(openai.PermissionDeniedError):
                await say(sdk, [USER])


async def test_open_mode_names_a_rollout_after_the_keys_hash(proxied):
    async with proxied([DONE, DONE], open_rollouts=True) as (proxy, _):
        async with openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="sk-mine") as sdk:
            await say(sdk, [USER])
            await say(sdk, [USER])
        (rollout,) = proxy.store.rollouts()
        assert rollout.labels["name"] == "2bbd0564" or len(rollout.labels["name"]) == 8
        assert len(proxy.store.calls(rollout.id)) == 2


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b'{"model":"m"}', 400),
        (b'{"model":"m","messages":[]}', 400),
        (b'{"model":"m","messages":[{"role":"user","content":"x"}],"n":2}', 400),
        (b'{"model":"m","messages":[{"role":"user","content":NaN}]}', 400),
        (b'{"model":"m","model":"m","messages":[{"role":"user","content":"x"}]}', 400),
        (b'{"messages":' + b"[" * 10_000 + b"]" * 10_000 + b"}", 400),
    ],
)
async def test_bad_bodies_get_a_dialect_error(proxied, body, status):
    async with proxied([DONE]) as (proxy, _):
        rollout = await proxy.open_rollout()
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{rollout.base_url}/chat/completions", data=body) as answer,
        ):
            assert answer.status == status
            error = (await answer.json())["error"]
            assert error["type"] == "invalid_request_error"
            assert "Traceback" not in error["message"]
        assert proxy.store.calls(rollout.id) == []


async def test_compressed_bodies_are_read(proxied):
    async with proxied([DONE]) as (proxy, _):
        rollout = await proxy.open_rollout()
        body = b'{"model":"m","messages":[{"role":"user","content":"x"}]}'
        headers = {"Content-Encoding": "gzip"}
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                f"{rollout.base_url}/chat/completions", data=gzip.compress(body), headers=headers
            ) as answer,
        ):
            assert answer.status == 200
        (call,) = proxy.store.calls(rollout.id)
        assert proxy.store.request_body(call.id) == body


async def test_a_body_over_the_limit_is_refused_with_413(proxied):
    async with proxied([DONE], max_body_mib=1) as (proxy, _):
        rollout = await proxy.open_rollout()
        body = gzip.compress(b'{"messages":"' + b"x" * 2**21 + b'"}')
        headers = {"Content-Encoding": "gzip"}
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                f"{rollout.base_url}/chat/completions", data=body, headers=headers
            ) as answer,
        ):
            assert answer.status == 413


async def test_a_client_that_leaves_ends_the_sampling(proxied):
    slow = Reply(content="word " * 200, delay_ms=20)
    async with proxied([slow]) as (proxy, engine):
        rollout = await proxy.open_rollout()
        async with client(rollout) as sdk:
            stream = await sdk.chat.completions.create(model="m", messages=[USER], stream=True)
            async for _ in stream:
                break
            await stream.close()
        async with asyncio.timeout(60):
            await proxy.running.recorder.idle()
        (call,) = proxy.store.calls(rollout.id)
        assert call.state is CallState.ABORTED
        assert call.cause == "client_gone"
        assert call.failure_class is FailureClass.HARNESS
        assert engine.stats.aborted == 1
        assert proxy.store.sequences(rollout.id) == []


async def test_an_overflow_is_told_in_words_that_harnesses_know(proxied):
    async with proxied([DONE], engine_options={"max_model_len": 300}) as (proxy, _):
        rollout = await proxy.open_rollout()
        async with client(rollout) as sdk:
            with pytest.raises(openai.BadRequestError) as caught:
                await say(sdk, [{"role": "user", "content": "many words " * 300}])
        assert caught.value.code == "context_length_exceeded"
        assert "maximum context length" in caught.value.message
        (call,) = proxy.store.calls(rollout.id)
        assert (call.failure_class, call.cause) == (FailureClass.POLICY, "context_overflow")


async def test_a_spent_budget_ends_in_a_normal_stop_then_403(proxied):
    async with proxied([DONE]) as (proxy, _):
        rollout = await proxy.open_rollout(budgets={"max_calls": 1})
        async with client(rollout) as sdk:
            await say(sdk, [USER])
            for _ in range(2):
                assert "budget" in (await say(sdk, [USER]))["content"]
            with pytest.raises(openai.PermissionDeniedError):
                await say(sdk, [USER])
        await proxy.settled()
        states = [call.state for call in proxy.store.calls(rollout.id)]
        assert states == [CallState.DELIVERED, CallState.SYNTHETIC, CallState.SYNTHETIC]


async def test_other_dialects_say_not_yet_and_are_remembered(proxied):
    async with proxied([DONE]) as (proxy, _):
        rollout = await proxy.open_rollout()
        async with aiohttp.ClientSession() as session:
            for path in ("responses", "messages", "completions"):
                async with session.post(f"{rollout.base_url}/{path}", json={}) as answer:
                    assert answer.status == 400
                    error = (await answer.json())["error"]
                    assert error["code"] == "dialect_not_supported"
        live = proxy.running.recorder.live.known(rollout.id)
        assert set(live.refused_doors) == {"responses", "messages", "completions"}


async def test_models_and_probes_answer(proxied):
    async with proxied([DONE]) as (proxy, _), aiohttp.ClientSession() as session:
        async with session.get(f"{proxy.url}/v1/models") as answer:
            listing = await answer.json()
            assert listing["data"][0]["max_model_len"] == 131_072
        for method, path in (("HEAD", "/"), ("GET", "/health"), ("GET", "/api/tags")):
            async with session.request(method, proxy.url + path) as answer:
                assert answer.status == 200
        async with session.post(f"{proxy.url}/v1/nothing", json={}) as answer:
            assert answer.status == 404


async def test_the_same_body_after_a_lost_answer_gets_the_committed_one(proxied, tmp_path):
    locked: list[sqlite3.Connection] = []

    def hold_the_commit(_call_id, step):
        if step is Step.TERMINAL_HELD and not locked:
            locked.append(sqlite3.connect(tmp_path / "store.db"))
            locked[0].execute("BEGIN IMMEDIATE")

    async with proxied([DONE], observer=hold_the_commit) as (proxy, engine):
        rollout = await proxy.open_rollout()
        async with client(rollout) as sdk:
            asked = asyncio.create_task(say(sdk, [USER]))
            await until(lambda: locked)
            asked.cancel()
            (generation,) = proxy.running.recorder.running
            await until(lambda: not generation.n_followers)
            locked[0].close()
            await proxy.settled()
            (call,) = proxy.store.calls(rollout.id)
            assert call.state is CallState.UNDELIVERED
            assert proxy.store.sequences(rollout.id) == []
            again = await say(sdk, [USER], stream=False)
            assert again["content"].strip() == "Two files."
        await proxy.settled()
        assert engine.stats.calls == 1
        assert proxy.store.call(call.id).state is CallState.DELIVERED
        (sequence,) = proxy.store.sequences(rollout.id)
        assert sequence.n_trained == call.n_out


async def test_a_marked_retry_joins_the_call_in_flight(proxied):
    slow = Reply(content="word " * 20, delay_ms=20)
    async with proxied([slow]) as (proxy, _):
        rollout = await proxy.open_rollout()
        async with client(rollout) as sdk:
            first = asyncio.create_task(say(sdk, [USER]))
            await until(lambda: proxy.running.recorder.n_in_flight)
            headers = {"x-stainless-retry-count": "1"}
            second = await say(sdk, [USER], extra_headers=headers)
            assert (await first)["content"] == second["content"]
        assert len(proxy.store.calls(rollout.id)) == 1


async def test_the_lineage_survives_a_restart_of_the_proxy(proxied):
    script = lambda call: CALL if "a.txt" not in call.prompt else DONE  # noqa: E731
    async with proxied(script) as (proxy, _):
        rollout = await proxy.open_rollout()
        async with client(rollout) as sdk:
            message = await say(sdk, [USER], tools=TOOLS)
    async with proxied(script, port=int(proxy.url.rpartition(":")[2])) as (proxy, _):
        async with client(rollout) as sdk:
            await say(sdk, [USER, message, answer_to(message)], tools=TOOLS)
        first, second = proxy.store.calls(rollout.id)
        assert second.prompt_mode is PromptMode.SPLICED
        assert second.parent == first.id


async def test_a_retry_after_a_failure_goes_on_in_the_same_lane(proxied):
    async with proxied([Reply(content="x", fault="drop@1"), DONE]) as (proxy, _):
        rollout = await proxy.open_rollout()
        async with client(rollout) as sdk:
            with pytest.raises(openai.APIError):
                await say(sdk, [USER])
            await say(sdk, [USER])
        first, second = proxy.store.calls(rollout.id)
        assert first.state is CallState.FAILED
        assert second.lane == first.lane


async def test_keep_reasoning_does_not_overrule_changed_reasoning(proxied):
    async with proxied([CALL, DONE]) as (proxy, engine):
        rollout = await proxy.open_rollout(history=History.KEEP_REASONING)
        async with client(rollout) as sdk:
            message = await say(sdk, [USER], tools=TOOLS)
            message["reasoning_content"] = "Something else."
            await say(sdk, [USER, message, answer_to(message)], tools=TOOLS)
        assert proxy.store.calls(rollout.id)[1].prompt_mode is PromptMode.RENDERED
        assert "Something else." in engine.calls[-1].prompt


@pytest.mark.parametrize("announced", [[2], [None, 2], [None], [None, 1]])
async def test_a_call_across_a_weight_change_is_marked_and_not_trained(proxied, announced):
    """Also where the change did not come off, and the weights before it are back."""
    slow = Reply(content="word " * 20, delay_ms=10)
    async with proxied([slow]) as (proxy, _):
        recorder = proxy.running.recorder
        recorder.announce(1, "step-1")
        rollout = await proxy.open_rollout()
        async with client(rollout) as sdk:
            asked = asyncio.create_task(say(sdk, [USER]))
            await until(lambda: recorder.n_in_flight)
            for version in announced:
                recorder.announce(version, version and f"step-{version}")
            await asked
        await proxy.settled()
        (call,) = proxy.store.calls(rollout.id)
        assert (call.policy_before, call.policy_after) == (1, announced[-1])
        assert "mixed" in call.flags
        assert sum(s.n_trained for s in proxy.store.sequences(rollout.id)) == 0


async def test_training_runs_sample_as_the_run_says_and_log_what_was_asked(proxied):
    async with proxied([DONE], sampling={"temperature": 0.8}) as (proxy, engine):
        rollout = await proxy.open_rollout(purpose=Purpose.TRAIN)
        async with client(rollout) as sdk:
            await say(sdk, [USER], temperature=0.1, top_p=0.5)
        sent = engine.calls[-1].body
        assert (sent["temperature"], sent["top_p"]) == (0.8, 1.0)
        (call,) = proxy.store.calls(rollout.id)
        assert call.sampling["asked"] == {"temperature": 0.1, "top_p": 0.5}


async def test_constrained_sampling_is_refused_in_training_where_the_settings_say_so(proxied):
    async with proxied([DONE], constrained="refuse") as (proxy, _):
        rollout = await proxy.open_rollout(purpose=Purpose.TRAIN)
        async with client(rollout) as sdk:
            with pytest.raises(openai.BadRequestError):
                await say(sdk, [USER], tools=TOOLS, tool_choice="required")


async def test_texts_in_parts_are_written_as_the_template_writes_them(proxied):
    def parts(*texts):
        return {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}

    async with proxied([DONE, DONE]) as (proxy, engine):
        rollout = await proxy.open_rollout()
        async with client(rollout) as sdk:
            message = await say(sdk, [parts("List", " files.")])
            await say(sdk, [parts("List", " files."), message, parts("Thank", " you.")])
        assert "\nList files.<" in engine.calls[0].prompt
        assert "\nThank you.<" in engine.calls[1].prompt
        modes = [call.prompt_mode for call in proxy.store.calls(rollout.id)]
        assert modes == [PromptMode.RENDERED, PromptMode.SPLICED]


async def test_the_metrics_count_what_happened(proxied):
    async with proxied([CALL, DONE]) as (proxy, _):
        rollout = await proxy.open_rollout()
        async with client(rollout) as sdk:
            message = await say(sdk, [USER], tools=TOOLS)
            await say(sdk, [USER, message, answer_to(message)], tools=TOOLS)
        headers = {"Authorization": f"Bearer {proxy.running.admin_secret}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(f"{proxy.admin_url}/metrics") as answer,
        ):
            text = await answer.text()
        assert 'budwood_prompts_total{mode="spliced"} 1.0' in text
        assert 'budwood_suffixes{event="spliced"} 1.0' in text
        assert "budwood_first_token_seconds_count 2.0" in text
        assert "budwood_commit_seconds_count 2.0" in text


async def test_raw_replies_are_kept_where_the_settings_say_so(proxied):
    async with proxied([DONE], keep_raw=True) as (proxy, _):
        rollout = await proxy.open_rollout()
        async with client(rollout) as sdk:
            await say(sdk, [USER])
        (call,) = proxy.store.calls(rollout.id)
        assert b"[DONE]" in proxy.store.raw_reply(call.id)


async def test_a_body_of_which_much_is_new_is_read_beside_the_loop(proxied, monkeypatch):
    read_by: list[str] = []

    def parse(*given):
        read_by.append(threading.current_thread().name)
        return parse_chat(*given)

    monkeypatch.setattr("budwood.proxy.doors.chat.parse_chat", parse)
    long = {"role": "user", "content": "internationalisation " * 11_000}
    async with proxied(lambda _: DONE) as (proxy, _):
        rollout = await proxy.open_rollout()
        async with client(rollout) as sdk:
            await say(sdk, [USER])
            await say(sdk, [USER, long])
            await say(sdk, [USER, long, {"role": "assistant", "content": "a"}, USER])
    main = threading.main_thread().name
    assert [name == main for name in read_by] == [True, False, True]
