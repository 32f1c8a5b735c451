"""Markers: a request's own text says what the scripted engine answers, and which fault it shows.

    [[stub seed=7 chunks=300 tpc=1 delay=5 first=20 fault=drop@100]]

| key | meaning | default |
|---|---|---|
| seed | which token sequence | 0 |
| chunks, tpc | events that carry tokens (streamed), tokens in each | 300, 1 |
| delay, first | milliseconds between events, before the first byte | 0 |
| fault | one of `scripted_faults.FAULTS` | none |

A marker travels inside the text of a message or of a prompt, so it survives a proxy that rewrites
headers, model, sampling and messages. The last one wins: earlier ones stay in the history.
`expected` says what an answer holds, so that a client, a store or an export can be checked token by
token.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from .scripted_reply import Sampled, logprob_at, noise
from .toy_tokenizer import ToyTokenizer

_MARK = re.compile(rb"\[\[stub([^\[\]]*)\]\]")


@dataclass(frozen=True, slots=True)
class Marker:
    """What one marker asks for."""

    seed: int = 0
    chunks: int = 300
    tpc: int = 1
    delay: float = 0.0
    first: float = 0.0
    fault: str = ""

    def __str__(self) -> str:
        """Return the marker as text to put into a message."""
        fault = f" fault={self.fault}" if self.fault else ""
        times = f" delay={self.delay:g} first={self.first:g}" if self.delay or self.first else ""
        return f"[[stub seed={self.seed} chunks={self.chunks} tpc={self.tpc}{times}{fault}]]"


def find_marker(text: bytes) -> Marker | None:
    """Return the last marker in `text`; unknown keys are ignored."""
    found = _MARK.findall(text)
    return _parsed(found[-1]) if found else None


@lru_cache(maxsize=4096)
def _parsed(inside: bytes) -> Marker:
    values: dict[str, int | float | str] = {}
    for part in inside.decode("ascii", "replace").split():
        key, _, value = part.partition("=")
        if key in ("delay", "first"):
            values[key] = float(value)
        elif key == "fault":
            values[key] = value
        elif key in ("seed", "chunks", "tpc"):
            values[key] = int(value)
    return Marker(**values)  # pyright: ignore[reportArgumentType]


_TOKENIZER = ToyTokenizer()


@lru_cache(maxsize=4096)
def marker_sample(seed: int, n_tokens: int) -> Sampled:
    """Return the tokens of a marker's answer; the last one is the end token."""
    choices = _TOKENIZER.printable_ids
    out = Sampled()
    for index in range(n_tokens - 1):
        number = choices[noise(seed, index) % len(choices)]
        piece = _TOKENIZER.piece(number)
        out.ids.append(number)
        out.pieces.append(piece)
        out.deltas.append({"content": piece.decode()})
    out.ids.append(_TOKENIZER.end_id)
    out.pieces.append(_TOKENIZER.piece(_TOKENIZER.end_id))
    out.deltas.append({})
    out.logprobs = [logprob_at(seed, index) for index in range(n_tokens)]
    return out


def expected(
    seed: int = 0, chunks: int = 300, tpc: int = 1
) -> dict[str, list[int] | list[float] | str]:
    """Return `token_ids`, `logprobs` and `text` of the answer to such a marker."""
    sampled = marker_sample(seed, chunks * tpc)
    text = "".join(delta.get("content", "") for delta in sampled.deltas)
    return {"token_ids": sampled.ids, "logprobs": sampled.logprobs, "text": text}
