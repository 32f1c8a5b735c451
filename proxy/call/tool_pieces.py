"""Which call a piece of a streamed tool call belongs to, from engines that number them badly.

vLLM numbers pieces well. Others leave the index out, give every parallel call the index 0, leave
the id out of later pieces or of all, or number the head of a call differently from its tail (bug
reports of llama.cpp, lmdeploy, LiteLLM, agno and others). In what comes out every call has its own
index, counted from 0, and every piece the index of its call.
"""

from collections.abc import Mapping
from typing import Any

from .delta import ToolDelta


class ToolPieces:
    """Takes the pieces of one reply in order; one instance a reply."""

    def __init__(self) -> None:
        """A reply in which no call has begun."""
        self._n_calls = 0
        self._by_id: dict[str, int] = {}
        self._by_index: dict[int, int] = {}
        """The engine's index to ours, of the call that had it last."""
        self._last = 0

    def take(self, piece: Mapping[str, Any]) -> ToolDelta:
        """Return an element of a chunk's `delta.tool_calls` with an index that can be relied on.

        Raises `TypeError` or `AttributeError` where it is no tool call at all.
        """
        function = piece.get("function") or {}
        call_id, index = piece.get("id") or None, piece.get("index")
        name, arguments = function.get("name") or None, function.get("arguments") or ""
        ours = self._place(call_id, index, name)
        if call_id is not None:
            self._by_id[call_id] = ours
        if index is not None:
            self._by_index[index] = ours
        self._last = ours
        return ToolDelta(ours, call_id, name, arguments)

    def _place(self, call_id: str | None, index: int | None, name: str | None) -> int:
        if call_id is not None and call_id in self._by_id:
            return self._by_id[call_id]
        begins = call_id is not None and name is not None
        if not begins and index in self._by_index:
            return self._by_index[index]
        if not self._n_calls or name is not None:
            self._n_calls += 1
            return self._n_calls - 1
        return self._last
