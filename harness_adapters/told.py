"""What a harness is told of the model behind its endpoint."""

from __future__ import annotations

import re
from dataclasses import dataclass

CONTEXT_WINDOW = 131_072
"""Told where the engine does not say its own."""
MAX_OUTPUT = 16_384
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Told:
    """A model as harnesses know it; the fields of `Endpoint` of the same names."""

    model: str
    context_window: int
    """Tokens of prompt and answer together."""
    max_output: int
    """Most tokens of one answer."""


def told_of(served: str, max_model_len: int | None, *, model: str | None = None) -> Told:
    """Return what to tell of a served model.

    model: another name to tell; the proxy accepts any.
    max_model_len: the engine's own limit in tokens, None where it is not known.
    """
    window = max_model_len or CONTEXT_WINDOW
    return Told(model or told_name(served), window, min(MAX_OUTPUT, max(window // 4, 1)))


def told_name(served: str) -> str:
    """Return a model's name as harnesses take it: the last part, without odd characters.

    A path or a slash would be read as a provider by some.
    """
    return _UNSAFE.sub("-", served.rstrip("/").rpartition("/")[2]).strip("-") or "model"
