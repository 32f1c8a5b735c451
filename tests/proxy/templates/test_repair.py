"""System messages past the first, for templates that refuse them."""

import pytest

from budwood.proxy.lineage.suffix import repaired

from .conversations import assistant, result, system, user


@pytest.mark.parametrize(
    ("messages", "wanted"),
    [
        ([user("a")], None),
        ([system("s"), user("a"), assistant("b"), user("c")], None),
        ([system("d", "developer"), user("a")], [system("d"), user("a")]),
        ([system("s"), system("d", "developer"), user("a")], [system("s\n\nd"), user("a")]),
        (
            [user("a"), assistant("b"), system("s"), user("c")],
            [user("a"), assistant("b"), user("s\n\nc")],
        ),
        (
            [user("a"), assistant("b"), system("s"), system("t"), user("c"), user("d")],
            [user("a"), assistant("b"), user("s\n\nt\n\nc"), user("d")],
        ),
        (
            [user("a"), system("s"), assistant("b"), user("c")],
            [user("a"), user("s"), assistant("b"), user("c")],
        ),
        ([user("a"), assistant("b"), system("s")], [user("a"), assistant("b"), user("s")]),
        (
            [user("a"), system("s"), result("r"), user("c")],
            [user("a"), result("r"), user("s\n\nc")],
        ),
    ],
)
def test_late_system_text_becomes_user_text_and_none_is_lost(messages, wanted):
    assert repaired(messages) == wanted


def test_in_a_tail_no_system_message_leads():
    assert repaired([system("s"), user("a")], leading=False) == [user("s\n\na")]


@pytest.mark.parametrize("cut", range(1, 7))
def test_parts_repaired_apart_are_the_whole_repaired(cut):
    messages = [
        system("s"), system("d"), user("a"), assistant("b"), system("x"), user("c"),
        system("y"), assistant("e"), system("z"), result("r"), user("f"),
    ]  # fmt: skip
    replies = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    reply = replies[cut % len(replies)]
    before, after = messages[:reply], messages[reply + 1 :]
    parts = [
        *(repaired(before) or before),
        messages[reply],
        *(repaired(after, leading=False) or after),
    ]
    assert parts == repaired(messages)
