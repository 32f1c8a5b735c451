"""The received body cut into the slices that repeat from call to call, without losing a byte.

Only the top level is read here: its members, and the elements of `messages`. Values are stepped
over by their quotes and brackets, so what is inside may be anything; each slice is parsed on its
own later, and if all of them parse, the whole body is JSON.

A growing conversation costs its new bytes only: where the array of messages begins with bytes
that an earlier cut has already stepped over, stepping starts behind them, and the same `tools`
are recognised by comparison.
"""

import json
import re
from bisect import bisect_right
from dataclasses import dataclass, field

from budwood.trajectory_store.bodies import MESSAGES, MESSAGES_SPACED, TOOLS, RequestBody

_SPACE = re.compile(rb"[ \t\n\r]*+")
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_SCALAR = re.compile(rb'[^\s,\[\]{}":]++')
_NEXT = re.compile(
    rb'[^"\[\]{}]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^"\[\]{}]*+)*+([\[\]{}])', re.DOTALL
)
_PLACES = re.compile(b"[" + MESSAGES + TOOLS + MESSAGES_SPACED + b"]")


class NotCut(ValueError):
    """The body is not a JSON object; `at` is the byte where that showed."""

    def __init__(self, message: str, at: int) -> None:
        """Say what was expected at which byte."""
        super().__init__(f"{message} at byte {at}")
        self.at = at


@dataclass(frozen=True, slots=True)
class Cut:
    """A body in slices, and where they were."""

    body: RequestBody
    members: dict[str, bytes]
    """Raw values of all top-level members but `messages` and `tools`, in order."""
    has_messages: bool
    """Whether there is a member `messages` that is an array (else it is in `members`)."""
    start: int
    """Byte after the bracket that opens `messages`."""
    ends: tuple[int, ...]
    """Byte after each message, counted from `start`."""
    n_kept: int = field(compare=False)
    """How many messages are the very bytes of those of the earlier cut."""


def cut(raw: bytes, earlier: Cut | None = None, earlier_raw: bytes = b"") -> Cut:
    """Cut a body that is a JSON object; raises `NotCut` where its top level is not one.

    `earlier` is a cut of `earlier_raw`, an earlier body of the same conversation.
    """
    return _Cutter(raw, earlier, earlier_raw).cut()


