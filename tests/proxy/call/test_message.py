"""The canonical form: what a harness may change, and what it may not."""

import copy
import json
import string

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from budwood.proxy.call import (
    BadRequest,
    Message,
    canonical_message,
    loads_message,
    reply_message,
    reply_thought,
)


def message(obj: dict) -> Message:
    raw = json.dumps(obj).encode()
    return canonical_message(loads_message(raw), raw)


def assistant(**fields) -> dict:
    return {"role": "assistant", **fields}


def call(arguments, name="bash", call_id: str | None = "abc123XYZ", **more) -> dict:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function, **more}


def same(a: dict, b: dict) -> bool:
    return message(a).digest == message(b).digest


COSMETIC = {
    "outer white space": (assistant(content="a b"), assistant(content="\n a b\u3000\n")),
    "absent, null": (assistant(), assistant(content=None)),
    "absent, empty": (assistant(), assistant(content="")),
    "absent, empty list": (assistant(), assistant(content=[])),
    "absent, white space": (assistant(), assistant(content=" \n")),
    "a part": (assistant(content="a"), assistant(content=[{"type": "text", "text": "a"}])),
    "an output part": (
        assistant(content="a"),
        assistant(content=[{"type": "output_text", "text": "a", "annotations": []}]),
    ),
    "parts of a tool's text are joined by a line feed": (
        {"role": "tool", "content": "a\nb"},
        {"role": "tool", "content": [{"type": "text", "text": t} for t in ("a", "", "b")]},
    ),
    "texts as parts": ({"role": "user", "content": "a"}, {"role": "user", "content": ["a"]}),
    "cache_control": (
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {
            "role": "user",
            "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}],
            "cache_control": {"type": "ephemeral"},
        },
    ),
    "reasoning_content": (
        assistant(content="a", reasoning="r"),
        assistant(content="a", reasoning_content="\nr\n"),
    ),
    "both reasoning fields": (
        assistant(content="a", reasoning="r"),
        assistant(content="a", reasoning_content="r", reasoning="r"),
    ),
    "thinking": (assistant(content="a", reasoning="r"), assistant(content="a", thinking="r")),
    "a thinking part": (
        assistant(content="a", reasoning="r"),
        assistant(content=[{"type": "thinking", "thinking": "r"}, {"type": "text", "text": "a"}]),
    ),
    "think tags": (
        assistant(content="a", reasoning="r"),
        assistant(content="<think>\nr\n</think>\n\na"),
    ),
    "think tags beside the field": (
        assistant(content="a", reasoning="r"),
        assistant(content="<think>r</think>a", reasoning_content="r"),
    ),
    "empty reasoning": (assistant(content="a"), assistant(content="a", reasoning_content="")),
    "arguments re-spaced": (
        assistant(tool_calls=[call('{"a": 1, "b": [true, null]}')]),
        assistant(tool_calls=[call('{"b":[true,null],\n"a":1.0}')]),
    ),
    "arguments re-escaped": (
        assistant(tool_calls=[call('{"a":"\\u00e9\\/\\ud83d\\ude00"}')]),
        assistant(tool_calls=[call('{"a":"é/😀"}')]),
    ),
    "numbers re-spelt": (
        assistant(tool_calls=[call('{"a":1e2,"b":-0.0,"c":0.10}')]),
        assistant(tool_calls=[call('{"a":100,"b":0,"c":0.1}')]),
    ),
    "arguments as an object": (
        assistant(tool_calls=[call('{"a":1}')]),
        assistant(tool_calls=[call({"a": 1})]),
    ),
    "no arguments": (assistant(tool_calls=[call("")]), assistant(tool_calls=[call("{}")])),
    "ids": (
        assistant(tool_calls=[call("{}", call_id="a")]),
        assistant(tool_calls=[call("{}", call_id="b", index=0)]),
    ),
    "empty calls": (assistant(content="a"), assistant(content="a", tool_calls=[])),
    "null calls": (assistant(content="a"), assistant(content="a", tool_calls=None)),
    "descriptions": (
        assistant(content="a"),
        assistant(content="a", refusal=None, annotations=[], audio=None, function_call=None),
    ),
    "legacy call": (
        assistant(tool_calls=[call('{"a":1}')]),
        assistant(content=None, function_call={"name": "bash", "arguments": '{"a": 1}'}),
    ),
    "legacy answer": (
        {"role": "tool", "content": "x", "tool_call_id": "1"},
        {"role": "function", "content": "x", "name": "bash"},
    ),
    "name and id on answers": (
        {"role": "tool", "content": "x", "tool_call_id": "1", "name": "bash"},
        {"role": "tool", "content": [{"type": "text", "text": "x"}], "tool_call_id": "2"},
    ),
    "a volatile line": (
        {"role": "system", "content": "x-anthropic-billing-header: cc_version=1.a;\nYou are"},
        {"role": "system", "content": "You are"},
    ),
    "a volatile part": (
        {
            "role": "system",
            "content": [
                {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.b;"},
                {"type": "text", "text": "You are"},
            ],
        },
        {"role": "system", "content": "You are"},
    ),
}

MEANT = {
    "parts that a template may write without a line feed": (
        {"role": "user", "content": "a\nb"},
        {"role": "user", "content": [{"type": "text", "text": t} for t in ("a", "b")]},
    ),
    "inner white space": (assistant(content="a b"), assistant(content="a  b")),
    "white space of a user": (
        {"role": "user", "content": "a"},
        {"role": "user", "content": "a\n"},
    ),
    "white space of a tool": (
        {"role": "tool", "content": "a"},
        {"role": "tool", "content": " a"},
    ),
    "white space of a system": (
        {"role": "system", "content": "a"},
        {"role": "system", "content": " a"},
    ),
    "role": ({"role": "user", "content": "a"}, {"role": "system", "content": "a"}),
    "developer": ({"role": "developer", "content": "a"}, {"role": "system", "content": "a"}),
    "name of a user": (
        {"role": "user", "content": "a"},
        {"role": "user", "content": "a", "name": "bob"},
    ),
    "reasoning dropped": (assistant(content="a", reasoning="r"), assistant(content="a")),
    "reasoning changed": (
        assistant(content="a", reasoning="r"),
        assistant(content="a", reasoning="s"),
    ),
    "other think tags": (
        assistant(content="a", reasoning="r"),
        assistant(content="<think>s</think>a", reasoning="r"),
    ),
    "true is not 1": (
        assistant(tool_calls=[call('{"a":true}')]),
        assistant(tool_calls=[call('{"a":1}')]),
    ),
    "a text is not a number": (
        assistant(tool_calls=[call('{"a":"1"}')]),
        assistant(tool_calls=[call('{"a":1}')]),
    ),
    "null is not absent": (
        assistant(tool_calls=[call('{"a":null}')]),
        assistant(tool_calls=[call("{}")]),
    ),
    "order in a list": (
        assistant(tool_calls=[call('{"a":[1,2]}')]),
        assistant(tool_calls=[call('{"a":[2,1]}')]),
    ),
    "large integers": (
        assistant(tool_calls=[call('{"a":9007199254740993}')]),
        assistant(tool_calls=[call('{"a":9007199254740992}')]),
    ),
    "a key twice": (
        assistant(tool_calls=[call('{"a":1,"a":2}')]),
        assistant(tool_calls=[call('{"a":2}')]),
    ),
    "arguments repaired": (
        assistant(tool_calls=[call('{"a":1')]),
        assistant(tool_calls=[call('{"a":1}')]),
    ),
    "arguments dropped": (
        assistant(tool_calls=[call('{"a":1')]),
        assistant(tool_calls=[call("{}")]),
    ),
    "an encoded object": (
        assistant(tool_calls=[call('"{}"')]),
        assistant(tool_calls=[call("{}")]),
    ),
    "name of a call": (
        assistant(tool_calls=[call("{}", name="a")]),
        assistant(tool_calls=[call("{}", name="b")]),
    ),
    "order of calls": (
        assistant(tool_calls=[call("{}", name="a"), call("{}", name="b")]),
        assistant(tool_calls=[call("{}", name="b"), call("{}", name="a")]),
    ),
    "a call less": (
        assistant(tool_calls=[call("{}"), call("{}")]),
        assistant(tool_calls=[call("{}")]),
    ),
    "media": (
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,a"}}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,b"}}]},
    ),
    "place of media": (
        {"role": "user", "content": ["a", {"type": "image_url", "image_url": {"url": "u"}}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}, "a"]},
    ),
    "a line that is not volatile where it stands": (
        {"role": "user", "content": "x-anthropic-billing-header: 1\na"},
        {"role": "user", "content": "x-anthropic-billing-header: 2\na"},
    ),
}


