"""The scripted engine is held to recorded answers of the real one."""

import asyncio
import json
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from budwood.proxy import testing
from budwood.proxy.testing import Marker, Reply, ScriptedEngine, ToyTokenizer, expected
from budwood.proxy.testing.chat_template import DROPS_THINKING, render
from budwood.proxy.testing.scripted_faults import FAULTS

FIXTURES = Path(__file__).parents[2] / "fixtures" / "vllm"
REPLY = Reply(reasoning="I call bash.", tool_calls=[("bash", {"command": "ls"})])
TEXT = Reply("Hello, I am tiny.", "A greeting.")
BASH = {"type": "function", "function": {"name": "bash", "parameters": {}}}


def _recorded(name):
    return json.loads((FIXTURES / f"{name}.json").read_text())


def _recorded_events(name):
    data = (FIXTURES / f"{name}.sse").read_text().split("\n", 2)[2]
    return [line[6:] for line in data.splitlines() if line.startswith("data: ")]


async def _post(engine, path, body, raw=False) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session:
        async with session.post(engine.url + path, json=body) as answer:
            return answer.status, await (answer.text() if raw else answer.json())


def _shape(value) -> Any:
    """The keys and kinds of a value; lists by their first item; ids of any kind are equal."""
    if isinstance(value, dict):
        return {key: _shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_shape(value[0])] if value else []
    if isinstance(value, bool) or value is None:
        return value
    return "number" if isinstance(value, int | float) else type(value).__name__


def _body(name, **changes):
    body = _recorded(name)["request"]["body"]
    return {**body, "model": "scripted", **changes}


@pytest.mark.parametrize(
    ("name", "reply"), [("chat.text", TEXT), ("chat.tools", REPLY), ("chat.token_in", TEXT)]
)
async def test_a_plain_answer_has_the_shape_of_vllm_s(name, reply):
    async with ScriptedEngine([reply]) as engine:
        body = _body(name)
        if body.get("kv_transfer_params"):
            body["kv_transfer_params"] = {"prompt_token_ids": [257, 300, 258]}
        _, answer = await _post(engine, "/v1/chat/completions", body)
    assert _shape(answer) == _shape(_recorded(name)["response"])
    assert (
        answer["choices"][0]["message"]["content"]
        == (_recorded(name)["response"]["choices"][0]["message"]["content"])
    )


async def test_a_plain_answer_without_numbers_has_the_shape_of_vllm_s():
    async with ScriptedEngine([TEXT]) as engine:
        _, answer = await _post(engine, "/v1/chat/completions", _body("chat.text.plain"))
    assert _shape(answer) == _shape(_recorded("chat.text.plain")["response"])


@pytest.mark.parametrize(
    ("name", "reply"), [("chat.text.stream", TEXT), ("chat.tools.stream", REPLY)]
)
async def test_every_chunk_of_a_stream_has_the_shape_of_one_of_vllm_s(name, reply):
    request = (FIXTURES / f"{name}.sse").read_text().split("\n")[1].removeprefix("# request: ")
    body = {**json.loads(request), "model": "scripted"}
    async with ScriptedEngine([reply]) as engine:
        _, text = await _post(engine, "/v1/chat/completions", body, raw=True)
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    recorded = _recorded_events(name)
    assert events[-1] == recorded[-1] == "[DONE]"

    def shapes(lines):
        # A token without text has no bytes in one and some in another.
        found = [json.dumps(_shape(json.loads(line)), sort_keys=True) for line in lines[:-1]]
        return [shape.replace('"bytes": []', '"bytes": ["number"]') for shape in found]

    ours, theirs = shapes(events), shapes(recorded)
    assert (ours[0], ours[-1], ours[-2]) == (theirs[0], theirs[-1], theirs[-2])
    assert set(ours) <= set(theirs)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("render.chat", "/v1/chat/completions/render"),
        ("tokenize.prompt", "/tokenize"),
        ("tokenize.messages", "/tokenize"),
        ("detokenize", "/detokenize"),
        ("generate.tokens", "/inference/v1/generate"),
    ],
)
async def test_what_other_routes_answer_is_named_as_vllm_names_it(name, path):
    recorded = _recorded(name)
    async with ScriptedEngine([REPLY]) as engine:
        status, answer = await _post(engine, path, _body(name))
    assert status == 200
    if name == "tokenize.messages":  # the tokens' texts are not told
        recorded["response"]["token_strs"] = None
    assert answer.keys() <= recorded["response"].keys()
    for key, value in answer.items():
        assert type(value) is type(recorded["response"][key]), key
    if name == "generate.tokens":
        ours, theirs = (_shape(a["choices"][0]) for a in (answer, recorded["response"]))
        ours["logprobs"]["content"][0]["top_logprobs"] = theirs["logprobs"]["content"][0][
            "top_logprobs"
        ]
        assert ours == theirs


@pytest.mark.parametrize(
    "name",
    [
        "error.context_too_long",
        "error.max_tokens_too_big",
        "error.unknown_model",
        "error.token_in.out_of_vocab",
        "error.token_in.empty",
        "error.tools_empty",
        "error.stream_options",
        "error.tool_choice",
        "error.derender_bare",
    ],
)
async def test_refusals_are_vllm_s_word_for_word(name):
    recorded = _recorded(name)
    body = _body(name)
    if name == "error.unknown_model":
        body["model"] = "nope"
    async with ScriptedEngine(max_model_len=4096) as engine:
        status, answer = await _post(engine, recorded["request"]["path"], body)
    assert status == recorded["status"]

    def neutral(error):
        return {**error, "message": error["message"].replace("tiny", "scripted")}

    assert neutral(answer["error"]) == neutral(recorded["response"]["error"])


