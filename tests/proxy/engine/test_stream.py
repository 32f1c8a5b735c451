"""Recorded vLLM streams become deltas, ids and logprobs, however their bytes are cut."""

import json
import math

import pytest

from budwood.proxy.engine.errors import EngineBroken
from budwood.proxy.engine.prompt import Prompt
from budwood.proxy.engine.reply import Collected
from budwood.proxy.engine.stream import chat_batches, plain_delta

LOGPROB = {"token": "token_id:5", "logprob": -0.5}
STREAMS = ["chat.tools.stream", "chat.text.stream", "chat.text.stream.continuous_usage"]


async def _pieces(pieces):
    for piece in pieces:
        yield piece


async def _read(pieces, collected, *, passes_tokens=False):
    batches = chat_batches(_pieces(pieces), collected, passes_tokens=passes_tokens)
    return [delta async for batch in batches for delta in batch]


def _first_ids(data):
    return json.loads(data.split(b"\n", 1)[0][6:])["prompt_token_ids"]


async def test_a_recorded_tool_call_is_read_in_full(recorded_stream):
    data = recorded_stream("chat.tools.stream")
    collected = Collected(Prompt(_first_ids(data)), wants_ids=True)
    deltas = await _read([data], collected)
    reply = collected.finished()
    assert reply.message["tool_calls"][0]["name"] == "bash"
    assert json.loads(reply.message["tool_calls"][0]["arguments"]) == {"command": "ls"}
    assert reply.message["reasoning"] == "\nI call bash.\n"
    assert reply.finish == "tool_calls"
    assert (
        len(reply.out_ids or ())
        == len(reply.logprobs or ())
        == (reply.usage or {})["completion_tokens"]
        == 31
    )
    assert reply.prompt_ids_match is True
    assert reply.prompt_ids is None
    # Fewer deltas than tokens: markup is swallowed, its ids are not.
    assert len(deltas) < 31
    assert all(d.content or d.reasoning or d.tool_calls for d in deltas)


@pytest.mark.parametrize("name", ["chat.tools.stream", "chat.text.stream"])
async def test_a_stream_cut_at_every_byte_reads_the_same(recorded_stream, name):
    data = recorded_stream(name)
    whole = Collected(None, wants_ids=True)
    deltas = await _read([data], whole)
    for at in range(1, len(data), 7):
        cut = Collected(None, wants_ids=True)
        assert await _read([data[:at], data[at:]], cut) == deltas
        assert cut.ids == whole.ids
        assert cut.logprobs == whole.logprobs


@pytest.mark.parametrize("name", STREAMS[:2])
async def test_a_stream_that_ends_early_is_never_whole(recorded_stream, name):
    data = recorded_stream(name)
    done = data.index(b"data: [DONE]")
    for at in range(0, done, 97):
        collected = Collected(None, wants_ids=True)
        with pytest.raises(EngineBroken) as broken:
            await _read([data[:at]], collected)
        assert broken.value.cause in ("missing_done", "bad_event")
        assert collected.partial().finish in (None, "stop", "tool_calls")


async def test_ids_that_differ_from_those_sent_are_kept(recorded_stream):
    data = recorded_stream("chat.text.stream")
    ids = _first_ids(data)
    collected = Collected(Prompt([*ids, 1]), wants_ids=True)
    await _read([data], collected)
    assert collected.prompt_ids_match is False
    assert list(collected.prompt_ids or ()) == ids


async def test_ids_in_other_spacing_are_equal_all_the_same(recorded_stream):
    data = recorded_stream("chat.text.stream")
    ids = _first_ids(data)
    spaced = data.replace(json.dumps(ids, separators=(",", ":")).encode(), json.dumps(ids).encode())
    collected = Collected(Prompt(ids), wants_ids=True)
    await _read([spaced], collected)
    assert collected.prompt_ids_match is True
    assert collected.prompt_ids is None


async def test_a_text_that_spells_the_key_is_not_taken_for_ids(recorded_stream):
    data = recorded_stream("chat.text.stream").replace(
        b'"delta":{"role":"assistant","content":""}',
        b'"delta":{"role":"assistant","content":"\\"prompt_token_ids\\":[7]"}',
    )
    collected = Collected(None, wants_ids=True)
    deltas = await _read([data], collected)
    assert deltas[0].content == '"prompt_token_ids":[7]'
    assert list(collected.prompt_ids or ()) == _first_ids(data)


