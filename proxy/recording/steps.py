"""The steps of one call, in the order that durability rests on (`proxy.md` 8).

An observer may be told of each step of each call (crash tests record where a kill fell); without
one a step costs nothing.
"""

from collections.abc import Callable
from enum import IntEnum

from budwood.trajectory_store import CallId


class Step(IntEnum):
    """Where a call stands. A call is acknowledged from `TERMINAL_SENT` on."""

    INTENT = 1
    UPSTREAM_OPEN = 2
    RELAYING = 3
    TERMINAL_HELD = 4
    COMMITTED = 5
    TERMINAL_SENT = 6
    DELIVERED = 7


Observer = Callable[[CallId, Step], None]
