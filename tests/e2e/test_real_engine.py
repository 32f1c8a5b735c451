"""The proxy before real vLLM, by the official openai SDK: loops, faults, the command line."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import openai
import pytest

from budwood.proxy.testing.chat_template import DROPS_THINKING
from budwood.proxy.testing.real_engine import TAUGHT, tiny_engine
from budwood.proxy.testing.running import proxy_for_tests
from budwood.trajectory_store import CallState, FailureClass, History, PromptMode, Store

from .sdk_client import ask

TALK, TOOLS = TAUGHT[0]["messages"], TAUGHT[0]["tools"]
QUESTION: Any = {"role": "user", "content": "Hello"}
ENDLESS: dict[str, Any] = {"max_tokens": 8000, "extra_body": {"ignore_eos": True}}
RENDERED, SPLICED = PromptMode.RENDERED, PromptMode.SPLICED
SURE = 0.2
"""A temperature at which what is known by heart is said."""


@pytest.fixture
def proxied(tmp_path):
    """A context manager: a proxy before an engine, a rollout, and the SDK that knows it."""

    @asynccontextmanager
    async def start(engine_url, **rollout):
        with Store.open(tmp_path / "store.db") as store:
            async with proxy_for_tests(engine_url, store) as proxy:
                opened = await proxy.open_rollout(**rollout)
                async with openai.AsyncOpenAI(
                    base_url=opened.base_url, api_key="-", max_retries=0
                ) as sdk:
                    yield proxy, opened.id, sdk

    return start


async def hold(sdk, *, n_calls=4, stream=True, keep=lambda message: message):
    """The taught conversation: its users and tools say their part, the model its own."""
    history: list[dict[str, Any]] = []
    for message in TALK:
        if message["role"] != "assistant":
            given = dict(message)
            if given["role"] == "tool":
                given["tool_call_id"] = history[-1]["tool_calls"][0]["id"]
            history.append(given)
            continue
        answer = await ask(sdk, history, stream=stream, tools=TOOLS, temperature=SURE)
        n_calls -= 1
        if not n_calls:
            break
        assert (answer.message.get("content") or "").strip() == (message.get("content") or "")
        history.append(keep(dict(answer.message)))
    return history


def without_reasoning(message):
    message.pop("reasoning_content")
    return message


@pytest.mark.parametrize("stream", [True, False])
async def test_a_tool_loop_is_one_exact_sequence(proxied, vllm_engine, stream):
    async with proxied(vllm_engine.url) as (proxy, rollout, sdk):
        history = await hold(sdk, stream=stream)
        await proxy.settled()
        calls = proxy.store.calls(rollout)
        assert [call.prompt_mode for call in calls] == [RENDERED, SPLICED, SPLICED, SPLICED]
        assert all(call.exact and call.state is CallState.DELIVERED for call in calls)
        (sequence,) = proxy.store.sequences(rollout)
        assert sequence.is_exact
        assert sequence.n_trained == sum(call.n_out or 0 for call in calls)
        names = [call["function"]["name"] for m in history for call in m.get("tool_calls") or ()]
        assert names == ["bash", "bash"]


async def test_reasoning_that_the_client_drops_is_dropped_as_sent(proxied, vllm_engine):
    async with proxied(vllm_engine.url) as (proxy, rollout, sdk):
        await hold(sdk, n_calls=2, keep=without_reasoning)
        await proxy.settled()
        first, second = proxy.store.calls(rollout)
        assert (first.prompt_mode, second.prompt_mode) == (RENDERED, RENDERED)
        assert second.reasons == ("reasoning_dropped",)
        assert second.exact
        assert (second.lane, second.edit_of, second.parent) == (first.lane, first.id, None)
        rows = proxy.store.sequences(rollout)
        assert [row.n_trained for row in rows] == [first.n_out, second.n_out]


async def test_reasoning_that_the_client_drops_stays_where_the_run_keeps_it(proxied, vllm_engine):
    async with proxied(vllm_engine.url, history=History.KEEP_REASONING) as (proxy, rollout, sdk):
        await hold(sdk, keep=without_reasoning)
        await proxy.settled()
        calls = proxy.store.calls(rollout)
        assert [call.prompt_mode for call in calls] == [RENDERED, SPLICED, SPLICED, SPLICED]
        assert all(call.exact for call in calls)
        (sequence,) = proxy.store.sequences(rollout)
        assert sequence.n_trained == sum(call.n_out or 0 for call in calls)


async def running_requests(url):
    """How many requests the engine samples for."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    name = "vllm:num_requests_running"
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


async def test_a_client_that_leaves_ends_the_sampling_on_the_engine(proxied, vllm_engine):
    async with proxied(vllm_engine.url) as (proxy, rollout, sdk):
        stream = await sdk.chat.completions.create(
            model="tiny", messages=[QUESTION], stream=True, **ENDLESS
        )
        n_seen = 0
        async for _ in stream:
            n_seen += 1
            if n_seen > 3:
                break
        await stream.close()
        left = time.monotonic()
        async with asyncio.timeout(60):
            while await running_requests(vllm_engine.url):  # noqa: ASYNC110  no event tells
                await asyncio.sleep(0.02)
        took = time.monotonic() - left
        await proxy.settled()
        (call,) = proxy.store.calls(rollout)
        assert (call.state, call.cause) == (CallState.ABORTED, "client_gone")
        assert (call.n_out or 0) < ENDLESS["max_tokens"]
        assert proxy.store.sequences(rollout) == []
        print(f"the engine was idle {took:.3f} s after the client had left")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_prompt_that_is_too_long_is_refused_in_words_that_harnesses_know(
    proxied, vllm_engine, stream
):
    async with proxied(vllm_engine.url) as (proxy, rollout, sdk):
        long: Any = {"role": "user", "content": "one two three " * 7000}
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(sdk, [long], stream=stream)
        assert caught.value.code == "context_length_exceeded"
        assert "maximum context length is 16384 tokens" in caught.value.message
        (call,) = proxy.store.calls(rollout)
        assert (call.failure_class, call.cause) == (FailureClass.POLICY, "context_overflow")
        again = await ask(sdk, [QUESTION], stream=stream, temperature=SURE)
        assert again.message["content"].strip() == "Hello, I am tiny."


