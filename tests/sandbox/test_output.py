"""What is kept of a command's output, and what errors keep when they travel."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budwood.sandbox import (
    Captured,
    Closed,
    Deadline,
    FileFailed,
    Frame,
    Limit,
    Lost,
    NoCapacity,
    Refused,
    SandboxError,
    Spool,
    StartFailed,
    Stream,
    Stuck,
)
from budwood.sandbox.output import Capture


@given(st.lists(st.binary(max_size=50)), st.integers(min_value=0, max_value=60))
def test_the_first_and_last_bytes_are_kept_and_the_rest_is_counted(pieces, keep_bytes):
    capture = Capture(keep_bytes)
    for piece in pieces:
        capture.add(piece)
    whole, kept = b"".join(pieces), capture.captured()
    assert whole.startswith(kept.head)
    assert whole.endswith(kept.tail)
    assert len(kept.head) + kept.n_dropped + len(kept.tail) == len(whole)
    assert len(kept.head) == min(keep_bytes, len(whole))
    assert len(kept.tail) == min(keep_bytes, len(whole) - len(kept.head))


def test_a_stream_with_a_gap_is_never_given_as_whole():
    assert Captured(b"ab", b"c", 0).data == b"abc"
    with pytest.raises(ValueError, match="7 bytes of the output were not kept"):
        _ = Captured(b"ab", b"c", 7).data
    assert Captured(b"a\xff", b"c", 7).text == "a\ufffd\n[… 7 bytes left out …]\nc"


def test_a_spool_stops_at_its_cap_and_counts_the_rest(tmp_path):
    with Spool(tmp_path / "new", cap_bytes=5) as spool:
        for data in (b"abc", b"def", b"ghi"):
            spool.add(Frame(Stream.STDOUT, data))
        spool.add(Frame(Stream.STDERR, b"x"))
    assert (tmp_path / "new/stdout").read_bytes() == b"abcde"
    assert (tmp_path / "new/stderr").read_bytes() == b"x"
    assert spool.n_dropped == {Stream.STDOUT: 4, Stream.STDERR: 0}


ERRORS = [
    Refused("local", ("one", "two")), NoCapacity("full", 3.0), StartFailed("why", Limit.PIDS),
    Lost("gone", Limit.MEMORY), Deadline("late"), Closed("shut"), Stuck("left"),
    FileFailed(2, "/x"),
]  # fmt: skip


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_comes_out_of_a_pickle_as_it_went_in(error):
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


def test_every_error_of_the_room_is_among_them():
    assert {type(error) for error in ERRORS} == set(SandboxError.__subclasses__())
