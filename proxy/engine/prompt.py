"""A prompt as ids and as JSON text, both extended without being made anew.

Sending a prompt of 100,000 ids costs a copy of their JSON text, and checking the ids that come back
is a comparison of text: neither parses or formats what is already known.
"""

from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import orjson


def compact(value: Any) -> bytes:
    """Return a value as JSON text that may be kept.

    A copy: what orjson returns holds on to its whole buffer, 26 times the text of a long list.
    """
    return bytes(memoryview(orjson.dumps(value)))


def json_of(ids: "array[int]") -> bytes:
    """Return ids as a JSON list without spaces, as vLLM writes it."""
    return compact(ids.tolist())


class Prompt:
    """Token ids that a call reads (`array('I')`); immutable: `extended` makes another."""

    __slots__ = ("_json", "ids")

    def __init__(self, ids: "array[int] | Iterable[int]", json: bytes | None = None) -> None:
        self.ids: array[int] = ids if isinstance(ids, array) else array("I", ids)
        self._json = json

    def __len__(self) -> int:
        """Return the number of ids."""
        return len(self.ids)

    def __iter__(self) -> Iterator[int]:
        """Go through the ids."""
        return iter(self.ids)

    def __eq__(self, other: object) -> bool:
        """Whether the ids are the same."""
        return isinstance(other, Prompt) and self.ids == other.ids

    def __hash__(self) -> int:
        """Agree with equality."""
        return hash(self.ids.tobytes())

    def __repr__(self) -> str:
        """Name the length only: ids are a conversation's content."""
        return f"<Prompt of {len(self.ids)} ids>"

    @property
    def json(self) -> bytes:
        """The ids as JSON text, made once."""
        if self._json is None:
            self._json = json_of(self.ids)
        return self._json

    def extended(self, more: "array[int] | Iterable[int]") -> "Prompt":
        """Return this prompt with `more` behind it."""
        if not isinstance(more, array):
            more = array("I", more)
        text = self._json
        if text is not None and len(more):
            tail = json_of(more)
            text = text[:-1] + b"," + tail[1:] if len(self.ids) else tail
        return Prompt(self.ids + more, text)