async def test_max_tokens_is_cut_to_the_room_as_vllm_cuts_it():
    assert _recorded("chat.max_tokens_clamped")["status"] == 200
    async with ScriptedEngine([TEXT], max_model_len=50) as engine:
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 49}
        status, answer = await _post(engine, "/v1/chat/completions", body)
    assert status == 200
    assert answer["usage"]["total_tokens"] <= 50


async def test_it_says_that_it_is_scripted():
    async with ScriptedEngine() as engine, aiohttp.ClientSession() as session:
        async with session.get(engine.url + "/v1/models") as answer:
            assert "scripted" in (await answer.json())["data"][0]["owned_by"]
        async with session.get(engine.url + "/version") as answer:
            assert "scripted" in (await answer.json())["version"]


async def test_it_samples_from_the_ids_that_it_is_given():
    async with ScriptedEngine([Reply("a")] * 2) as engine:
        ids = engine.tokenizer.encode("<|im_start|>user\nreal<|im_end|>\n")
        body = {"messages": [{"role": "user", "content": "dummy"}], "return_token_ids": True}
        given = {**body, "kv_transfer_params": {"prompt_token_ids": ids}}
        _, answer = await _post(engine, "/v1/chat/completions", given)
        assert answer["prompt_token_ids"] == ids
        assert answer["usage"]["prompt_tokens"] == len(ids)
        assert "real" in engine.calls[0].prompt
        _, answer = await _post(engine, "/v1/chat/completions", body)
        assert "dummy" in engine.calls[1].prompt


async def test_a_marker_s_answer_is_what_expected_says_with_and_without_ids():
    right = expected(seed=3, chunks=20, tpc=2)
    assert array("f", right["logprobs"]).tolist() == right["logprobs"]  # float32, as vLLM's are
    async with ScriptedEngine() as engine:
        messages = [{"role": "user", "content": f"do it {Marker(3, 20, 2)}"}]
        body = {"messages": messages, "return_token_ids": True, "logprobs": True}
        _, plain = await _post(engine, "/v1/chat/completions", body)
        _, rendered = await _post(engine, "/v1/chat/completions/render", body)
        body["kv_transfer_params"] = {"prompt_token_ids": rendered["token_ids"]}
        body["messages"] = [{"role": "user", "content": "-"}]
        _, by_ids = await _post(engine, "/v1/chat/completions", body)
    for answer in (plain, by_ids):
        choice = answer["choices"][0]
        assert choice["token_ids"] == right["token_ids"]
        assert choice["message"]["content"] == right["text"]
        assert [e["logprob"] for e in choice["logprobs"]["content"]] == right["logprobs"]


async def test_every_fault_of_the_table_is_shown_and_ends():
    async with ScriptedEngine() as engine, aiohttp.ClientSession() as session:
        for name, text in FAULTS.items():
            fault = f"{name}@{500 if 'CODE' in text else 2}" if "@" in text else name
            content = str(Marker(seed=9, chunks=6, fault=fault))
            body = {"messages": [{"role": "user", "content": content}], "stream": True}
            try:
                async with asyncio.timeout(0.3 if name == "stall" else 60):
                    async with session.post(f"{engine.url}/v1/chat/completions", json=body) as r:
                        await r.read()
            except (aiohttp.ClientError, TimeoutError):
                assert name in ("drop", "reset", "stall", "garbage")


TOKENIZERS = [ToyTokenizer(), ToyTokenizer(adversarial=True)]
CONTROL = st.sampled_from(["<think>", "<|im_end|>", "<tool_call>", "\n", "}"])
TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"])) | CONTROL).map("".join)


@given(TEXTS, st.integers(0, 2**32))
def test_the_toy_tokenizer_is_reversible(text, seed):
    for tokenizer in TOKENIZERS:
        assert tokenizer.decode(tokenizer.encode(text)) == text
        ids = tokenizer.sampled(text, seed)
        assert tokenizer.decode(ids) == text
        assert max(ids, default=0) < tokenizer.vocab_size


def test_the_adversarial_tokenizer_s_samples_are_not_what_its_text_tokenizes_to():
    tokenizer = ToyTokenizer(adversarial=True)
    text = "a reply of some words, like any other"
    samples = {tuple(tokenizer.sampled(text, seed)) for seed in range(20)}
    assert len(samples) == 20
    assert tuple(tokenizer.encode(text)) not in samples


def test_tokens_merge_across_the_ends_of_messages():
    tokenizer = ToyTokenizer()
    assert tokenizer.encode("abc") + tokenizer.encode("def") != tokenizer.encode("abcdef")


def test_the_template_keeps_earlier_turns_and_the_other_drops_their_thoughts():
    turns = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "a", "reasoning": "why"},
        {"role": "user", "content": "v"},
    ]
    first = render(turns[:2], add_generation_prompt=False)
    assert render(turns).startswith(first)
    assert "why" in first
    assert "why" not in render(turns, template=DROPS_THINKING)
    assert "why" in render(turns[:2], template=DROPS_THINKING)


async def test_a_script_that_has_ended_says_so():
    async with ScriptedEngine([]) as engine:
        body = {"messages": [{"role": "user", "content": "x"}]}
        status, answer = await _post(engine, "/v1/chat/completions", body)
    assert status == 500
    assert "only 0 replies" in answer["error"]["message"]


def test_it_starts_as_a_program_without_a_warning():
    words = ["-W", "error", "-m", "budwood.proxy.testing.scripted_engine", "--max-seconds", "0.01"]
    done = subprocess.run(
        [sys.executable, *words, "--port", "0"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("scripted engine (no model, replies by script) on http://")


def test_every_name_that_the_package_offers_is_there():
    assert all(getattr(testing, name).__name__ == name for name in testing.__all__)
    assert not hasattr(testing, "scripted_nothing")
