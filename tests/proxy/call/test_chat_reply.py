"""Replies as the official SDK reads them, and as the bytes that harnesses rely on."""

import json
import random
import threading
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from budwood.proxy.call import (
    DONE,
    KEEP_ALIVE,
    ChatRequest,
    ChatStream,
    Delta,
    ToolDelta,
    canonical_message,
    finish_reason,
    loads_message,
    new_tool_id,
    parse_chat,
    plain_body,
    reply_message,
    shown_logprobs,
)
from budwood.proxy.wire import EventParser

VLLM = Path(__file__).parents[2] / "fixtures" / "vllm"


@dataclass(frozen=True)
class Said:
    """A finished reply, as the proxy holds it."""

    reply: dict
    finish: str | None = "stop"
    usage: dict | None = field(
        default_factory=lambda: {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    )
    prompt_ids: array | None = field(default_factory=lambda: array("I", [1, 2, 3]))
    out_ids: array | None = field(default_factory=lambda: array("I", [7, 8]))
    logprobs: array | None = field(default_factory=lambda: array("f", [-0.5, -0.25]))
    created: int = 1_790_000_000


def reply(content=None, reasoning=None, calls=()) -> dict:
    return {
        "role": "assistant",
        "content": content,
        "reasoning": reasoning,
        "tool_calls": [
            {"id": f"abcdefgh{i}", "engine_id": "x", "name": name, "arguments": arguments}
            for i, (name, arguments) in enumerate(calls)
        ],
    }


BASH = ("bash", '{"command": "ls"}')
SAID = {
    "text": (Said(reply("Hello 🙂")), "stop"),
    "reasoning": (Said(reply("Hello", "Hm.")), "stop"),
    "one tool": (Said(reply(None, None, [BASH])), "tool_calls"),
    "text and tool": (Said(reply("I look.", None, [BASH])), "tool_calls"),
    "parallel tools": (Said(reply(None, None, [BASH, ("read", "{}")])), "tool_calls"),
    "reasoning and tools": (Said(reply(None, "Hm.", [BASH, BASH])), "tool_calls"),
    "cut text": (Said(reply("Hel"), finish="length"), "length"),
    "cut tool": (Said(reply(None, None, [("bash", '{"comm')]), finish="length"), "length"),
    "empty": (Said(reply()), "stop"),
}


def request(**fields) -> ChatRequest:
    messages = [{"role": "user", "content": "Hi"}]
    return parse_chat(json.dumps({"model": "gpt-x", "messages": messages, **fields}).encode())


def deltas(said: Said) -> Iterator[Delta]:
    """The reply in small pieces, as an engine sends it."""
    for letter in said.reply["reasoning"] or "":
        yield Delta(reasoning=letter)
    yield Delta()
    for letter in said.reply["content"] or "":
        yield Delta(content=letter)
    for index, call in enumerate(said.reply["tool_calls"]):
        yield Delta(tool_calls=(ToolDelta(index, call["id"], call["name"]),))
        for letter in call["arguments"]:
            yield Delta(tool_calls=(ToolDelta(index, arguments=letter),))


def stream(asked: ChatRequest, said: Said, *, whole: bool = False) -> bytes:
    encoder = ChatStream(asked, reply_id="chatcmpl-1", created=said.created)
    pieces = [encoder.role_chunk(said.prompt_ids), KEEP_ALIVE]
    if whole:
        pieces.append(encoder.whole(said))
    else:
        pieces += [encoder.delta(delta) + KEEP_ALIVE for delta in deltas(said)]
    pieces += [encoder.idle_delta(), KEEP_ALIVE]
    pieces.append(encoder.terminal(said.finish, said.usage, said.reply))
    return b"".join(pieces)


def chunks(data: bytes) -> list[dict]:
    parser = EventParser()
    events = [event.data for event in parser.feed(data)]
    assert parser.finish() == []
    assert events.pop() == b"[DONE]"
    return [json.loads(event) for event in events]


@pytest.fixture
def served():
    """A server that answers every request with the body set on it, and a client of it."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            is_stream = server.answer.startswith((b"data:", b":"))
            self.send_response(200)
            self.send_header(
                "Content-Type", "text/event-stream" if is_stream else "application/json"
            )
            self.send_header("Content-Length", str(len(server.answer)))
            self.end_headers()
            self.wfile.write(server.answer)

        def log_message(self, format, *args):
            pass

    class Server(ThreadingHTTPServer):
        answer = b""

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        with openai.OpenAI(base_url=url, api_key="x", max_retries=0) as client:
            yield server, client
        server.shutdown()
        thread.join()


ASK = {"model": "gpt-x", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(("said", "finish"), SAID.values(), ids=SAID)
def test_the_official_sdk_reads_a_plain_reply(served, said, finish):
    server, client = served
    server.answer = plain_body(request(), said, reply_id="chatcmpl-1")
    answer = client.chat.completions.create(**ASK)
    type(answer).model_validate(answer.model_dump())
    choice = answer.choices[0]
    assert (answer.model, choice.finish_reason) == ("gpt-x", finish)
    echo = json.dumps(choice.message.model_dump()).encode()
    assert canonical_message(loads_message(echo), echo).digest == reply_message(said.reply).digest
    assert answer.usage is not None
    assert answer.usage.total_tokens == 5
    if said.reply["tool_calls"]:
        assert [call.id for call in choice.message.tool_calls or ()] == [
            call["id"] for call in said.reply["tool_calls"]
        ]
    else:
        assert isinstance(choice.message.content, str)
        assert choice.message.tool_calls is None


@pytest.mark.parametrize("whole", [False, True], ids=["in pieces", "at once"])
@pytest.mark.parametrize(("said", "finish"), SAID.values(), ids=SAID)
def test_the_official_sdk_reads_a_stream(served, said, finish, whole):
    server, client = served
    asked = request(stream=True, stream_options={"include_usage": True})
    server.answer = stream(asked, said, whole=whole)
    options = {"include_usage": True}
    with client.chat.completions.stream(**ASK, stream_options=options) as events:
        events.until_done()
        try:
            answer = events.get_final_completion()
        except openai.LengthFinishReasonError as error:
            assert finish == "length"
            answer = error.completion
    choice = answer.choices[0]
    assert (answer.model, choice.finish_reason) == ("gpt-x", finish)
    assert answer.usage is not None
    assert answer.usage.total_tokens == 5
    message = choice.message.model_dump()
    assert message["content"] == (said.reply["content"] or "")
    assert message.get("reasoning") == message.get("reasoning_content") == said.reply["reasoning"]
    calls = [
        (call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message["tool_calls"] or ()
    ]
    assert calls == [(c["id"], c["name"], c["arguments"]) for c in said.reply["tool_calls"]]


def test_the_official_sdk_raises_on_an_error_in_a_stream(served):
    server, client = served
    encoder = ChatStream(request(stream=True), reply_id="chatcmpl-1", created=1)
    server.answer = (
        encoder.role_chunk()
        + encoder.delta(Delta(content="a"))
        + KEEP_ALIVE
        + encoder.error_event(502, "The engine went away.", "engine_broken")
    )
    events = client.chat.completions.create(**ASK, stream=True)
    with pytest.raises(openai.APIError, match="went away") as caught:
        list(events)
    assert caught.value.code == "engine_broken"


def test_the_bytes_of_a_small_stream():
    head = (
        b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1790000000,'
        b'"model":"gpt-x","choices":[{"index":0,"delta":'
    )
    tail = b',"logprobs":null,"finish_reason":null}]}\n\n'
    encoder = ChatStream(request(stream=True), reply_id="chatcmpl-1", created=1_790_000_000)
    assert encoder.role_chunk([1]) == head + b'{"role":"assistant","content":""}' + tail
    assert encoder.delta(Delta(content="a", token_ids=[1], logprobs=[{}])) == (
        head + b'{"content":"a"}' + tail
    )
    assert encoder.delta(Delta(token_ids=[1])) == b""
    assert encoder.delta(Delta(reasoning="r")) == (
        head + b'{"reasoning":"r","reasoning_content":"r"}' + tail
    )
    assert encoder.terminal("stop", {"total_tokens": 1}) == (
        head + b'{},"logprobs":null,"finish_reason":"stop","stop_reason":null}]}\n\n' + DONE
    )


def test_the_keep_alive_is_a_comment_of_one_line():
    assert KEEP_ALIVE == b": k\n"


# -- tool calls --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAID)
def test_every_tool_piece_has_an_index_and_the_first_of_each_is_whole(name):
    said, _ = SAID[name]
    seen = set()
    for chunk in chunks(stream(request(stream=True), said)):
        for call in chunk["choices"][0]["delta"].get("tool_calls", ()):
            assert isinstance(call["index"], int)
            if call["index"] not in seen:
                seen.add(call["index"])
                assert (call["id"], call["type"]) == (f"abcdefgh{call['index']}", "function")
                assert call["function"]["name"]
            else:
                assert set(call) == {"index", "function"}
                assert set(call["function"]) == {"arguments"}
    assert len(seen) == len(said.reply["tool_calls"])


def test_a_call_without_id_gets_a_stable_one():
    def said():
        encoder = ChatStream(request(stream=True), reply_id="chatcmpl-1", created=1)
        return encoder.delta(Delta(tool_calls=(ToolDelta(0, None, "f", "{}"),)))

    call = json.loads(said()[6:])["choices"][0]["delta"]["tool_calls"][0]
    assert call["id"].isalnum()
    assert len(call["id"]) == 9
    assert said() == said()


def test_pieces_before_the_name_wait_for_it():
    encoder = ChatStream(request(stream=True), reply_id="chatcmpl-1", created=1)
    assert encoder.delta(Delta(tool_calls=(ToolDelta(0, "abcdefghi", None, "{"),))) == b""
    piece = encoder.delta(Delta(tool_calls=(ToolDelta(0, None, "f", "}"),)))
    assert json.loads(piece[6:])["choices"][0]["delta"]["tool_calls"] == [
        {
            "index": 0,
            "id": "abcdefghi",
            "type": "function",
            "function": {"name": "f", "arguments": "{}"},
        }
    ]


def test_a_name_that_never_comes_is_empty_at_the_end():
    encoder = ChatStream(request(stream=True), reply_id="chatcmpl-1", created=1)
    encoder.delta(Delta(tool_calls=(ToolDelta(0, "abcdefghi", None, "{}"),)))
    first, last = chunks(encoder.terminal("stop", None))
    assert first["choices"][0]["delta"]["tool_calls"][0]["function"] == {
        "name": "",
        "arguments": "{}",
    }
    assert last["choices"][0]["finish_reason"] == "tool_calls"


def test_ids_of_ours_are_nine_alphanumerics():
    rng = random.Random(1)
    ids = [new_tool_id(rng) for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(len(i) == 9 and i.isalnum() and i.isascii() for i in ids)


@pytest.mark.parametrize(
    ("finish", "has_calls", "told"),
    [
        ("stop", False, "stop"),
        ("stop", True, "tool_calls"),
        ("tool_calls", True, "tool_calls"),
        ("tool_calls", False, "stop"),
        ("length", True, "length"),
        ("length", False, "length"),
        (None, False, "stop"),
        ("content_filter", True, "content_filter"),
    ],
)
def test_the_finish_reason_fits_what_was_said(finish, has_calls, told):
    assert finish_reason(finish, has_calls=has_calls) == told


# -- numbers -----------------------------------------------------------------------------------


def test_usage_comes_only_if_asked_for_and_is_always_there_then():
    said = SAID["text"][0]
    assert all("usage" not in chunk for chunk in chunks(stream(request(stream=True), said)))
    asked = request(stream=True, stream_options={"include_usage": True})
    *_, last = chunks(stream(asked, said))
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], 5)
    *_, last = chunks(stream(asked, replace(said, usage=None)))
    assert last["usage"] == {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    body = json.loads(plain_body(request(), replace(said, usage=None), reply_id="1"))
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def test_ids_and_logprobs_are_not_shown_unasked():
    said = SAID["text"][0]
    body = json.loads(plain_body(request(), said, reply_id="1"))
    assert body["choices"][0]["logprobs"] is None
    assert "token_ids" not in body["choices"][0]
    assert "prompt_token_ids" not in body


def test_a_plain_reply_shows_ids_and_logprobs_that_were_asked_for():
    asked = request(logprobs=True, return_token_ids=True)
    body = json.loads(plain_body(asked, SAID["text"][0], reply_id="1"))
    assert body["prompt_token_ids"] == [1, 2, 3]
    assert body["choices"][0]["token_ids"] == [7, 8]
    entries = body["choices"][0]["logprobs"]["content"]
    assert [entry["logprob"] for entry in entries] == [-0.5, -0.25]


def test_a_reply_without_ids_shows_none():
    asked = request(logprobs=True, return_token_ids=True)
    said = replace(SAID["text"][0], prompt_ids=None, out_ids=None, logprobs=None)
    body = json.loads(plain_body(asked, said, reply_id="1"))
    assert body["prompt_token_ids"] is None
    assert body["choices"][0]["token_ids"] is None
    assert body["choices"][0]["logprobs"] is None


def test_a_stream_shows_ids_and_logprobs_in_vllms_shape():
    lines = (VLLM / "chat.tools.stream.sse").read_bytes().split(b"\n", 2)[2]
    recorded = chunks(lines)
    asked = request(stream=True, logprobs=True, return_token_ids=True)
    encoder = ChatStream(asked, reply_id="chatcmpl-1", created=1)
    pieces = [encoder.role_chunk(recorded[0]["prompt_token_ids"])]
    for chunk in recorded[1:-1]:
        choice = chunk["choices"][0]
        delta = choice["delta"]
        calls = tuple(
            ToolDelta(
                call["index"],
                call.get("id"),
                call["function"].get("name"),
                call["function"].get("arguments") or "",
            )
            for call in delta.get("tool_calls", ())
        )
        pieces.append(
            encoder.delta(
                Delta(
                    delta.get("content"),
                    delta.get("reasoning"),
                    calls,
                    choice["token_ids"],
                    choice["logprobs"]["content"],
                )
            )
        )
    told = chunks(b"".join(pieces) + encoder.terminal("tool_calls", None))
    assert told[0]["prompt_token_ids"] == recorded[0]["prompt_token_ids"]
    for ours, theirs in zip(told[1:-1], recorded[1:-1], strict=True):
        assert ours["choices"][0]["token_ids"] == theirs["choices"][0]["token_ids"]
        assert ours["choices"][0]["logprobs"] == theirs["choices"][0]["logprobs"]
        assert set(ours["choices"][0]) - {"stop_reason"} == set(theirs["choices"][0]) - {
            "stop_reason"
        }


def test_tokens_spelt_as_ids_are_spelt_as_text_again():
    with_ids = json.loads((VLLM / "chat.tokens_as_ids.json").read_bytes())
    entries = with_ids["response"]["choices"][0]["logprobs"]["content"]
    assert [e["token"] for e in shown_logprobs(entries)] == ["<think>", "\n", "A", " gre"]
    plain = json.loads((VLLM / "chat.text.json").read_bytes())
    entries = plain["response"]["choices"][0]["logprobs"]["content"]
    assert shown_logprobs(entries) == entries


# -- broken text -------------------------------------------------------------------------------


def test_a_pair_split_over_two_pieces_is_joined():
    encoder = ChatStream(request(stream=True), reply_id="chatcmpl-1", created=1)
    said = [
        encoder.delta(Delta(content="a\ud83d", reasoning="\ud83d")),
        encoder.delta(Delta(reasoning="\ude00")),
        encoder.delta(Delta(content="\ude00b")),
        encoder.terminal("stop", None),
    ]
    found = [chunk["choices"][0]["delta"] for chunk in chunks(b"".join(said))]
    assert "".join(delta.get("content", "") for delta in found) == "a😀b"
    assert "".join(delta.get("reasoning", "") for delta in found) == "😀"


TEXTS = st.text(st.characters(categories=["Cs", "Lu", "So"]), max_size=6)


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), max_size=5))
def test_whatever_halves_come_the_stream_is_unicode_and_loses_nothing(pieces):
    encoder = ChatStream(request(stream=True), reply_id="chatcmpl-1", created=1)
    data = b""
    for content, reasoning, arguments in pieces:
        calls = (ToolDelta(0, "abcdefghi", "f", arguments),)
        data += encoder.delta(Delta(content, reasoning, calls))
    data += encoder.terminal("stop", None)
    found = [chunk["choices"][0]["delta"] for chunk in chunks(data)]
    contents = "".join(delta.get("content") or "" for delta in found)
    whole = "".join(content for content, _, _ in pieces)
    assert contents == whole.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    said = reply(whole, None, [("f", "".join(arguments for _, _, arguments in pieces))])
    body = json.loads(plain_body(request(), Said(said), reply_id="1"))
    assert (body["choices"][0]["message"]["content"] or "") == contents
    told = [c["function"]["arguments"] for d in found for c in d.get("tool_calls", ())]
    calls = body["choices"][0]["message"]["tool_calls"]
    assert "".join(told) == calls[0]["function"]["arguments"]
