"""Skeletons keep what templates branch on and nothing else, and stay small."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budwood.proxy.lineage.suffix.markers import DIGITS, END, N_MARKERS, marker_text
from budwood.proxy.lineage.suffix.skeleton import (
    TooManyMarkers,
    build_skeleton,
    compress,
    mark_tools,
    outline,
)

from .conversations import (
    MANNERS,
    TOOLS,
    assistant,
    call,
    fixtures,
    random_conversation,
    result,
    system,
    user,
)


def outlined(text: str) -> str:
    return outline(text, map("<{}>".format, itertools.count(1)).__next__)


@pytest.mark.parametrize(
    ("text", "skeleton"),
    [
        ("hello", "<1>"),
        ("  hello \n", "  <1> \n"),
        ("      hello", "    <1>"),
        ("   ", "   "),
        ("<think>\nhm\n</think>\n\nyes", "<think>\n<1>\n</think>\n\n<2>"),
        ("</think>", "</think>"),
        ("[INST] do [/INST]", "[INST] <1> [/INST]"),
        ("a < b and c > d", "<1> < b and c > <2>"),
        ("x\n<tool_response>\n</tool_response>", "<1>\n<tool_response>\n</tool_response>"),
    ],
)
def test_a_text_keeps_its_tags_and_edges(text, skeleton):
    assert outlined(text) == skeleton


def test_of_many_tags_the_outer_ones_stay_and_the_middle_is_one_text():
    text = "".join(f"<{i}>x" for i in range(100))
    out = outline(text, lambda: "M")
    assert out.count("<") == 16
    assert out.startswith("<0>M<1>M")
    assert out.endswith("<99>M")
    assert out.count("M") == 16


@given(st.text(alphabet="ab <>[]/\n", max_size=200))
def test_blank_stays_blank_and_text_becomes_markers(text):
    out = outlined(text)
    assert bool(out.strip()) == bool(text.strip())
    assert len(outline(text * 50, lambda: "M")) < 16 * 64


def test_markers_follow_the_fields_in_order_and_the_reply_ends_in_the_end_marker():
    reply = assistant("say", "think", [call(0, {"a": "b"}), call(1, {"c": "d"})])
    skeleton = build_skeleton([user("hi")], reply, [result("r1"), result("", 1)])
    assert skeleton.history == [user(marker_text(1))]
    assert skeleton.reply["reasoning"] == marker_text(2)
    assert skeleton.reply["content"] == marker_text(3)
    first, last = (made["function"]["arguments"] for made in skeleton.reply["tool_calls"])
    assert marker_text(4) in first
    assert marker_text(END) in last
    assert skeleton.reply_markers == (2, 3, 4, END)
    assert [message["content"] for message in skeleton.tail] == [marker_text(5), ""]
    assert all(message["content"] for message in skeleton.gap_tail)
    assert skeleton.reasoning_markers == {2}


def test_none_empty_and_blank_stay_what_they_are():
    history = [user("hi"), assistant(None, calls=[call(0, {})]), result(""), assistant("  ")]
    skeleton = build_skeleton([*history, user("x")], assistant(""), [user("y")])
    assert [message["content"] for message in skeleton.history][1:4] == [None, "", "  "]
    assert skeleton.reply["content"] == marker_text(END)


def test_ids_and_names_of_calls_stay_real_but_do_not_count():
    def talk(place: int, name: str):
        made = assistant("", calls=[call(place, {"x": "y"}, name)])
        return [user("hi")], made, [result("ok", place, name)]

    one, other = build_skeleton(*talk(3, "run_sh")), build_skeleton(*talk(7, "get_weather"))
    assert one.reply["tool_calls"][0]["function"]["name"] == "run_sh"
    assert one.tail[0]["tool_call_id"] != other.tail[0]["tool_call_id"]
    assert one.signature == other.signature
    mixed = build_skeleton(*talk(3, "run_sh")[:2], [result("ok", 9, "run_sh")])
    assert mixed.signature != one.signature


@pytest.mark.parametrize(
    "change",
    [
        {"tail": [user("x"), user("y")]},
        {"tail": [user("")]},
        {"tail": [system("x")]},
        {"reply": assistant("x", "thought")},
        {"history": [system("x"), user("y")]},
        {"history": [user("</think> x")]},
    ],
)
def test_another_structure_has_another_signature(change):
    talk = next(talk for talk in fixtures() if talk.name == "02_text_user")
    other = replace(talk, **change)
    one, two = (build_skeleton(t.history, t.reply, t.tail, 5) for t in (talk, other))
    assert one.signature != two.signature
    assert one.signature != build_skeleton(talk.history, talk.reply, talk.tail, 6).signature


@pytest.mark.parametrize("seed", range(100))
def test_a_compressed_conversation_is_a_part_of_it_with_both_ends(seed):
    manner = MANNERS[seed % len(MANNERS)]
    talk = random_conversation(seed, manner)
    messages = [*talk.history, talk.reply]
    kept = compress(messages)
    rest = iter(map(id, messages))
    assert all(id(message) in rest for message in kept)
    assert kept[-1] is messages[-1]
    assert kept[0] is messages[0]
    assert compress(kept) == kept


def test_compression_keeps_first_and_last_things():
    messages = [system("s"), user("u")]
    for i in range(50):
        thought = f"r{i}" if i in (5, 40) else None
        messages += [assistant("t" if i == 30 else "", thought, [call(i, {})]), result(f"{i}", i)]
    kept = compress([*messages, assistant("", calls=[call(50, {})])])
    results = [message["content"] for message in kept if message["role"] == "tool"]
    assert results == ["0", "5", "30", "40", "49"]
    turns = [message for i in range(50) for message in (user(f"u{i}"), assistant(f"a{i}"))]
    turns[21] = assistant("a10", "hm")
    turns.insert(62, system("late"))
    kept = compress(turns)
    assert [message["content"] for message in kept if message["role"] == "user"] == [
        "u0", "u10", "u30", "u48", "u49",
    ]  # fmt: skip


def test_short_conversations_are_not_compressed():
    chain = next(talk for talk in fixtures() if talk.name == "16_old_reasoning")
    assert compress(chain.history) == chain.history


def test_the_tool_list_is_marked_once_and_left_as_it_was():
    marked = mark_tools(TOOLS)
    assert marked is not None
    texts = [tool["function"]["description"] for tool in marked]
    assert texts[0].endswith(marker_text(N_MARKERS - 1))
    assert texts[1] == TOOLS[1]["function"]["description"]
    assert "zebra" not in str(TOOLS)
    assert mark_tools(None) is None
    bare = [{"type": "function", "function": {"name": "x"}}]
    assert mark_tools(bare) == [
        {"type": "function", "function": {"name": "x", "description": marker_text(N_MARKERS - 1)}}
    ]


def test_more_texts_than_markers_are_refused():
    calls = [call(i, {}) for i in range(N_MARKERS)]
    with pytest.raises(TooManyMarkers):
        build_skeleton([user("x")], assistant("", calls=calls), [user("y")])


def test_index_words_can_not_be_taken_for_one_another():
    assert len(set(DIGITS)) == 16
    assert not any(a != b and a.startswith(b) for a in DIGITS for b in DIGITS)
    assert len({marker_text(n) for n in range(N_MARKERS)}) == N_MARKERS
