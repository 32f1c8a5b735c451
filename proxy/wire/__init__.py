"""Bytes of the wire: compressed bodies and event streams, as pure functions and small machines.

It may use the room's errors. It never knows dialects, tokens, sockets or clocks.
"""

from .body import inflate
from .errors import BadBody, BodyTooLarge, EventTooLarge, UnknownEncoding, WireError
from .sse import Event, EventParser

__all__ = [
    "BadBody",
    "BodyTooLarge",
    "Event",
    "EventParser",
    "EventTooLarge",
    "UnknownEncoding",
    "WireError",
    "inflate",
]
