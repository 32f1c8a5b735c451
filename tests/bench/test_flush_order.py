"""The reading of system calls that proves the order of flush and answer."""

import pytest

from bench.flush_order import read_trace
from budwood.trajectory_store import new_call_id

CALL = str(new_call_id())
HELD = f'7  write(9</tmp/steps>, "{CALL} 4\\n", 31) = 31'
LOGGED = f'8  pwrite64(12</tmp/s.db-wal>, "\\0\\1{CALL}ro_01", 4096, 0) = 4096'
FLUSHED = "8  fdatasync(12</tmp/s.db-wal>) = 0"
FLUSH_BEGUN = "8  fdatasync(12</tmp/s.db-wal> <unfinished ...>"
FLUSH_DONE = "8  <... fdatasync resumed>) = 0"
SENT = f'7  sendto(14<socket:[5]>, "\\"id\\": \\"chatcmpl-{CALL}\\" data: [DONE]", 90, 0) = 90'


@pytest.mark.parametrize(
    "lines",
    [
        [HELD, LOGGED, FLUSHED, SENT],
        [HELD, LOGGED, FLUSH_BEGUN, FLUSH_DONE, SENT],
    ],
)
def test_a_flush_that_returned_before_the_end_was_sent_is_in_order(lines):
    order = read_trace(lines)
    assert list(order.sent) == [CALL]
    assert order.broken() == []


@pytest.mark.parametrize(
    "lines",
    [
        [HELD, LOGGED, SENT, FLUSHED],
        [HELD, LOGGED, FLUSH_BEGUN, SENT, FLUSH_DONE],
        [HELD, FLUSHED, LOGGED, SENT],
        [LOGGED, FLUSHED, HELD, SENT],
        [HELD, LOGGED, SENT],
        [HELD, SENT],
    ],
)
def test_an_end_that_was_sent_before_the_flush_returned_is_found(lines):
    assert len(read_trace(lines).broken()) == 1