@pytest.mark.parametrize(("a", "b"), COSMETIC.values(), ids=COSMETIC)
def test_a_cosmetic_edit_keeps_the_digest(a, b):
    assert same(a, b)
    assert message(a).bare_digest == message(b).bare_digest


@pytest.mark.parametrize(("a", "b"), MEANT.values(), ids=MEANT)
def test_an_edit_of_meaning_changes_the_digest(a, b):
    assert not same(a, b)


def test_the_bare_digest_leaves_out_reasoning_only():
    with_reasoning = message(assistant(content="a", reasoning="r"))
    without = message(assistant(content="a"))
    assert with_reasoning.bare_digest == without.bare_digest
    assert with_reasoning.digest != without.digest
    assert without.digest == without.bare_digest
    assert message(assistant(content="b")).bare_digest != without.bare_digest


def test_fields_cannot_run_into_each_other():
    texts = [
        assistant(content="ab", tool_calls=[call("{}", name="c")]),
        assistant(content="a", tool_calls=[call("{}", name="bc")]),
        assistant(content="abc"),
        {"role": "assistan", "content": "tabc"},
    ]
    assert len({message(text).digest for text in texts}) == len(texts)


# -- what the engine renders ---------------------------------------------------------------------


def test_the_wire_form_of_a_whole_turn():
    found = message(
        assistant(
            content=[{"type": "text", "text": " a"}, {"type": "text", "text": "b "}],
            reasoning_content="r",
            tool_calls=[call('{"x":  1}', index=0)],
            refusal=None,
        )
    )
    assert found.wire == {
        "role": "assistant",
        "content": [{"type": "text", "text": " a"}, {"type": "text", "text": "b "}],
        "reasoning": "r",
        "tool_calls": [call('{"x":  1}')],
    }
    assert found.text == " a\nb "
    assert found.content_form == "parts"
    assert found.tool_calls[0].value == {"x": 1}
    assert found.flags == frozenset()


