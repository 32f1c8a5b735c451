"""What the engine is asked: one rule a field."""

import pytest

from budwood.proxy.engine import EngineInfo, Prompt, build_call
from budwood.proxy.engine.request import NEUTRAL, dummy_messages
from budwood.trajectory_store import CallId, LaneId, Purpose

INFO = EngineInfo("vllm", "0.32.0", ("m",), "m", 1000, "kv_transfer", "render")
TEXT = EngineInfo("openai", None, ("m",), "m", None, "text")
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.fixture
def build(chat_request):
    def make(*, info=INFO, purpose=Purpose.RECORD, sampling=None, n_prompt=10, messages=None, **f):
        messages = messages or [{"role": "user", "content": "x"}]
        return build_call(
            info,
            chat_request(messages, **f),
            call_id=CallId("ca_1"),
            lane_id=LaneId("la_1"),
            model="m",
            purpose=purpose,
            sampling=sampling,
            prompt=Prompt(range(n_prompt)) if n_prompt else None,
            messages=messages,
            policy_label="step-3",
        )

    return make


def test_all_of_sampling_is_always_written_out(build):
    call = build()
    assert NEUTRAL.items() <= call.fields.items()
    assert call.sampling["temperature"] == 1.0


def test_a_harness_samples_as_it_asks_but_in_training(build):
    asked = {"temperature": 0.2, "top_p": 0.5, "seed": 3}
    recorded = build(**asked)
    assert asked.items() <= recorded.fields.items()
    trained = build(**asked, purpose=Purpose.TRAIN, sampling={"temperature": 0.8})
    assert trained.fields["temperature"] == 0.8
    assert trained.fields["top_p"] == 1.0
    assert "seed" not in trained.fields
    assert trained.sampling["asked"] == {"temperature": 0.2, "top_p": 0.5}


def test_ids_logprobs_and_their_pairs_are_asked_for(build):
    fields = build().fields
    assert fields["return_token_ids"] is True
    assert fields["logprobs"] is True
    assert fields["top_logprobs"] == 0
    assert fields["return_tokens_as_token_ids"] is True
    assert fields["session_id"] == "la_1"
    assert fields["cache_salt"] == "step-3"
    assert "include_reasoning" not in build(include_reasoning=False).fields


def test_pairs_are_not_asked_for_beside_alternatives_of_the_client(build):
    fields = build(logprobs=True, top_logprobs=3).fields
    assert fields["top_logprobs"] == 3
    assert "return_tokens_as_token_ids" not in fields


def test_usage_is_asked_for_with_streams_only(build):
    assert build(stream=True).fields["stream_options"] == {"include_usage": True}
    assert "stream_options" not in build().fields


@pytest.mark.parametrize(
    ("asked", "cap", "n_prompt", "sent"),
    [
        ({}, None, 10, 990),
        ({"max_tokens": 50}, None, 10, 50),
        ({"max_completion_tokens": 50, "max_tokens": 70}, None, 10, 50),
        ({"max_tokens": 50}, 20, 10, 20),
        ({"max_tokens": 5000}, None, 10, 990),
        ({"max_tokens": 5000}, None, 0, 999),
        ({"max_tokens": 50}, None, 999, 1),
        ({}, None, 0, None),
    ],
)
def test_max_tokens_is_the_least_of_asked_cap_and_room(build, asked, cap, n_prompt, sent):
    call = build(**asked, sampling={"max_tokens": cap} if cap else None, n_prompt=n_prompt)
    assert call.fields.get("max_tokens") == sent
    assert "max_completion_tokens" not in call.fields


def test_what_vllm_refuses_or_ignores_is_dropped(build):
    call = build(
        tools=[], tool_choice="auto", parallel_tool_calls=True, store=False, metadata={"a": 1},
        service_tier="auto", user="u", stream_options={"include_usage": True},
    )  # fmt: skip
    gone = {"tools", "tool_choice", "parallel_tool_calls", "store", "metadata", "service_tier"}
    assert not (gone | {"user", "stream_options"}) & call.fields.keys()


def test_what_parsers_and_templates_read_is_passed(build):
    asked = {
        "tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": False,
        "chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low",
    }  # fmt: skip
    assert asked.items() <= build(**asked).fields.items()
    assert build(**asked).flags == []


@pytest.mark.parametrize(
    "asked",
    [
        {"response_format": {"type": "json_object"}},
        {"tools": [TOOL], "tool_choice": "required"},
        {"logit_bias": {"5": 1}},
        {"bad_words": ["x"]},
        {"min_tokens": 3},
        {"structured_outputs": {"regex": "a+"}},
    ],
)
def test_constrained_sampling_is_passed_and_marked(build, asked):
    call = build(**asked)
    assert asked.items() <= call.fields.items()
    assert call.flags == ["constrained"]


def test_text_as_response_format_constrains_nothing(build):
    assert build(response_format={"type": "text"}).flags == []


def test_temperature_zero_is_marked(build):
    assert build(temperature=0).flags == ["greedy"]


def test_real_messages_are_sent_where_the_engine_renders(build):
    messages = [{"role": "user", "content": "real"}]
    assert build(messages=messages, n_prompt=0).messages == messages
    assert build(messages=messages).messages != messages


def test_dummies_hold_as_many_tool_calls_and_end_in_a_user_message():
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    real = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    dummies = dummy_messages(real)
    assert sum(len(m.get("tool_calls") or ()) for m in dummies) == 3
    assert dummies[-1]["role"] == "user"
    assert all(isinstance(m["content"], str) for m in dummies)
    assert dummy_messages(real[:1]) == [{"role": "user", "content": "-"}]


def test_another_server_gets_no_field_that_only_vllm_knows(build):
    call = build(info=TEXT, temperature=0.3, max_completion_tokens=9, custom=1, stream=True)
    assert call.prompt is None
    assert not call.wants_ids
    assert call.fields == {
        "model": "m", "temperature": 0.3, "max_completion_tokens": 9, "custom": 1,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
