r"""Events out of the bytes of an event stream (WHATWG HTML, 9.2.6), however the bytes are cut.

Lines end in LF, CR or CRLF, and in nothing else: U+2028 and its kind are ordinary text, which is
why the bytes are never decoded here. Comments are dropped. An event is what stands before an
empty line and has at least one `data` line.

Two ways through: whole events between `\n\n` are cut out at once (what vLLM sends); any CR, and
any block that is not one single `data: ` line, goes line by line. Both keep what is unfinished.
"""

import re
from typing import NamedTuple

from .errors import EventTooLarge

MAX_EVENT_BYTES = 2**26
"""An event longer than this is taken for a broken stream."""

_LINE_END = re.compile(rb"\r\n|\r|\n")


class Event(NamedTuple):
    """One event; `data` are the bytes of its data lines, joined by LF."""

    event: str | None
    data: bytes


class EventParser:
    """Takes bytes as they come and gives the events that they complete."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        """A parser at the start of a stream; longer events raise `EventTooLarge`."""
        self._max = max_event_bytes
        self._rest = b""
        """Bytes after the last line that was taken; without CR."""
        self._is_plain = False
        """Whether the stream has begun and nothing is left over from what came before."""
        self._has_begun = False
        self._skips_lf = False
        self._event: str | None = None
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that end within `data`, in order."""
        if self._is_plain and data.endswith(b"\n\n") and data.startswith(b"data: "):
            # The usual case: one or more whole events, nothing left from before.
            blocks = data[6:-2].split(b"\n\ndata: ")
            if b"\r" not in data and data.count(b"\n") == 2 * len(blocks):
                return [Event(None, block) for block in blocks]
        if not data:
            return []
        events = self._feed(data)
        self._is_plain = not (self._rest or self._skips_lf or self._data or self._event)
        return events

    def _feed(self, data: bytes) -> list[Event]:
        if self._skips_lf:
            self._skips_lf = False
            if data[0] == 10:
                data = data[1:]
        if self._rest:
            data = self._rest + data
        if not self._has_begun:
            if len(data) < 3 and b"\xef\xbb\xbf".startswith(data):
                self._rest = data
                return []
            self._has_begun = True
            data = data.removeprefix(b"\xef\xbb\xbf")
        events = self._lines(data) if b"\r" in data else self._blocks(data)
        if len(self._rest) > self._max or (self._data and self._size() > self._max):
            raise EventTooLarge(f"An event of the stream is larger than {self._max} bytes.")
        return events

    def _size(self) -> int:
        return sum(map(len, self._data))

    def finish(self) -> list[Event]:
        """Return the event that the stream ended in, if any: it lacks its empty line.

        A cut stream may end in half an event, so a reader that can't parse this one should call
        the stream cut.
        """
        rest, self._rest = self._rest, b""
        events: list[Event] = []
        if rest:
            self._line(rest, events)
        self._line(b"", events)
        return events

    def _blocks(self, data: bytes) -> list[Event]:
        events: list[Event] = []
        if self._data or self._event is not None:
            # In the middle of an event: its lines up to the first empty one.
            end = data.find(b"\n\n")
            if not data.startswith(b"\n") and end < 0:
                return self._lines(data)
            cut = 1 if data.startswith(b"\n") else end + 2
            events = self._lines(data[:cut])
            data = data[cut:]
        *blocks, rest = data.split(b"\n\n")
        for block in blocks:
            if block.startswith(b"data: ") and b"\n" not in block:
                events.append(Event(None, block[6:]))
            else:
                for line in block.split(b"\n"):
                    self._line(line, events)
                self._line(b"", events)
        self._rest = b""
        if b"\n" in rest:
            events += self._lines(rest)
        else:
            self._rest = rest
        return events

    def _lines(self, data: bytes) -> list[Event]:
        events: list[Event] = []
        *lines, self._rest = _LINE_END.split(data)
        for line in lines:
            self._line(line, events)
        self._skips_lf = data.endswith(b"\r")
        return events

    def _line(self, line: bytes, events: list[Event]) -> None:
        if not line:
            if self._data:
                events.append(Event(self._event, b"\n".join(self._data)))
                self._data = []
            self._event = None
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        elif name == b"event":
            self._event = value.removeprefix(b" ").decode("utf-8", "replace") or None
