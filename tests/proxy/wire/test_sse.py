"""Event streams: framing, and that chunking means nothing."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from budwood.proxy.wire import Event, EventParser, EventTooLarge

STREAMS = sorted((Path(__file__).parents[2] / "fixtures" / "vllm").glob("*.sse"))


def parse(*pieces: bytes) -> list[Event]:
    parser = EventParser()
    return [event for piece in pieces for event in parser.feed(piece)] + parser.finish()


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_lines_may_end_in_lf_cr_or_crlf(end):
    stream = end.join([b"event: a", b"data: 1", b"data:2", b"data:  3", b"", b"data: 4", b"", b""])
    assert parse(stream) == [Event("a", b"1\n2\n 3"), Event(None, b"4")]


def test_a_crlf_split_over_two_reads_is_one_end():
    assert parse(b"data: 1\r", b"\ndata: 2\r", b"\n\r", b"\n") == [Event(None, b"1\n2")]


def test_other_line_separators_of_unicode_are_text():
    text = "a\u2028b\u2029c\x0bd\x85e".encode()
    assert parse(b"data: " + text + b"\n\n") == [Event(None, text)]


def test_a_character_split_over_two_reads_is_whole():
    text = "🙂".encode()
    assert parse(b"data: " + text[:2], text[2:] + b"\n\n") == [Event(None, text)]


def test_comments_are_dropped_and_make_no_event():
    assert parse(b": x\n\n:\n: k\ndata: 1\n: y\n\n: z\n\n") == [Event(None, b"1")]


def test_fields_that_mean_nothing_here_are_dropped():
    assert parse(b"id: 7\nretry: 10\nfoo\ndata: 1\n\nevent: a\n\ndata: 2\n\n") == [
        Event(None, b"1"),
        Event(None, b"2"),
    ]


def test_a_byte_order_mark_at_the_start_is_dropped():
    assert parse(b"\xef", b"\xbb", b"\xbfdata: 1\n\n") == [Event(None, b"1")]


def test_an_event_without_its_empty_line_comes_at_the_end():
    assert parse(b"data: 1\n\ndata: [DONE]") == [Event(None, b"1"), Event(None, b"[DONE]")]
    assert parse(b"data: 1\n\ndata: [DONE]\n") == [Event(None, b"1"), Event(None, b"[DONE]")]


def test_an_event_comes_with_the_read_that_ends_it():
    parser = EventParser()
    assert parser.feed(b"data: 1\n\ndata: 2\n") == [Event(None, b"1")]
    assert parser.feed(b"\n") == [Event(None, b"2")]
    assert parser.feed(b"data: 3\r\n\r") == [Event(None, b"3")]
    assert parser.feed(b"\n: k\n") == []
    assert parser.feed(b"data: 4\n\n") == [Event(None, b"4")]


@pytest.mark.parametrize("line", [b"data: ", b"xx"])
def test_an_event_without_end_is_refused(line):
    parser = EventParser(max_event_bytes=1000)
    piece = line + b"x" * 400 + (b"\n" if line == b"data: " else b"")
    assert parser.feed(piece) + parser.feed(piece) == []
    with pytest.raises(EventTooLarge):
        parser.feed(piece)


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.name)
def test_recorded_streams_of_vllm_are_the_same_cut_at_any_byte(path):
    stream = b"\n".join(
        line for line in path.read_bytes().split(b"\n") if not line.startswith(b"# ")
    )
    whole = parse(stream)
    assert len(whole) > 2
    assert parse(*(stream[i : i + 1] for i in range(len(stream)))) == whole
    for at in range(0, len(stream), 7):
        assert parse(stream[:at], stream[at:]) == whole


PIECES = st.sampled_from(
    [b"data: ", b"data:", b"data", b"event: ", b": ", b"\n", b"\r", b"\r\n", b"\n\n", b"x", b" ",
     b"{}", "é\u2028".encode(), b"\xef\xbb\xbf", b"data: {}\n\n"]
)  # fmt: skip


def by_the_standard(stream: bytes) -> list[Event]:
    """The standard's algorithm, line by line over the whole stream."""
    stream = stream.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    events: list[Event] = []
    event, data = None, []
    for line in [*stream.split(b"\n"), b""]:
        if not line:
            if data:
                events.append(Event(event, b"\n".join(data)))
            event, data = None, []
            continue
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
        elif name == b"event":
            event = value.removeprefix(b" ").decode() or None
    return events


@given(st.lists(PIECES, max_size=30), st.data())
@example([b"\r", b"\n", b"data: ", b"x", b"\n"], None)
def test_events_depend_neither_on_the_chunks_nor_on_the_way_through(pieces, data):
    stream = b"".join(pieces)
    expected = by_the_standard(stream)
    assert parse(stream) == expected
    assert parse(*pieces) == expected
    assert parse(*(stream[i : i + 1] for i in range(len(stream)))) == expected
    if data is not None:
        cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
        bounds = [0, *cuts, len(stream)]
        assert parse(*(stream[a:b] for a, b in pairwise(bounds))) == expected