def test_several_texts_are_left_to_the_template_but_for_tools():
    parts = [{"type": "text", "text": "a", "cache_control": {}}, {"type": "text", "text": "b"}]
    kept = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert message({"role": "user", "content": parts}).wire["content"] == kept
    assert message({"role": "user", "content": parts[:1]}).wire["content"] == "a"
    tool = {"role": "tool", "tool_call_id": "x", "content": parts}
    assert message(tool).wire["content"] == "a\nb"


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_missing_content_is_rendered_as_an_empty_text(content):
    assert message({**assistant(tool_calls=[call("{}")]), **content}).wire["content"] == ""


@pytest.mark.parametrize(
    "arguments",
    [
        '{"a":',
        "[1]",
        '"x"',
        "3",
        "null",
        "true",
        "not json",
        "[" * 5000,
        '{"a":' * 5000,
        "9" * 5000,
    ],
)
def test_arguments_that_are_no_object_are_rendered_as_an_empty_one_and_kept_raw(arguments):
    found = message(assistant(tool_calls=[call(arguments)]))
    assert found.wire["tool_calls"][0]["function"]["arguments"] == "{}"
    assert found.tool_calls[0].arguments == arguments
    assert "bad_arguments" in found.flags


@pytest.mark.parametrize("arguments", ['{"a":1,"a":2}', '{"a":NaN}', '{"a":1e999}'])
def test_arguments_that_engines_read_all_the_same_are_left_alone(arguments):
    found = message(assistant(tool_calls=[call(arguments)]))
    assert found.wire["tool_calls"][0]["function"]["arguments"] == arguments
    assert not found.tool_calls[0].is_value


def test_missing_ids_are_given_in_order():
    found = message(assistant(tool_calls=[call("{}", call_id=None), call("{}", call_id="")]))
    assert [c["id"] for c in found.wire["tool_calls"]] == ["call00000", "call00001"]
    raw = b'{"role":"tool","content":"x"}'
    answer = canonical_message(loads_message(raw), raw, unanswered=["call00001"])
    assert answer.wire["tool_call_id"] == "call00001"
    assert "missing_id" in answer.flags


