"""Replay: which stored answer belongs to a request that a harness makes again, and the verdict.

Plain values only; the server that speaks to the harness is `budwood.proxy.replay`. Requests are
matched by content, not by order, so lanes that ran side by side may come in any order:

    request ──equal to a recorded one that was not served yet──▶ its answer
            ──equal only to one that failed or was cut──▶ that failure again
            ──none is equal──▶ the recorded one it is nearest to, and the first difference

A call that failed or was cut need not be made again. Nothing volatile is forgiven: what differs
from run to run (a time, a temporary path) is named by `ignore`.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from .difference import (
    Difference,
    canonical,
    first_difference,
    n_common,
    present,
    value_difference,
)
from .ids import CallId

IGNORED = "<ignored>"
"""What stands in both texts where `ignore` matched."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request in canonical form, as far as the model is concerned."""

    messages: tuple[dict[str, Any], ...]
    tools: Any = None
    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    """Other top-level fields that change what is sampled."""


class Kind(Enum):
    """What a recorded call ended in."""

    ANSWERED = "answered"
    CUT = "cut"
    """The harness left; what had come by then is the reply."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call as it was recorded, with what was answered."""

    id: CallId
    lane: str
    """For people: `main`, `sub-agent 2`."""
    request: Request
    kind: Kind
    reply: dict[str, Any] | None = None
    finish: str | None = None
    usage: dict[str, Any] | None = None
    created: int = 0
    """Unix seconds of the recorded answer."""
    cause: str | None = None


class Verdict(Enum):
    """What a replay showed; the value is the exit code of `budwood replay`."""

    IDENTICAL = 0
    DIFFERS = 1
    FEWER_OR_MORE = 3


@dataclass(frozen=True, slots=True)
class Divergence:
    """A request for which nothing was recorded."""

    nearest: RecordedCall | None
    """None where every recorded call had been served already: one call too many."""
    number: int | None
    """The nearest call's place in the recording, from 1."""
    difference: Difference | None

    def __str__(self) -> str:
        """Return the message for people."""
        if self.nearest is None:
            return "the harness made a call more than was recorded"
        return f"call {self.number} ({self.nearest.id}, {self.nearest.lane}): {self.difference}"


class Replay:
    """One recording being played once; feed it requests, then ask for the verdict."""

    def __init__(
        self, calls: Sequence[RecordedCall], *, ignore: Iterable[re.Pattern[str]] = ()
    ) -> None:
        """Play these calls, given in the order in which they were recorded."""
        self.calls = tuple(calls)
        self.divergences: list[Divergence] = []
        self.n_requests = 0
        self._ignore = tuple(ignore)
        self._requests = [self._cleaned(call.request) for call in self.calls]
        self._waiting: dict[bytes, deque[int]] = defaultdict(deque)
        self._failures: dict[bytes, int] = {}
        self._served: set[int] = set()
        for index, call in enumerate(self.calls):
            key = _key(self._requests[index])
            if call.kind is Kind.ANSWERED:
                self._waiting[key].append(index)
            else:
                self._failures.setdefault(key, index)

    @property
    def n_expected(self) -> int:
        """How many calls the harness has to make."""
        return sum(call.kind is Kind.ANSWERED for call in self.calls)

    @property
    def n_served(self) -> int:
        """How many of them it has made."""
        return len(self._served)

    @property
    def is_over(self) -> bool:
        """True where nothing can change the verdict for the better."""
        return bool(self.divergences) or self.n_served == self.n_expected

    def take(self, request: Request) -> RecordedCall | Divergence:
        """Return the recorded call that answers this request, or how it differs from all."""
        self.n_requests += 1
        cleaned = self._cleaned(request)
        key = _key(cleaned)
        if self._waiting[key]:
            index = self._waiting[key].popleft()
            self._served.add(index)
            return self.calls[index]
        if key in self._failures:
            return self.calls[self._failures[key]]
        divergence = self._nearest(cleaned)
        self.divergences.append(divergence)
        return divergence

    def missing(self) -> list[tuple[int, RecordedCall]]:
        """Return the answered calls that were not made again, with their places from 1."""
        return [
            (index + 1, call)
            for index, call in enumerate(self.calls)
            if call.kind is Kind.ANSWERED and index not in self._served
        ]

    def verdict(self) -> tuple[Verdict, str]:
        """Return the verdict as things stand, and a sentence that gives the reason."""
        if self.divergences:
            first = self.divergences[0]
            kind = Verdict.FEWER_OR_MORE if first.nearest is None else Verdict.DIFFERS
            return kind, str(first)
        missing = self.missing()
        if missing:
            number, call = missing[0]
            return Verdict.FEWER_OR_MORE, (
                f"the harness made {self.n_served} of {self.n_expected} recorded calls; "
                f"the first that is missing is call {number} ({call.id}, {call.lane})"
            )
        return Verdict.IDENTICAL, f"identical: {self.n_served} calls, each as recorded"

    def _nearest(self, request: Request) -> Divergence:
        open_calls = [
            index
            for index, call in enumerate(self.calls)
            if call.kind is Kind.ANSWERED and index not in self._served
        ]
        if not open_calls:
            return Divergence(None, None, None)
        best = max(
            open_calls,
            key=lambda index: (
                n_common(self._requests[index].messages, request.messages),
                -index,
            ),
        )
        difference = _difference(self._requests[best], request)
        return Divergence(self.calls[best], best + 1, difference)

    def _cleaned(self, request: Request) -> Request:
        if not self._ignore:
            return request
        return Request(
            tuple(self._without(message) for message in request.messages),
            self._without(request.tools),
            self._without(request.fields),
        )

    def _without(self, value: Any) -> Any:
        if isinstance(value, str):
            for pattern in self._ignore:
                value = pattern.sub(IGNORED, value)
            return value
        if isinstance(value, dict):
            return {name: self._without(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._without(item) for item in value]
        return value


def _difference(old: Request, new: Request) -> Difference | None:
    found = first_difference(old.messages, new.messages)
    if found is None:
        found = value_difference("tools", old.tools, new.tools)
    if found is None:
        found = value_difference("a field beside the messages", old.fields, new.fields)
    return found


def _key(request: Request) -> bytes:
    parts = [*map(canonical, map(present, request.messages)), canonical(request.tools)]
    text = "\n".join([*parts, canonical(request.fields)])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
