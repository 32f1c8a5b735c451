"""Doubles that speak the real protocols, and the tiny model, for our tests and our users'.

It may use the proxy. Nothing but tests, benchmarks and demos may use it.
What is heavy (torch, transformers) is imported inside the functions that need it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .scripted_engine import ScriptedCall, ScriptedEngine
    from .scripted_marker import Marker, expected
    from .scripted_reply import Reply
    from .toy_tokenizer import ToyTokenizer

__all__ = ["Marker", "Reply", "ScriptedCall", "ScriptedEngine", "ToyTokenizer", "expected"]

_MODULES = {
    "Marker": "scripted_marker",
    "Reply": "scripted_reply",
    "ScriptedCall": "scripted_engine",
    "ScriptedEngine": "scripted_engine",
    "ToyTokenizer": "toy_tokenizer",
    "expected": "scripted_marker",
}


def __getattr__(name: str) -> Any:
    # On demand: `python -m ....scripted_engine` warns where its package has imported it before.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