def test_media_stay_in_place_on_the_wire():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    found = message(
        {
            "role": "user",
            "content": ["a", {**image, "cache_control": {}}, {"type": "text", "text": "b"}],
        }
    )
    assert found.wire["content"] == [
        {"type": "text", "text": "a"},
        image,
        {"type": "text", "text": "b"},
    ]
    assert [media.kind for media in found.media] == ["image"]
    assert found.text == "a\nb"


def test_a_custom_tool_call_is_a_call_with_one_text():
    custom = {"id": "1", "type": "custom", "custom": {"name": "patch", "input": "x"}}
    assert same(
        assistant(tool_calls=[custom]), assistant(tool_calls=[call('{"input":"x"}', name="patch")])
    )


# -- broken text ---------------------------------------------------------------------------------

LONE = [
    rb'{"role":"user","content":"a\ud83db"}',
    rb'{"role":"user","content":"a\uDE00b"}',
    b'{"role":"user","content":"a\xed\xa0\xbdb"}',
]


@pytest.mark.parametrize("raw", LONE)
def test_a_lone_surrogate_is_replaced_and_marked(raw):
    found = canonical_message(loads_message(raw), raw)
    assert found.wire["content"] == "a\ufffdb"
    assert found.flags == {"surrogate"}
    assert found.raw == raw
    assert found.digest == message({"role": "user", "content": "a\ufffdb"}).digest


def test_a_pair_that_was_split_is_joined():
    raw = b'{"role":"user","content":"\xed\xa0\xbd\xed\xb8\x80"}'
    assert canonical_message(loads_message(raw), raw).wire["content"] == "😀"


def test_a_lone_surrogate_inside_arguments_is_replaced():
    found = message(assistant(tool_calls=[call(r'{"a":"\ud83d", "b":1.0}')]))
    assert json.loads(found.wire["tool_calls"][0]["function"]["arguments"]) == {
        "a": "\ufffd",
        "b": 1,
    }
    assert "surrogate" in found.flags
    json.dumps(found.wire, ensure_ascii=False).encode()


@given(st.text(st.characters(categories=["Cs", "L", "Zs"]), max_size=8))
def test_whatever_surrogates_there_are_the_wire_form_is_unicode(text):
    obj = assistant(
        content=text,
        reasoning=text,
        name=text,
        tool_calls=[call(json.dumps({text: text}), name=text)],
    )
    found = message(obj)
    json.dumps(found.wire, ensure_ascii=False).encode()
    json.loads(found.wire["tool_calls"][0]["function"]["arguments"])
    direct = call(json.dumps({text: text}, ensure_ascii=False), name=text)
    assert found.digest == message({**obj, "tool_calls": [direct]}).digest


# -- shape ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("obj", "param"),
    [
        ({}, "messages[3].role"),
        ({"role": 1}, "messages[3].role"),
        ({"role": "user", "content": 1}, "messages[3].content"),
        ({"role": "user", "content": {"a": 1}}, "messages[3].content"),
        ({"role": "user", "content": [1]}, "messages[3].content[0]"),
        ({"role": "user", "content": [{"text": "a"}]}, "messages[3].content[0]"),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, "messages[3].content[0]"),
        ({"role": "assistant", "reasoning": 1}, "messages[3].reasoning"),
        ({"role": "assistant", "tool_calls": {}}, "messages[3].tool_calls"),
        ({"role": "assistant", "tool_calls": [1]}, "messages[3].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[3].tool_calls[0].function"),
    ],
)
def test_a_message_that_cannot_be_read_is_refused_at_its_place(obj, param):
    with pytest.raises(BadRequest) as caught:
        canonical_message(obj, b"", place="messages[3]")
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize("role", ["robot", "developer", "latest_reminder"])
def test_roles_are_not_judged(role):
    assert message({"role": role, "content": "x"}).wire == {"role": role, "content": "x"}


# -- echoes --------------------------------------------------------------------------------------

