"""The heavy packages, behind one door with one error: nothing else here imports them unasked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from .errors import MissingExtra

MODULES = {"numpy", "torch", "transformers", "trl", "datasets", "accelerate", "tensorboard"}


def heavy(module: str) -> Any:
    """Return a module of this room that needs the extra `train`; raises `MissingExtra`."""
    with naming_the_extra():
        return import_module(f".{module}", __package__)


@contextmanager
def naming_the_extra() -> Iterator[None]:
    """Turn a missing package of the extra `train` into `MissingExtra`."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in MODULES:
            raise
        raise MissingExtra(
            f"training needs {error.name}, which is not installed: "
            "pip install 'budwood[train]' (in a checkout: pip install '.[train]')"
        ) from error