async def test_tokens_are_passed_on_only_where_a_client_asked(recorded_stream):
    data = recorded_stream("chat.text.stream")
    collected = Collected(None, wants_ids=True)
    deltas = await _read([data], collected, passes_tokens=True)
    assert [i for d in deltas for i in d.token_ids or ()] == collected.ids.tolist()
    plain = await _read([data], Collected(None, wants_ids=True))
    assert all(d.token_ids is None and d.logprobs is None for d in plain)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (b'data: {"choices": [{"del', "bad_event"),
        (b"data: [1]", "bad_event"),
        (b'data: {"choices": [{"delta": {}, "logprobs": {"content": [{}]}}]}', "bad_event"),
        (b'data: {"error": {"message": "EngineCore died"}}', "server_error"),
    ],
)
async def test_an_event_that_is_no_chunk_breaks_the_call(line, cause):
    with pytest.raises(EngineBroken) as broken:
        await _read([line + b"\n\n"], Collected(None, wants_ids=True))
    assert broken.value.cause == cause


WRONG_TYPES = [
    {"token_ids": [-1]},
    {"token_ids": [2**33]},
    {"token_ids": ["7"]},
    {"token_ids": [7.5]},
    {"token_ids": "7"},
    {"token_ids": {"a": 1}},
    {"logprobs": [1]},
    {"logprobs": {"content": [7]}},
    {"finish_reason": 7},
    {"finish_reason": "stop", "stop_reason": [7]},
    {"delta": {"content": 7}},
    {"delta": {"content": [{"type": "text", "text": "a"}]}},
    {"delta": {"reasoning": {"a": 1}}},
    {"delta": {"tool_calls": [{"index": "0", "id": "a", "function": {"name": "b"}}]}},
    {"delta": {"tool_calls": [{"index": 0, "id": 7, "function": {"name": "b"}}]}},
    {"delta": {"tool_calls": [{"index": 0, "function": {"name": ["b"]}}]}},
    {"delta": {"tool_calls": [{"index": 0, "function": {"name": "b", "arguments": {"c": 1}}}]}},
    {"delta": {"tool_calls": {"index": 0}}},
    {"delta": {"tool_calls": [7]}},
]


@pytest.mark.parametrize("choice", WRONG_TYPES)
async def test_a_value_of_another_type_breaks_the_call_and_leaves_what_came_before(choice):
    good = {"delta": {"content": "a"}, "token_ids": [5], "logprobs": {"content": [LOGPROB]}}
    data = b"".join(
        b"data: %s\n\n" % json.dumps({"choices": [each]}).encode() for each in (good, choice)
    )
    collected = Collected(None, wants_ids=True)
    with pytest.raises(EngineBroken) as broken:
        await _read([data], collected)
    assert broken.value.cause == "bad_event"
    partial = collected.partial()
    assert (list(partial.out_ids or ()), list(partial.logprobs or ())) == ([5], [-0.5])
    assert partial.message["content"] == "a"
    message = {"role": "assistant", **choice.get("delta", {"content": "a"})}
    body = json.dumps({"choices": [{**choice, "message": message}]}).encode()
    if "index" not in str(choice.get("delta", {}).get("tool_calls", "")):
        with pytest.raises(EngineBroken):
            plain_delta(body, Collected(None, wants_ids=True), passes_tokens=True)


@pytest.mark.parametrize("usage", [[], 7, "many"])
async def test_usage_of_another_type_breaks_the_call_or_is_none(usage):
    line = b"data: %s\n\n" % json.dumps({"choices": [], "usage": usage}).encode()
    collected = Collected(None, wants_ids=True)
    with pytest.raises(EngineBroken):
        await _read([line], collected)
    assert collected.usage is None


@pytest.mark.parametrize("number", [None, "x", [1]])
async def test_a_logprob_that_is_no_number_is_nan_and_the_answer_goes_on(number):
    entry = {"token": "token_id:5", "logprob": number}
    choice = {"delta": {"content": "a"}, "token_ids": [5], "logprobs": {"content": [entry]}}
    choice["finish_reason"] = "stop"
    events = [{"choices": [choice]}, {"choices": [], "usage": {"completion_tokens": 1}}]
    data = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events)
    collected = Collected(None, wants_ids=True)
    await _read([data + b"data: [DONE]\n\n"], collected)
    logprobs = collected.finished().logprobs or ()
    assert [math.isnan(logprob) for logprob in logprobs] == [True]


async def test_half_a_character_goes_on_in_the_next_event():
    halves = [rb"\ud83d", rb"\ude00 and \ud83d"]
    lines = [b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % half for half in halves]
    collected = Collected(None, wants_ids=False)
    await _read([*lines, b"data: [DONE]\n\n"], collected)
    assert collected.message()["content"] == "\U0001f600 and \ufffd"


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        (b'{"error": {"message": "died"}, "choices": [{"delta": {}}]}', "server_error"),
        (b'{"choices": [{"delta": {}, "finish_reason": "length"}]}', "bad_event"),
        (b'{"choices": ' + b"[" * 100_000 + b"}", "bad_event"),
    ],
)
async def test_an_answer_that_contradicts_itself_is_broken(more, cause):
    end = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'
    with pytest.raises(EngineBroken) as broken:
        await _read([end, b"data: " + more + b"\n\n"], Collected(None, wants_ids=True))
    assert broken.value.cause == cause


