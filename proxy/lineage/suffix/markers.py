"""Numbered markers: short runs of plain words that can be found again in token ids.

A marker is `naïve zebra tulip <digit> <digit> <digit> meadow`, each digit one of sixteen words.
Tokenizers split (or at least break) at the spaces between plain words, so the ids of the inner
words are the same wherever the marker stands; those of the first and the last word may merge with
a neighbour and are not looked at. The ids of every inner word are learned once per engine by
tokenising growing runs of words; afterwards a marker is found and its number read without any
decoding.

Tokenizers without word boundaries, which merge characters in pairs from the left, are served too:
the first word holds a letter outside ASCII, on which they fall in step again, and every inner word
has an even length with its space. Learning ends with a trial in several surroundings; a tokenizer
that fails it has no markers (`MarkersUnstable`), and nothing is spliced for it.
"""

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

FIRST = "na\u00efve"
HEAD = ("zebra", "tulip")
DIGITS = (
    "amber", "brick", "cedar", "delta", "eagle", "flute", "grape", "hotel",
    "ivory", "jelly", "koala", "lemon", "mango", "olive", "piano", "river",
)  # fmt: skip
GUARD = "meadow"
N_DIGITS = 3
N_MARKERS = len(DIGITS) ** N_DIGITS
END = 0
"""The number of the marker that closes the reply; those of texts count from 1."""
IN_TOOLS = N_MARKERS - 1
"""The number of the marker in the tool list."""

_SURROUNDINGS = (("", ""), ("\n", "\n"), ('{"x": "', '"}'), (">", "<"), ("ab", "cd"), ("7. ", "!"))
_TRIED = (END, 1, 0x123, 0x89A, N_MARKERS - 1)

Tokenize = Callable[[str], Awaitable["array[int]"]]


class MarkersUnstable(RuntimeError):
    """This tokenizer gives the same words other ids in other surroundings."""


class Found(NamedTuple):
    """A marker in ids: its number, where its inner ids start, and the position after them."""

    number: int
    start: int
    end: int


def marker_text(number: int) -> str:
    """The words of marker `number`; raises ValueError past the last one."""
    if not 0 <= number < N_MARKERS:
        raise ValueError(f"no marker {number}: there are {N_MARKERS}")
    digits = (DIGITS[number >> 4 * place & 15] for place in reversed(range(N_DIGITS)))
    return " ".join((FIRST, *HEAD, *digits, GUARD))


class Markers:
    """The markers of one tokenizer, by their ids."""

    def __init__(self, head: "array[int]", digits: tuple["array[int]", ...]) -> None:
        """Markers whose inner words have these ids (use `learn`)."""
        self._head = head
        self._head_bytes = head.tobytes()
        self._width = head.itemsize
        self._digits: dict[int, list[tuple[int, array[int]]]] = {}
        for value, ids in enumerate(digits):
            self._digits.setdefault(ids[0], []).append((value, ids))
        for candidates in self._digits.values():
            candidates.sort(key=lambda candidate: -len(candidate[1]))

    @classmethod
    async def learn(cls, tokenize: Tokenize) -> "Markers":
        """The markers of the tokenizer behind `tokenize`, tried out in several surroundings."""
        words = (FIRST, *HEAD, *DIGITS, GUARD)
        runs = [" ".join(words[: n + 1]) for n in range(len(words))]
        ids = await asyncio.gather(*map(tokenize, runs))
        for shorter, longer in pairwise(ids):
            if len(shorter) >= len(longer) or longer[: len(shorter)] != shorter:
                raise MarkersUnstable("words of a run don't keep their ids when the run grows")
        n_head = len(HEAD)
        inner = [longer[len(shorter) :] for shorter, longer in pairwise(ids)]
        head = ids[n_head][len(ids[0]) :]
        markers = cls(head, tuple(inner[n_head : n_head + len(DIGITS)]))
        await markers._try_out(tokenize)
        return markers

    async def _try_out(self, tokenize: Tokenize) -> None:
        trials = [(n, a + marker_text(n) + b) for n in _TRIED for a, b in _SURROUNDINGS]
        seen = await asyncio.gather(*(tokenize(text) for _, text in trials))
        for (number, text), ids in zip(trials, seen, strict=True):
            if [found.number for found in self.find(ids)] != [number]:
                raise MarkersUnstable(f"marker {number} is not found in the ids of {text!r}")

    def find(self, ids: "array[int]") -> list[Found]:
        """All whole markers in `ids`, in order."""
        return list(self._scan(ids))

    def touch(self, ids: "array[int]") -> bool:
        """Whether even the start of a marker stands in `ids`."""
        return next(self._heads(ids), None) is not None

    def _scan(self, ids: "array[int]") -> Iterator[Found]:
        for start in self._heads(ids):
            number, at = 0, start + len(self._head)
            for _ in range(N_DIGITS):
                digit = self._digit(ids, at)
                if digit is None:
                    break
                number, at = number * 16 + digit[0], at + len(digit[1])
            else:
                yield Found(number, start, at)

    def _digit(self, ids: "array[int]", at: int) -> "tuple[int, array[int]] | None":
        if at >= len(ids):
            return None
        for value, word in self._digits.get(ids[at], ()):
            if ids[at : at + len(word)] == word:
                return value, word
        return None

    def _heads(self, ids: "array[int]") -> Iterator[int]:
        raw, at = ids.tobytes(), 0
        while (at := raw.find(self._head_bytes, at)) >= 0:
            if at % self._width == 0:
                yield at // self._width
            at += 1
