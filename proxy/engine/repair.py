"""Fields that an engine refuses: taken out once, the call sent again, remembered for this engine.

Only what does not decide tokens may go. A limit above the room left is cut to it, for this call.
"""

import re

from .errors import EngineRefused
from .request import EngineCall

DISPENSABLE = frozenset(
    {
        "parallel_tool_calls", "reasoning_effort", "stream_options", "session_id", "cache_salt",
        "return_tokens_as_token_ids", "min_p", "repetition_penalty", "top_k", "logprobs",
        "top_logprobs", "presence_penalty", "frequency_penalty", "verbosity",
    }
)  # fmt: skip
_NEUTRAL_ONLY = {
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "top_k": -1,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Dropped only where the value means nothing."""
_OWED = frozenset({"logprobs", "top_logprobs", "stream_options"})
"""Never dropped where ids and logprobs are owed."""
_ASKED = frozenset({"parallel_tool_calls", "reasoning_effort", "top_logprobs", "verbosity"})
"""What harnesses set: a value that one of them got wrong says nothing about others' calls."""
_UNKNOWN = re.compile(
    r"unknown|unrecogni[sz]ed|unexpected|unsupported (?!value)|no longer"
    r"|not (?:\w+ )?(?:supported|permitted|allowed|known)|(?: not|n't) (?:\w+ )?support\b"
    r"|(?:extra|invalid) (?:field|input|param|argument)",
    re.IGNORECASE,
)
"""How servers say that a field itself is not theirs, whatever its value."""
_ROOM = re.compile(
    r"maximum context length is (\d+) tokens.*?(?:prompt contains at least|and) (\d+) "
    r"(?:input tokens|in the messages)",
    re.DOTALL,
)


class Repairs:
    """What this engine is known to refuse."""

    def __init__(self) -> None:
        self._dropped: set[str] = set()
        self._drops_strict = False

    def apply(self, call: EngineCall) -> None:
        """Take out of a call what was refused before."""
        for name in self._dropped & call.fields.keys():
            if _may_drop(call, name):
                del call.fields[name]
        if self._drops_strict:
            _drop_strict(call)

    def learn(self, call: EngineCall, error: EngineRefused) -> bool:
        """Mend a refused call; False where nothing can be done."""
        if error.status not in (400, 422):
            return False
        if self._shorten(call, error):
            return True
        text = f"{error.param or ''} {error.message}"
        if "strict" in text and not self._drops_strict and _drop_strict(call):
            self._drops_strict = True
            return True
        for name in DISPENSABLE & call.fields.keys():
            named = error.param == name or (error.param is None and _names(error.message, name))
            if named and _may_drop(call, name):
                if name in _ASKED and not _UNKNOWN.search(error.message):
                    return False
                self._dropped.add(name)
                del call.fields[name]
                return True
        return False

    def _shorten(self, call: EngineCall, error: EngineRefused) -> bool:
        """Cut `max_tokens` to the room that the engine's message tells of (no ids were sent)."""
        found = _ROOM.search(error.message)
        if found is None or call.prompt is not None:
            return False
        room = int(found[1]) - int(found[2])
        for name in ("max_tokens", "max_completion_tokens"):
            asked = call.fields.get(name)
            if isinstance(asked, int) and 0 < room < asked:
                call.fields[name] = call.sampling[name] = room
                return True
        return False


def _may_drop(call: EngineCall, name: str) -> bool:
    if name in _OWED and call.wants_ids:
        return False
    return name not in _NEUTRAL_ONLY or call.fields.get(name) == _NEUTRAL_ONLY[name]


def _names(message: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", message) is not None


def _drop_strict(call: EngineCall) -> bool:
    tools = call.fields.get("tools") or []
    found = False
    kept = []
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if isinstance(function, dict) and "strict" in function:
            found = True
            left = {name: value for name, value in function.items() if name != "strict"}
            tool = {**tool, "function": left}
        kept.append(tool)
    if found:
        call.fields["tools"] = kept
    return found
