"""The engine as lineage's renderer: refusals of a template become `RenderRejected`.

What was rendered a moment ago is not asked for again: the attempts of one task begin with the same
messages, and a group of them starts at once. A render is only remembered for `REMEMBERED_S`, since
a template may tell the date.
"""

import time
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import orjson

from ..engine import Engine, RenderRefused
from ..lineage.suffix import RenderRejected

REMEMBERED_S = 60.0
MAX_REMEMBERED_TOKENS = 2_000_000
"""8 MB."""


class EngineRenderer:
    """Renders and tokenizes through the engine's own routes."""

    def __init__(self, engine: Engine) -> None:
        """Ask `engine`, which the caller owns."""
        self._engine = engine
        self._rendered: OrderedDict[bytes, tuple[float, array[int]]] = OrderedDict()
        self._n_tokens = 0

    async def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None,
        template: dict[str, Any],
        add_generation_prompt: bool = True,
    ) -> "array[int]":
        """The prompt's ids, not to be changed; raises RenderRejected (4xx), EngineError."""
        question = orjson.dumps([messages, tools, template, add_generation_prompt])
        key = blake2b(question, digest_size=32).digest()
        found = self._rendered.get(key)
        if found is not None and time.monotonic() < found[0]:
            return found[1]
        with _rejected():
            ids = await self._engine.render(messages, tools, template, add_generation_prompt)
        self._remember(key, ids)
        return ids

    def _remember(self, key: bytes, ids: "array[int]") -> None:
        _, old = self._rendered.pop(key, (0.0, ()))
        self._rendered[key] = (time.monotonic() + REMEMBERED_S, ids)
        self._n_tokens += len(ids) - len(old)
        while self._n_tokens > MAX_REMEMBERED_TOKENS:
            _, (_, dropped) = self._rendered.popitem(last=False)
            self._n_tokens -= len(dropped)

    async def tokenize(self, text: str) -> "array[int]":
        """The ids of bare text; raises RenderRejected (4xx), EngineError."""
        with _rejected():
            return await self._engine.tokenize(text)


@contextmanager
def _rejected() -> Iterator[None]:
    """Raise an engine's refusal in lineage's words; trouble that may pass stays as it is."""
    try:
        yield
    except RenderRefused as error:
        if 400 <= error.status < 500 and error.status not in (408, 409, 429):
            raise RenderRejected(error.status, error.message) from error
        raise
