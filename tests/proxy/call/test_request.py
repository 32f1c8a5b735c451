"""Chat requests: what is read, what is refused by name, and what reading again costs."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budwood.proxy.call import BadRequest, Limits, extend_chain, parse_chat

USER = {"role": "user", "content": "Hello"}
TOOL = {"type": "function", "function": {"name": "bash", "parameters": None}}


def body(**fields) -> bytes:
    return json.dumps({"model": "m", "messages": [USER], **fields}).encode()


def parse(**fields):
    return parse_chat(body(**fields))


def test_a_small_request_is_read():
    request = parse(stream=True, stream_options={"include_usage": True}, temperature=0.5, x=[1])
    assert request.model == "m"
    assert request.stream
    assert request.include_usage
    assert request.tools is None
    assert request.fields == {"temperature": 0.5, "x": [1]}
    assert request.body.join() == request.raw
    assert request.messages[0].wire == USER
    assert request.chain == (extend_chain(request.template_key, request.messages[0].digest),)


def test_absent_and_null_fields_ask_for_nothing():
    nothing = dict.fromkeys(
        ["model", "stream", "stream_options", "tools", "logprobs", "top_logprobs", "n", "echo",
         "return_token_ids", "best_of", "functions", "tool_choice"]
    )  # fmt: skip
    request = parse(**nothing)
    assert request.model is None
    asked = [
        request.stream,
        request.include_usage,
        request.wants_logprobs,
        request.return_token_ids,
    ]
    assert asked == [False] * 4


def test_ids_and_logprobs_are_asked_for_by_name():
    request = parse(return_token_ids=True, logprobs=True, top_logprobs=3)
    assert (request.return_token_ids, request.wants_logprobs, request.top_logprobs) == (
        True,
        True,
        3,
    )


def test_usage_is_included_only_for_true():
    assert not parse(stream=True, stream_options={"include_usage": False}).include_usage
    assert not parse(stream=True, stream_options={}).include_usage


def test_empty_tools_are_none_and_stay_in_the_record():
    request = parse(tools=[], tool_choice="auto")
    assert request.tools is None
    assert request.body.tools == b"[]"
    assert request.body.join() == request.raw
    assert request.template_key == parse().template_key


def test_odd_tools_pass_through():
    tools = [TOOL, {"name": "x"}, {"type": "function", "function": {"name": "y", "parameters": {}}}]
    assert parse(tools=tools).tools == tools


@pytest.mark.parametrize(
    "change",
    [
        {"tools": [TOOL]},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "low"},
        {"documents": [{"title": "t", "text": "x"}]},
        {"chat_template": "{{ messages }}"},
    ],
)
def test_what_a_template_reads_starts_another_chain(change):
    plain, changed = parse(), parse(**change)
    assert changed.template_key != plain.template_key
    assert changed.chain[0] != plain.chain[0]
    assert changed.bare_chain[0] != plain.bare_chain[0]


def test_the_spelling_of_tools_does_not_start_another_chain():
    spelt = {"function": {"parameters": None, "name": "bash"}, "type": "function"}
    again = parse(tools=[{**spelt, "cache_control": {"type": "ephemeral"}}], temperature=1)
    assert again.template_key == parse(tools=[TOOL]).template_key
    assert again.tools == [TOOL]


def test_the_bare_chain_leaves_out_reasoning():
    messages = [USER, {"role": "assistant", "content": "a", "reasoning": "r"}, USER]
    bare = [USER, {"role": "assistant", "content": "a"}, USER]
    assert parse(messages=messages).bare_chain == parse(messages=bare).bare_chain
    assert parse(messages=messages).chain[0] == parse(messages=bare).chain[0]
    assert parse(messages=messages).chain[1:] != parse(messages=bare).chain[1:]


def test_the_body_key_is_blind_for_the_form_of_the_answer_only():
    key = parse().body_key
    assert len(key) == 32
    assert parse(stream=True, stream_options={"include_usage": True}).body_key == key
    assert parse(stream=False).body_key == key
    assert parse(temperature=0).body_key != key
    assert parse(tools=[]).body_key != key
    assert parse(messages=[USER, USER]).body_key != key
    assert parse(tools=None).body_key not in (key, parse(tools=[]).body_key)


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("best_of", 3),
        ("echo", True),
        ("continue_final_message", True),
        ("add_generation_prompt", False),
        ("use_beam_search", True),
        ("truncate_prompt_tokens", 10),
        ("functions", [{"name": "f"}]),
    ],
)
def test_what_would_be_answered_wrongly_is_refused_by_name(field, value):
    with pytest.raises(BadRequest, match=f"`{field}`") as caught:
        parse(**{field: value})
    assert (caught.value.status, caught.value.param) == (400, field)
    assert caught.value.code == "unsupported_parameter"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", 1),
        ("stream", "yes"),
        ("stream_options", []),
        ("tools", {}),
        ("tools", "x"),
        ("logprobs", 1),
        ("top_logprobs", "2"),
        ("top_logprobs", True),
        ("return_token_ids", 1),
        ("messages", None),
        ("messages", {}),
        ("messages", []),
    ],
)
def test_a_field_of_the_wrong_kind_is_refused_by_name(field, value):
    with pytest.raises(BadRequest) as caught:
        parse(**{field: value})
    assert (caught.value.status, caught.value.param) == (400, field)


def test_a_message_of_the_wrong_kind_is_refused_at_its_place():
    with pytest.raises(BadRequest) as caught:
        parse(messages=[USER, {"role": "user", "content": 7}])
    assert caught.value.param == "messages[1].content"
    with pytest.raises(BadRequest) as caught:
        parse(messages=[USER, 3])
    assert caught.value.param == "messages"
    with pytest.raises(BadRequest) as caught:
        parse(tools=[TOOL, 3])
    assert caught.value.param == "tools[1]"


DEEP = b"[" * 10_000 + b"]" * 10_000


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"not json",
        b"[]",
        b"null",
        b'{"model": "m", "messages": [',
        b'{"messages":[{"role":"user","content":"a"}],"temperature":NaN}',
        b'{"messages":[{"role":"user","content":"a"}],"temperature":-Infinity}',
        b'{"messages":[{"role":"user","content":"a"}],"temperature":1e999}',
        b'{"messages":[{"role":"user","content":"a","x":NaN}]}',
        b'{"messages":[{"role":"user","role":"system","content":"a"}]}',
        b'{"messages":[{"role":"user","content":"a"}],"n":1,"n":2}',
        b'{"messages":[{"role":"user","content":"a"}],"x":{"a":1,"a":1}}',
        b'{"messages":[{"role":"user","content":"a"}],"tools":[{"a":1,"a":1}]}',
        b'{"messages":[{"role":"user","content":"a\nb"}]}',
        b'{"messages":[{"role":"user","content":"\xff"}]}',
        b'{"messages":[{"role":"user","content":"a"}],"x":01}',
        b'{"messages":[{"role":"user","content":"a"}],"x":tru}',
        b'{"messages":[{"role":"user","content":"a"}],"x":[}}',
        b'{"messages":[{"role":"user","content":"a"}]} {}',
        b'{"messages":[{"role":"user","content":"a"}],"x":' + b"9" * 9999 + b"}",
        b'{"messages":[{"role":"user","content":"a"}],"x":' + DEEP + b"}",
        b'{"messages":[{"role":"user","content":"a"}],"tools":' + DEEP + b"}",
        b'{"messages":[{"role":"user","content":' + DEEP + b"}]}",
        b'{"messages":' + DEEP + b"}",
        DEEP,
        random.Random(1).randbytes(500),
    ],
)
def test_what_is_not_strict_json_is_a_400_of_ours(raw):
    with pytest.raises(BadRequest) as caught:
        parse_chat(raw)
    assert caught.value.status == 400
    assert "Traceback" not in caught.value.message


def test_nesting_and_numbers_of_messages_are_bounded():
    deep = json.loads("[" * 40 + "]" * 40)
    parse_chat(body(x=deep), limits=Limits(max_nesting=40))
    with pytest.raises(BadRequest, match="deeper than 39"):
        parse_chat(body(x=deep), limits=Limits(max_nesting=39))
    with pytest.raises(BadRequest, match="2 messages"):
        parse_chat(body(messages=[USER] * 3), limits=Limits(max_messages=2))


def test_an_error_names_no_text_of_the_client():
    with pytest.raises(BadRequest) as caught:
        parse_chat(
            b'{"secret-key": {"secret": tru}, "messages": [{"role": "user", "content": ""}]}'
        )
    assert "secret" not in caught.value.message
    assert caught.value.param is None


# -- histories -----------------------------------------------------------------------------------


def test_odd_histories_are_accepted():
    call = {"function": {"name": "bash", "arguments": '{"a":'}}
    request = parse(
        messages=[
            {"role": "assistant", "tool_calls": [call, call]},
            {"role": "tool", "content": "2"},
            {"role": "tool", "content": "1", "tool_call_id": None},
            {"role": "tool", "content": "nobody asked", "tool_call_id": "zzz"},
            {"role": "system", "content": None},
            {"role": "assistant"},
        ]
    )
    calls = request.messages[0].wire["tool_calls"]
    assert [c["id"] for c in calls] == ["call00000", "call00001"]
    assert [m.wire.get("tool_call_id") for m in request.messages[1:4]] == [
        "call00000",
        "call00001",
        "zzz",
    ]
    assert request.messages[0].flags == {"bad_arguments", "missing_id"}


# -- reading again -------------------------------------------------------------------------------


def test_messages_of_the_same_bytes_are_the_same_objects():
    tools = [{"type": "function", "function": {"name": f"t{i}"}} for i in range(9)]
    messages = [{"role": "system", "content": "s"}, USER]
    before = parse(messages=messages, tools=tools)
    raw = body(messages=[*messages, {"role": "assistant", "content": "a"}, USER], tools=tools)
    after = parse_chat(raw, before)
    assert after.messages[0] is before.messages[0]
    assert after.messages[1] is before.messages[1]
    assert after.tools is before.tools
    assert after.chain[:2] == before.chain
    assert after == parse_chat(raw)


MESSAGES = st.lists(
    st.sampled_from(
        [
            USER,
            {"role": "user", "content": "Hello "},
            {"role": "assistant", "content": "a", "reasoning": "r"},
            {
                "role": "assistant",
                "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}] * 2,
            },
            {"role": "tool", "content": "x"},
            {"role": "tool", "content": "y", "tool_call_id": "call00000"},
            {"role": "system", "content": "\ud83d"},
        ]
    ),
    min_size=1,
    max_size=6,
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "tools": st.sampled_from([[], [TOOL], [TOOL, TOOL], None]),
        "reasoning_effort": st.sampled_from(["low", None]),
        "stream": st.booleans(),
    },
)


@given(st.data(), MESSAGES, MESSAGES, FIELDS, FIELDS, st.booleans())
def test_an_earlier_request_changes_nothing_but_the_work(data, old, new, before, after, spaced):
    new = old[: data.draw(st.integers(0, len(old)))] + new
    style = (", ", ": ") if spaced else (",", ":")

    def say(messages, fields):
        order = list({"model": "m", **fields, "messages": messages}.items())
        random.Random(len(fields)).shuffle(order)
        return json.dumps(dict(order), separators=style).encode()

    earlier = parse_chat(say(old, before))
    raw = say(new, after)
    assert parse_chat(raw, earlier) == parse_chat(raw)