# -- the command line ----------------------------------------------------------------------------

THREE_LINES = """
import openai
stream = openai.OpenAI().chat.completions.create(model="any", messages=[{"role": "user", "content": "Hello"}], stream=True, temperature=0.2)
print("".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices))
"""  # noqa: E501


@pytest.mark.filterwarnings("ignore")  # torch and accelerate about machines without a GPU
def test_three_lines_of_the_sdk_are_recorded_shown_scored_exported_and_trained(
    vllm_engine, tmp_path
):
    def budwood(*words):
        done = subprocess.run(
            [sys.executable, "-m", "budwood", *words],
            env={**os.environ, "HOME": str(tmp_path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=400,
        )
        assert done.returncode == 0, done.stderr
        return done

    store = ("--store", str(tmp_path / "store.db"))
    command = (sys.executable, "-c", THREE_LINES)
    done = budwood("record", "--engine", vllm_engine.url, *store, "--", *command)
    assert done.stdout.strip() == "Hello, I am tiny."
    assert "exact     1/1 (100 %)" in done.stderr
    assert "delivered exact rendered" in budwood("show", "last", *store).stdout
    budwood("score", "last", "--reward", "1", *store)
    rows = tmp_path / "rows.jsonl"
    budwood("export", "last", "--to", "trl-sft", "--out", str(rows), *store)
    with Store.open(tmp_path / "store.db", read_only=True) as opened:
        (rollout,) = opened.select("last")
        (call,) = opened.calls(rollout)
        assert opened.outcome(rollout).reward == 1.0
    assert sum(label != -100 for label in json.loads(rows.read_text())["labels"]) == call.n_out
    loss, n_trained = one_sft_step(rows, vllm_engine.folder, tmp_path)
    assert n_trained == call.n_out
    assert 0 < loss < 1  # it is known by heart


def one_sft_step(rows: Path, model: Path, folder: Path):
    """The loss of TRL's first step on an exported file, and the tokens that it trains."""
    from datasets import load_dataset
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    trainer = SFTTrainer(
        model=str(model),
        train_dataset=load_dataset(
            "json", data_files=str(rows), split="train", cache_dir=str(folder / "cache")
        ),
        args=SFTConfig(
            output_dir=str(folder / "sft"),
            max_steps=1,
            per_device_train_batch_size=1,
            report_to=[],
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            max_length=None,
        ),
    )
    batch = next(iter(trainer.get_train_dataloader()))
    return trainer.train().training_loss, int((batch["labels"] != -100).sum())


# -- another template, and an engine that dies ---------------------------------------------------


@pytest.fixture(scope="module")
def own_engine(tmp_path_factory):
    """A server for this file alone, whose template drops the reasoning of earlier turns.

    The last test kills it.
    """
    template = tmp_path_factory.mktemp("engine") / "template.jinja"
    template.write_text(DROPS_THINKING)
    cache = Path(__file__).parents[2] / ".cache"
    with tiny_engine(cache, extra=("--chat-template", str(template))) as engine:
        yield engine


@pytest.mark.slow
async def test_a_template_that_drops_old_reasoning_is_rendered_whole(proxied, own_engine):
    async with proxied(own_engine.url) as (proxy, rollout, sdk):
        # The third follows a new user message: there the template leaves the thoughts out.
        await hold(sdk, n_calls=3)
        await proxy.settled()
        calls = proxy.store.calls(rollout)
        assert [call.prompt_mode for call in calls] == [RENDERED, SPLICED, RENDERED]
        assert calls[2].reasons == ("template_edits",)
        assert all(call.exact for call in calls)
        rows = proxy.store.sequences(rollout)
        assert sum(row.n_trained for row in rows) == sum(call.n_out or 0 for call in calls)


async def read_and_kill(stream, seen, pid):
    """Read a stream to its end, killing every process of the engine at its fifth piece."""
    async for chunk in stream:
        seen.append(chunk)
        if len(seen) == 5:
            os.killpg(pid, signal.SIGKILL)


@pytest.mark.slow
async def test_an_engine_that_is_killed_in_mid_stream_is_a_cut(proxied, own_engine):
    async with proxied(own_engine.url) as (proxy, rollout, sdk):
        stream = await sdk.chat.completions.create(
            model="tiny", messages=[QUESTION], stream=True, **ENDLESS
        )
        seen: list[Any] = []
        with pytest.raises((openai.APIError, httpx.TransportError)):
            await read_and_kill(stream, seen, own_engine.pid)
        assert len(seen) >= 5
        await proxy.settled()
        (call,) = proxy.store.calls(rollout)
        assert (call.state, call.failure_class, call.cause) == (
            CallState.FAILED, FailureClass.ENGINE, "cut",
        )  # fmt: skip
        assert 0 < (call.n_out or 0) < ENDLESS["max_tokens"]
        assert proxy.store.sequences(rollout, include_inexact=True) == []
        with pytest.raises(openai.APIStatusError) as caught:
            await ask(sdk, [QUESTION], stream=False)
        assert caught.value.status_code == 503
        assert QUESTION["content"] not in caught.value.message
