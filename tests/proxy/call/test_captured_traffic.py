"""Bodies of real harnesses (structure only): cut, read, and their echoes of what was said."""

import json
from pathlib import Path

import pytest

from budwood.proxy.call import extend_chain, parse_chat, reply_message

FIXTURES = Path(__file__).parents[2] / "fixtures" / "chat"
HARNESSES = sorted(path.name for path in FIXTURES.iterdir() if path.is_dir())
BODIES = sorted(FIXTURES.glob("*/*.body.json"))


def requests(harness: str):
    found, previous = [], None
    for path in sorted((FIXTURES / harness).glob("*.body.json")):
        previous = parse_chat(path.read_bytes(), previous)
        found.append(previous)
    return found


def replies(harness: str) -> list[dict]:
    return json.loads((FIXTURES / harness / "replies.json").read_text())


@pytest.mark.parametrize("path", BODIES, ids=lambda path: f"{path.parent.name}/{path.name[:2]}")
def test_a_captured_body_is_read_and_joins_to_its_bytes(path):
    raw = path.read_bytes()
    request = parse_chat(raw)
    assert request.body.join() == raw
    value = json.loads(raw)
    assert [json.loads(message) for message in request.body.messages] == value["messages"]
    assert request.tools == (value.get("tools") or None)
    assert request.stream == bool(value.get("stream"))
    assert request.body.separators is None


@pytest.mark.parametrize("harness", HARNESSES)
def test_reading_after_the_call_before_gives_the_same(harness):
    for request in requests(harness):
        assert parse_chat(request.raw) == request


@pytest.mark.parametrize("harness", sorted(set(HARNESSES) - {"aider", "zeroclaw-bad-arguments"}))
def test_what_a_harness_echoes_is_what_it_was_told(harness):
    told = {reply_message(reply).digest: reply for reply in replies(harness)}
    echoes = [m for m in requests(harness)[-1].messages if m.role == "assistant"]
    assert len(echoes) == len({echo.digest for echo in echoes})
    for echo in echoes:
        assert echo.digest in told, (echo.text, echo.tool_calls)


GROWING = ("pi", "mini-swe-agent", "hermes", "kimi-code", "qwen-code", "vibe", "terminus-2",
           "openhands-sdk", "openhands-cli", "zeroclaw",
           "react-openai-sdk")  # fmt: skip


@pytest.mark.parametrize("harness", GROWING)
def test_a_growing_conversation_extends_request_and_reply_of_the_call_before(harness):
    found = requests(harness)
    for before, after, reply in zip(found, found[1:], replies(harness), strict=False):
        at = len(before.messages)
        key = extend_chain(before.chain[-1], reply_message(reply).digest)
        assert after.chain[at - 1] == before.chain[-1]
        assert after.chain[at] == key
        assert after.messages[0] is before.messages[0]


def test_a_history_whose_last_message_vanishes_keeps_the_rest():
    before, after = requests("openclaw")
    assert after.chain[len(before.messages) - 2] == before.chain[-2]
    assert after.chain[len(before.messages) - 1] != before.chain[-1]


def test_arguments_that_a_harness_has_repaired_are_not_what_was_said():
    after = requests("zeroclaw-bad-arguments")[1].messages[2]
    said = reply_message(replies("zeroclaw-bad-arguments")[0])
    assert said.flags == {"bad_arguments"}
    assert after.tool_calls[0].arguments == "{}"
    assert after.digest != said.digest
