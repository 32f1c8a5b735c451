"""Refusals in the dialect's shape, and the words that harnesses look for."""

import json
import pickle

import pytest

from budwood.proxy.call import BadRequest, error_body, error_event, overflow_message

VLLM = (
    "This model's maximum context length is 4096 tokens. However, your prompt contains at least "
    "4097 input tokens, which exceeds this limit even without any output tokens. Please reduce the "
    "length of the input prompt. (parameter=input_tokens, value=4097)"
)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "invalid_request_error"),
        (418, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
        (503, "server_error"),
    ],
)
def test_an_error_has_openais_shape(status, kind):
    assert json.loads(error_body(status, "No.", code="c", param="p")) == {
        "error": {"message": "No.", "type": kind, "param": "p", "code": "c"}
    }


def test_an_error_in_a_stream_is_one_event():
    event = error_event(502, "a\nb")
    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    assert event.count(b"\n") == 2
    assert json.loads(event[6:])["error"]["message"] == "a\nb"


def test_an_error_of_broken_text_can_be_said():
    assert json.loads(error_body(400, "a\ud83d"))["error"]["message"] == "a\ufffd"


@pytest.mark.parametrize(
    "text",
    [
        overflow_message(4097, 4096),
        overflow_message(None, None, VLLM),
        overflow_message(4097, None, VLLM),
    ],
)
def test_an_overflow_is_told_in_both_wordings(text):
    assert "maximum context length is 4096 tokens" in text
    assert "your messages resulted in 4097 tokens" in text
    assert "your prompt contains at least 4097 input tokens" in text
    assert "reduce the length of the messages" in text
    assert "exceeds this limit" in text


def test_an_overflow_of_unknown_lengths_keeps_the_wording():
    text = overflow_message(None, None, "too long")
    assert "maximum context length" in text
    assert "reduce the length of the messages" in text


def test_a_refusal_can_be_pickled():
    error = pickle.loads(pickle.dumps(BadRequest("No.", param="p", code="c", status=413)))
    assert (error.message, error.param, error.code, error.status) == ("No.", "p", "c", 413)