NAMES = st.text(string.ascii_letters, min_size=1, max_size=6)
WORDS = st.text(st.characters(codec="utf-8"), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | WORDS
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
ARGUMENTS = st.dictionaries(NAMES, VALUES, max_size=3).map(json.dumps) | WORDS
REPLIES = st.fixed_dictionaries(
    {
        "role": st.just("assistant"),
        "content": st.none() | WORDS,
        "reasoning": st.none() | WORDS,
        "tool_calls": st.lists(
            st.fixed_dictionaries(
                {"id": NAMES, "engine_id": NAMES, "name": NAMES, "arguments": ARGUMENTS}
            ),
            max_size=3,
        ),
    }
)


def respelt(arguments: str, **style) -> str:
    """Arguments through a parser and a writer, as pi, Kimi, Qwen, OpenClaw and Hermes do."""
    try:
        return json.dumps(json.loads(arguments), **style)
    except ValueError:
        return arguments


def echo_like_pi(reply: dict) -> dict:
    obj = {"role": "assistant", "content": (reply["content"] or "").strip() or None}
    if reply["reasoning"]:
        obj["reasoning_content"] = reply["reasoning"]
    if reply["tool_calls"]:
        obj["tool_calls"] = [
            call(
                respelt(c["arguments"], separators=(",", ":"), ensure_ascii=False),
                c["name"],
                c["id"],
            )
            for c in reply["tool_calls"]
        ]
    return obj


def echo_like_hermes(reply: dict) -> dict:
    obj = echo_like_pi(reply)
    obj["content"] = reply["content"] or ""
    obj["finish_reason"] = "tool_calls"
    return obj


def echo_like_openclaw(reply: dict) -> dict:
    obj = echo_like_pi(reply)
    obj["content"] = [{"type": "text", "text": reply["content"] or ""}]
    for position, tool_call in enumerate(obj.get("tool_calls", ())):
        tool_call["id"] = f"call{position}"
        tool_call["function"]["arguments"] = respelt(
            tool_call["function"]["arguments"], sort_keys=True
        )
    return obj


def echo_like_the_sdk(reply: dict) -> dict:
    calls = [call(c["arguments"], c["name"], c["id"]) for c in reply["tool_calls"]]
    return {
        "content": reply["content"],
        "refusal": None,
        "role": "assistant",
        "annotations": None,
        "tool_calls": calls or None,
        "reasoning": reply["reasoning"],
        "reasoning_content": reply["reasoning"],
    }


@pytest.mark.parametrize(
    "echo", [echo_like_pi, echo_like_hermes, echo_like_openclaw, echo_like_the_sdk]
)
@given(reply=REPLIES)
def test_a_reply_equals_its_echo(echo, reply):
    for c in reply["tool_calls"]:
        try:
            json.loads(c["arguments"])
        except ValueError:
            continue
        # Python's own reader, which `respelt` stands on, takes the last of two equal keys.
        assume(c["arguments"] not in ("NaN", "Infinity", "-Infinity"))
    assert reply_message(reply).digest == message(echo(reply)).digest


@given(reply=REPLIES, block=st.sampled_from(["", "<think>", "<think> a\ud800 </think>", " \n"]))
def test_the_thought_of_a_reply_is_that_of_its_message(reply, block):
    said = {**reply, "content": block + (reply["content"] or "")}
    for each in (reply, said, {**said, "reasoning": None}, {**said, "reasoning": "a\ufffd"}):
        assert reply_thought(each) == reply_message(each).thought


@given(reply=REPLIES, data=st.data())
def test_an_edited_echo_is_another_message(reply, data):
    edited = copy.deepcopy(reply)
    edits = ["content", "reasoning", *(["call"] * bool(reply["tool_calls"]))]
    edit = data.draw(st.sampled_from(edits))
    if edit == "call":
        target = data.draw(st.sampled_from(edited["tool_calls"]))
        change = data.draw(st.sampled_from(["name", "arguments", "drop", "add"]))
        if change == "name":
            target["name"] += "x"
        elif change == "arguments":
            target["arguments"] = json.dumps({"other": target["arguments"]})
        elif change == "drop":
            edited["tool_calls"].remove(target)
        else:
            edited["tool_calls"].append(target)
    else:
        edited[edit] = (edited[edit] or "") + "x"
        assume("<think>" not in (reply["content"] or ""))
    assert reply_message(edited).digest != message(echo_like_pi(reply)).digest
