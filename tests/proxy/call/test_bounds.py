"""Fields of wrong types and sizes are refused by name before anything is done for them."""

import json
from typing import Any

import pytest

from budwood.proxy.call import BadRequest, parse_chat
from budwood.proxy.call.bounds import BOUNDS

MESSAGES = [{"role": "user", "content": "hi"}]


def parsed(**fields: Any):
    return parse_chat(json.dumps({"model": "m", "messages": MESSAGES, **fields}).encode())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", "12"),
        ("max_tokens", -1),
        ("max_tokens", 0),
        ("max_tokens", [12]),
        ("max_tokens", 10**30),
        ("max_completion_tokens", 1.5),
        ("temperature", "NaN"),
        ("temperature", -0.1),
        ("temperature", True),
        ("temperature", 10**30),
        ("top_p", 2),
        ("top_k", 1.5),
        ("top_logprobs", 10**9),
        ("top_logprobs", -1),
        ("seed", "x"),
        ("stop", 5),
        ("stop", ["a"] * 10_000),
        ("stop", [["a"]]),
        ("stop", "a" * 10_000),
        ("stop_token_ids", ["a"]),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"1": "x"}),
        ("logit_bias", {str(n): 1 for n in range(20_000)}),
        ("bad_words", "x"),
        ("ignore_eos", 1),
        ("tool_choice", 5),
        ("parallel_tool_calls", "no"),
        ("response_format", "json"),
        ("chat_template_kwargs", ["x"]),
        ("reasoning_effort", {"a": 1}),
        ("documents", "x"),
        ("model", "m" * 2000),
        ("model", 5),
        ("stream", "yes"),
        ("stream_options", "yes"),
        ("return_token_ids", "yes"),
        ("logprobs", 5),
        ("tools", {"a": 1}),
        ("tools", [{}] * 5000),
    ],
)
def test_a_field_of_a_wrong_type_or_size_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        parsed(**{name: value})
    assert caught.value.param == name
    assert caught.value.status == 400
    assert name in caught.value.message


@pytest.mark.parametrize("name", sorted(BOUNDS))
def test_null_is_as_good_as_left_out(name: str) -> None:
    parsed(**{name: None})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 16.0),
        ("max_tokens", 10**12),
        ("temperature", 0),
        ("temperature", 2.5),
        ("top_k", -1),
        ("stop", "END"),
        ("stop", ["a", "b"]),
        ("logit_bias", {"50256": -100}),
        ("tool_choice", "auto"),
        ("seed", -(2**40)),
    ],
)
def test_what_sdks_send_passes(name: str, value: Any) -> None:
    assert parsed(**{name: value}).fields[name] == value


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"n": 10**30}},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"max": 10**30}}}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "size": 10**30}]}]},
    ],
)
def test_an_integer_that_no_engine_reads_is_refused(fields: dict) -> None:
    with pytest.raises(BadRequest, match="too large"):
        parsed(**fields)


def test_a_lone_surrogate_in_any_field_is_replaced_and_stays_in_the_raw_body() -> None:
    raw = (
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"stop":["\\ud800"],"x":"\\ud800"}'
    )
    request = parse_chat(raw)
    assert request.fields["stop"] == ["\ufffd"]
    assert request.fields["x"] == "\ufffd"
    assert request.body.join() == raw
