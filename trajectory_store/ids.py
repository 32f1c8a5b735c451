"""Names of stored things: 26 characters that sort by time and cannot be guessed from one another.

Two letters and an underscore say what is named; ten characters of Crockford's base 32 hold the
milliseconds since 1970, thirteen hold 65 random bits. The order of ids is a convenience for people:
the order of calls is their `seq`, which no clock can turn round.
"""

from __future__ import annotations

import os
import threading
import time
from typing import NewType

RunId = NewType("RunId", str)
RolloutId = NewType("RolloutId", str)
LaneId = NewType("LaneId", str)
CallId = NewType("CallId", str)

ID_LENGTH = 26
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def new_run_id() -> RunId:
    """Return a fresh `ru_...`."""
    return RunId(_new("ru_"))


def new_rollout_id() -> RolloutId:
    """Return a fresh `ro_...`."""
    return RolloutId(_new("ro_"))


def new_lane_id() -> LaneId:
    """Return a fresh `la_...`."""
    return LaneId(_new("la_"))


def new_call_id() -> CallId:
    """Return a fresh `ca_...`."""
    return CallId(_new("ca_"))


class _Randomness:
    """Random bytes from the OS, fetched many at a time.

    A system call lets other threads take the interpreter; one for each id was measured to cost a
    recording process more than anything else about ids.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool = b""
        self._pid = 0

    def bits65(self) -> int:
        with self._lock:
            if len(self._pool) < 9 or self._pid != os.getpid():
                self._pool, self._pid = os.urandom(4096), os.getpid()
            taken, self._pool = self._pool[:9], self._pool[9:]
        return int.from_bytes(taken, "little") >> 7


_random = _Randomness()


def _new(prefix: str) -> str:
    return prefix + _base32(time.time_ns() // 1_000_000, 10) + _base32(_random.bits65(), 13)


def _base32(value: int, length: int) -> str:
    digits: list[str] = []
    for _ in range(length):
        digits.append(_ALPHABET[value & 31])
        value >>= 5
    return "".join(reversed(digits))
