"""Cutting a body into slices: byte for byte, whatever its spelling, and again for its new bytes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budwood.proxy.call import NotCut, cut

SPACE = st.text(" \t\n\r", max_size=3).map(str.encode)
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, width=32) | TEXT
VALUE = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)
)
KEYS = st.lists(
    st.sampled_from(["messages", "tools", "model", "stream", "Messages", 'a"\\', "[", "é"]),
    unique=True,
    max_size=6,
)


@st.composite
def spelt(draw, value) -> bytes:
    """A value as JSON in any spacing and escaping."""
    if isinstance(value, dict):
        parts = [
            draw(SPACE) + draw(spelt_text(key)) + draw(SPACE) + b":" + draw(SPACE)
            + draw(spelt(inner)) + draw(SPACE)
            for key, inner in value.items()
        ]  # fmt: skip
        return b"{" + (b",".join(parts) or draw(SPACE)) + b"}"
    if isinstance(value, list):
        parts = [draw(SPACE) + draw(spelt(inner)) + draw(SPACE) for inner in value]
        return b"[" + (b",".join(parts) or draw(SPACE)) + b"]"
    if isinstance(value, str):
        return draw(spelt_text(value))
    return json.dumps(value).encode()


@st.composite
def spelt_text(draw, text: str) -> bytes:
    if draw(st.booleans()):
        return json.dumps(text, ensure_ascii=draw(st.booleans())).encode()
    units = text.encode("utf-16-be")
    return b'"%s"' % b"".join(
        b"\\u%04x" % int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2)
    )


@st.composite
def bodies(draw) -> tuple[dict, bytes]:
    value = {key: draw(VALUE) for key in draw(KEYS)}
    if draw(st.booleans()):
        value["messages"] = draw(st.lists(VALUE, max_size=4))
    return value, draw(SPACE) + draw(spelt(value)) + draw(SPACE)


def values(found) -> dict:
    members = {key: json.loads(raw) for key, raw in found.members.items()}
    if found.has_messages:
        members["messages"] = [json.loads(raw) for raw in found.body.messages]
    if found.body.tools is not None:
        members["tools"] = json.loads(found.body.tools)
    return members


@given(bodies())
def test_slices_hold_every_value_and_join_to_the_very_bytes(body):
    value, raw = body
    found = cut(raw)
    assert found.body.join() == raw
    assert values(found) == value
    for end, message in zip(found.ends, found.body.messages, strict=True):
        assert raw[found.start : found.start + end].endswith(message)


@given(bodies(), bodies(), st.data())
def test_an_earlier_cut_changes_nothing_but_the_work(first, second, data):
    old, new = first[1], second[1]
    if data.draw(st.booleans()):
        value = dict(second[0])
        value["messages"] = data.draw(st.lists(VALUE, max_size=3))
        style = data.draw(st.sampled_from([(",", ":"), (", ", ": ")]))
        old = json.dumps(value, separators=style).encode()
        value["messages"] = value["messages"] + data.draw(st.lists(VALUE, max_size=3))
        new = json.dumps(value, separators=style).encode()
    assert cut(new, cut(old), old) == cut(new)
    assert cut(new, cut(old), old).body.join() == new


def test_messages_and_tools_that_are_the_same_bytes_are_the_same_objects():
    old = b'{"tools": [{"a": "]"}], "x": 1, "messages": [{"n": 1}, {"n": 2}]}'
    new = b'{"tools": [{"a": "]"}], "y": 12, "messages": [{"n": 1}, {"n": 3}, {"n": 4}]}'
    before = cut(old)
    after = cut(new, before, old)
    assert after.n_kept == 1
    assert after.body.messages[0] is before.body.messages[0]
    assert after.body.tools is before.body.tools
    assert after.body.join() == new


@pytest.mark.parametrize(
    ("raw", "separators"),
    [
        (b'{"messages":[{},{}]}', None),
        (b'{"messages": [{}, {}]}', None),
        (b'{"messages":[]}', None),
        (b'{"messages":[{} ,{}]}', (b"", b" ,", b"")),
        (b'{"messages":[ ]}', (b" ",)),
    ],
)
def test_usual_separators_cost_nothing(raw, separators):
    body = cut(raw).body
    assert body.separators == separators
    assert body.join() == raw


def test_messages_under_an_escaped_key_are_found():
    found = cut(rb'{"\u006dessages":[{}],"to\u006fls":[]}')
    assert found.body.messages == (b"{}",)
    assert found.body.tools == b"[]"


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"null", b"[]", b'"a"', b"{", b'{"a"}', b'{"a":}', b'{"a":1,}', b'{"a":1 "b":2}',
        b'{"a":1}x', b'{a:1}', b'{"messages":[}', b'{"messages":[{]}', b'{"messages":[{}',
        b'{"a":"', b'{"messages":[{},]}', b'{"messages":[,{}]}', b'{"a":1,"a":2}',
        b'{"a":1,"\\u0061":2}',
        b'{"messages":[],"messages":[]}', b'{"a":"\x00"}', b'{"a\x01":1}',
        b'{"\\q":1}', b'{"\xff":1}',
    ],
)  # fmt: skip
def test_what_is_no_object_is_refused(raw):
    with pytest.raises(NotCut):
        cut(raw)


def test_deep_values_cost_no_stack():
    raw = b'{"messages":[' + b"[" * 100_000 + b"]" * 100_000 + b"]}"
    assert cut(raw).body.join() == raw