async def test_a_server_that_owes_no_ids_may_end_for_another_reason_in_the_end():
    reasons = [b"tool_calls", b"stop"]
    lines = [b'data: {"choices": [{"delta": {}, "finish_reason": "%s"}]}\n\n' % r for r in reasons]
    collected = Collected(None, wants_ids=False)
    await _read([*lines, b"data: [DONE]\n\n"], collected)
    assert collected.finished().finish == "stop"


def _calls(*parts):
    collected = Collected(None, wants_ids=False)
    deltas = [collected.take_call(part) for part in parts]
    return collected.message()["tool_calls"], [delta.index for delta in deltas]


def _part(index, call_id=None, name=None, arguments=None):
    return {"index": index, "id": call_id, "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize("indices", [(0, 1), (1, 2), (3, 10**9), (-1, 7), (None, None)])
def test_calls_are_numbered_as_they_begin_whatever_the_engine_calls_them(indices):
    first, second = indices
    calls, places = _calls(
        _part(first, "a", "ls", "{"), _part(first, None, None, "}"),
        _part(second, "b", "pwd", "{}"),
    )  # fmt: skip
    assert [(call["id"], call["name"], call["arguments"]) for call in calls] == [
        ("a", "ls", "{}"),
        ("b", "pwd", "{}"),
    ]
    assert places == [0, 0, 1]


def test_calls_that_share_an_index_are_told_apart_by_id_and_name():
    calls, places = _calls(_part(0, "a", "ls", "{}"), _part(0, "b", "pwd", "{}"))
    assert [call["name"] for call in calls] == ["ls", "pwd"]
    assert places == [0, 1]


def test_an_id_that_is_told_with_every_piece_begins_no_call():
    calls, _ = _calls(_part(0, "a", "ls", "{"), _part(0, "a", "", "}"), _part(0, "x", None, " "))
    assert [(call["name"], call["arguments"]) for call in calls] == [("ls", "{} ")]


PLAIN = ["chat.text", "chat.tools", "chat.tools.required", "chat.stop_string", "chat.no_thinking"]


@pytest.mark.parametrize("name", PLAIN)
def test_a_recorded_plain_answer_is_read_in_full(recorded_json, name):
    answer = recorded_json(name)["response"]
    has_ids = answer["choices"][0]["token_ids"] is not None
    collected = Collected(None, wants_ids=has_ids and answer["choices"][0]["logprobs"] is not None)
    plain_delta(json.dumps(answer).encode(), collected, passes_tokens=False)
    reply = collected.finished()
    message = answer["choices"][0]["message"]
    assert reply.message["content"] == message["content"]
    assert reply.message["reasoning"] == message["reasoning"]
    assert len(reply.message["tool_calls"]) == len(message.get("tool_calls") or [])
    assert reply.finish == answer["choices"][0]["finish_reason"]
    if has_ids:
        assert list(reply.out_ids or ()) == answer["choices"][0]["token_ids"]
        assert list(reply.prompt_ids or ()) == answer["prompt_token_ids"]


def test_labels_pair_each_logprob_with_its_id(recorded_json):
    answer = recorded_json("chat.tokens_as_ids")["response"]
    choice = answer["choices"][0]
    choice["token_ids"] = [int(e["token"][9:]) for e in choice["logprobs"]["content"]]
    for ids, matches in ((choice["token_ids"], True), (choice["token_ids"][::-1], False)):
        choice["token_ids"] = ids
        collected = Collected(None, wants_ids=True)
        collected.has_labels = True
        plain_delta(json.dumps(answer).encode(), collected, passes_tokens=False)
        assert collected.finished().pairs_match is matches


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda c: c.usage.update(completion_tokens=30), "count_mismatch"),
        (lambda c: c.ids.pop(), "count_mismatch"),
        (lambda c: setattr(c, "logprobs", c.logprobs[:0]), "missing_ids"),
        (lambda c: setattr(c, "ids", c.ids[:0]), "missing_ids"),
        (lambda c: setattr(c, "usage", None), "missing_usage"),
        (lambda c: setattr(c, "finish", None), "missing_finish"),
    ],
)
async def test_what_vllm_owes_and_did_not_send_is_a_failed_call(recorded_stream, change, cause):
    collected = Collected(None, wants_ids=True)
    await _read([recorded_stream("chat.tools.stream")], collected)
    change(collected)
    with pytest.raises(EngineBroken) as broken:
        collected.finished()
    assert broken.value.cause == cause