class _Cutter:
    def __init__(self, raw: bytes, earlier: Cut | None, earlier_raw: bytes) -> None:
        self.raw = raw
        self.earlier = earlier
        self.earlier_raw = earlier_raw
        self.envelope: list[bytes] = []
        self.copied = 0
        self.members: dict[str, bytes] = {}
        self.keys: set[str] = set()
        self.messages: list[bytes] = []
        self.separators: list[bytes] = []
        self.tools: bytes | None = None
        self.has_messages = False
        self.start = 0
        self.ends: list[int] = []
        self.n_kept = 0

    def cut(self) -> Cut:
        at = self.expect(b"{", self.space(0))
        at = self.space(at)
        if self.raw[at : at + 1] == b"}":
            at += 1
        else:
            at = self.walk_members(at)
        if self.space(at) != len(self.raw):
            raise NotCut("expected nothing more", at)
        self.keep_envelope(len(self.raw))
        return Cut(
            RequestBody.from_parts(
                b"".join(self.envelope),
                self.messages,
                self.separators if self.has_messages else None,
                self.tools,
            ),
            self.members,
            self.has_messages,
            self.start,
            tuple(self.ends),
            self.n_kept,
        )

    def walk_members(self, at: int) -> int:
        while True:
            key, at = self.key(at)
            at = self.space(self.expect(b":", self.space(at)))
            at = self.member(key, at)
            at = self.space(at)
            if self.raw[at : at + 1] == b"}":
                return at + 1
            at = self.space(self.expect(b",", at))

    def key(self, at: int) -> tuple[str, int]:
        found = _STRING.match(self.raw, at)
        if found is None:
            raise NotCut("expected a key in quotes", at)
        try:
            key = json.loads(found[0].decode("utf-8", "surrogatepass"))
        except ValueError:
            raise NotCut("expected a key that is text", at) from None
        if key in self.keys:
            raise NotCut("a key occurs twice", at)
        self.keys.add(key)
        return key, found.end()

    def member(self, key: str, at: int) -> int:
        if key == "messages" and self.raw[at : at + 1] == b"[":
            self.place(at + 1, MESSAGES)
            self.has_messages, self.start = True, at + 1
            self.copied = end = self.walk_messages(at + 1)
            return end + 1
        end = self.tools_end(at) if key == "tools" else None
        if end is None:
            end = self.value_end(at)
        if key == "tools":
            self.place(at, TOOLS)
            self.tools = self.raw[at:end]
            if self.earlier is not None and self.earlier.body.tools == self.tools:
                self.tools = self.earlier.body.tools
            self.copied = end
        else:
            self.members[key] = self.raw[at:end]
        return end

    def place(self, at: int, mark: bytes) -> None:
        self.keep_envelope(at)
        self.envelope.append(mark)

    def keep_envelope(self, end: int) -> None:
        piece = self.raw[self.copied : end]
        if _PLACES.search(piece):
            raise NotCut("found a control byte somewhere behind", self.copied)
        self.envelope.append(piece)

    def tools_end(self, at: int) -> int | None:
        known = self.earlier.body.tools if self.earlier is not None else None
        if known is None or known[:1] != b"[" or not self.raw.startswith(known, at):
            return None
        return at + len(known)

    def walk_messages(self, start: int) -> int:
        """Cut the elements; return where the closing bracket is."""
        raw = self.raw
        at = self.keep(start)
        before = at
        at = self.space(at)
        if raw[at : at + 1] == b"]" and not self.messages:
            self.separators.append(raw[before:at])
            return at
        if self.messages:
            if raw[at : at + 1] == b"]":
                self.separators.append(raw[before:at])
                return at
            at = self.space(self.expect(b",", at))
        while True:
            self.separators.append(raw[before:at])
            before = self.value_end(at)
            self.messages.append(raw[at:before])
            self.ends.append(before - start)
            at = self.space(before)
            if raw[at : at + 1] == b"]":
                self.separators.append(raw[before:at])
                return at
            at = self.space(self.expect(b",", at))

    def keep(self, start: int) -> int:
        """Take over the messages that are the same bytes as before; return where they end."""
        earlier = self.earlier
        if earlier is None or not earlier.ends:
            return start
        old = self.earlier_raw[earlier.start : earlier.start + earlier.ends[-1]]
        if self.raw.startswith(old, start):
            n = len(earlier.ends)
        else:
            shared = common_length(old, self.raw[start : start + len(old)])
            n = bisect_right(earlier.ends, shared)
        # A number or a word may go on behind its old end; anything in brackets or quotes can't.
        if n and earlier.body.messages[n - 1][:1] not in (b"{", b"[", b'"'):
            n -= 1
        if not n:
            return start
        self.n_kept = n
        self.messages += earlier.body.messages[:n]
        self.ends += earlier.ends[:n]
        self.separators += _separators(earlier.body)[:n]
        return start + earlier.ends[n - 1]

    def value_end(self, at: int) -> int:
        raw = self.raw
        first = raw[at : at + 1]
        if first == b'"':
            found = _STRING.match(raw, at)
        elif first in (b"{", b"["):
            return self.container_end(at)
        else:
            found = _SCALAR.match(raw, at)
        if found is None:
            raise NotCut("expected a value", at)
        return found.end()

    def container_end(self, at: int) -> int:
        raw, depth, here = self.raw, 0, at
        while found := _NEXT.match(raw, here):
            here = found.end()
            depth += 1 if found[1] in b"[{" else -1
            if not depth:
                return here
        raise NotCut("expected the end of a value that begins", at)

    def space(self, at: int) -> int:
        found = _SPACE.match(self.raw, at)
        return found.end() if found else at

    def expect(self, mark: bytes, at: int) -> int:
        if self.raw[at : at + 1] != mark:
            raise NotCut(f"expected '{mark.decode()}'", at)
        return at + 1


def _separators(body: RequestBody) -> tuple[bytes, ...]:
    if body.separators is not None:
        return body.separators
    between = b", " if MESSAGES_SPACED in body.envelope else b","
    return (b"", *[between] * (len(body.messages) - 1), b"")


def common_length(a: bytes, b: bytes) -> int:
    """How many leading bytes two strings share, by comparing halves."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        # Slices are compared by memcmp; memory views would be compared byte by byte.
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
