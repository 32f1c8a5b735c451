"""What can be wrong with bytes before anyone reads them as a dialect.

    WireError
    ├── BodyTooLarge      413: the body is over its limit, inflated or not
    ├── UnknownEncoding   415: a content encoding that we can't undo
    ├── BadBody           400: the bytes are not what the encoding says
    └── EventTooLarge     an event of a stream is over its limit

`status` is what a client is told where the bytes were its own.
"""

from typing import ClassVar

from ..errors import ProxyError


class WireError(ProxyError):
    """Base of the wire's errors; the message names the fault and holds none of the bytes."""

    status: ClassVar[int] = 400


class BodyTooLarge(WireError, ValueError):
    """The body is larger than its limit."""

    status = 413


class UnknownEncoding(WireError, ValueError):
    """The body is encoded in a way that is not supported."""

    status = 415


class BadBody(WireError, ValueError):
    """The body's bytes are damaged, cut, or not in the encoding that was named."""


class EventTooLarge(WireError, ValueError):
    """A stream sent an event without end."""
