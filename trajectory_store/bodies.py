r"""A request body cut into the slices that repeat from call to call, and put together again.

The *envelope* is the body with two things taken out: what stands between the brackets of the
top-level `messages` array, and the value of the top-level `tools`. One control byte stands where
each was; a raw control byte cannot occur in JSON, so the place is unambiguous:

    \x00   the messages, joined as `separators` says, or by "," where it is None
    \x02   the messages, joined by ", " (and `separators` is None)
    \x01   the tools

`join()` gives back exactly the bytes that were cut. A body that cannot be cut like this is kept as
plain bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MESSAGES = b"\x00"
MESSAGES_SPACED = b"\x02"
TOOLS = b"\x01"


@dataclass(frozen=True, slots=True)
class RequestBody:
    """A received body in slices; make one with `from_parts`."""

    envelope: bytes
    messages: tuple[bytes, ...]
    """Raw bytes of each element of `messages`, without the white space around it."""
    separators: tuple[bytes, ...] | None = None
    """None where the envelope's placeholder says it all; else n + 1 pieces: before the first
    message, between each two (the comma included), after the last. One piece where n is 0."""
    tools: bytes | None = None
    """Raw bytes of the value of `tools`; None where the body has none."""

    @classmethod
    def from_parts(
        cls,
        envelope: bytes,
        messages: Sequence[bytes],
        separators: Sequence[bytes] | None = None,
        tools: bytes | None = None,
    ) -> RequestBody:
        """Return the body in its shortest form.

        Give the envelope with `MESSAGES` and `TOOLS` at the places cut, and all n + 1 separators
        as found (or None for plain commas). Raises `ValueError` where the placeholders don't fit.
        """
        places = envelope.count(MESSAGES) + envelope.count(MESSAGES_SPACED)
        if places > 1 or (places == 0 and messages):
            raise ValueError(f"an envelope has one place for messages, this has {places}")
        if envelope.count(TOOLS) != (tools is not None):
            raise ValueError("an envelope has one place for tools where there are any, else none")
        if separators is not None:
            pieces = tuple(separators)
            if len(pieces) != len(messages) + 1:
                raise ValueError(
                    f"{len(messages)} messages need n + 1 separators, not {len(pieces)}"
                )
            if not pieces[0] and not pieces[-1]:
                between = set(pieces[1:-1])
                if between <= {b","}:
                    separators = None
                elif between == {b", "}:
                    separators, envelope = (
                        None,
                        envelope.replace(MESSAGES, MESSAGES_SPACED),
                    )
        return cls(
            envelope,
            tuple(messages),
            None if separators is None else tuple(separators),
            tools,
        )

    def join(self) -> bytes:
        """Return the body as it was received, byte for byte."""
        place, between = MESSAGES, b","
        if MESSAGES_SPACED in self.envelope:
            place, between = MESSAGES_SPACED, b", "
        head, found, tail = self.envelope.partition(place)
        if not found:
            return self._with_tools(self.envelope)
        if self.separators is None:
            middle = [between.join(self.messages)]
        else:
            middle = [self.separators[0]]
            for message, after in zip(self.messages, self.separators[1:], strict=True):
                middle += (message, after)
        return b"".join([self._with_tools(head), *middle, self._with_tools(tail)])

    def _with_tools(self, piece: bytes) -> bytes:
        return piece if self.tools is None else piece.replace(TOOLS, self.tools, 1)
