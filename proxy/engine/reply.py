"""A sampled reply as it accumulates, and as it stands in the end.

`Collected` takes what an answer brings, event by event or whole, and keeps ids, logprobs and text
apart; each is looked at once. `finished` then demands what vLLM must send, and raises EngineBroken
where something is missing: an answer that is not whole is never a clean end.
"""

import json
import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson

from ..call import ToolDelta, mended
from ..call.json_text import mended_value
from .errors import EngineBroken
from .prompt import Prompt

MALFORMED = (
    AttributeError, TypeError, KeyError, IndexError, ValueError, OverflowError, RecursionError,
)  # fmt: skip
"""What reading JSON of another shape than was agreed raises; the answer is then broken."""

_PROMPT_KEY = b'"prompt_token_ids":'
_ID_PREFIX = "token_id:"


@dataclass(slots=True)
class EngineReply:
    """What one call sampled. ids and logprobs are parallel: one entry a sampled token."""

    message: dict[str, Any]
    """role, content, reasoning, tool_calls ({id, name, arguments}; ids are the engine's)."""
    finish: str | None
    stop_reason: str | int | None
    usage: dict[str, Any] | None
    prompt_ids_match: bool | None
    """Whether the ids read are the ids sent; None if none were sent or none came back."""
    prompt_ids: "array[int] | None"
    """The ids that the engine says it read, where they are not the ones sent."""
    out_ids: "array[int] | None"
    logprobs: "array[float] | None"
    pairs_match: bool | None = None
    """Whether each logprob is labelled with the id beside it; None if labels were not asked for."""
    temperature: float | None = None
    """What was sent; None if nothing was."""
    raw: bytes | None = None
    """The answer's body, where it was kept."""
    reasons: list[str] = field(default_factory=list)
    """Why the reply is not exact, found while reading it."""
    flags: list[str] = field(default_factory=list)
    weight_versions: list[dict[str, Any]] | None = None
    """Spans of sampled tokens by the engine's own weight label, from generate only."""
    logprob_entries: list[dict[str, Any]] | None = None
    """The engine's `logprobs.content`, kept only for a client that asked to see it."""

    @property
    def coarse(self) -> bool:
        """Whether the answer came in one piece although a stream was asked for."""
        return "coarse" in self.flags


class Collected:
    """One reply under construction.

    What is taken is held to its type at once (any of `MALFORMED` is raised), so that a reply, whole
    or partial, can always be made of what was collected.
    """

    def __init__(self, prompt: Prompt | None, *, wants_ids: bool, keep_raw: bool = False) -> None:
        self.prompt = prompt
        self.wants_ids = wants_ids
        self.ids = array("I")
        self.logprobs = array("f")
        self.labels: list[str] = []
        self.entries: list[dict[str, Any]] = []
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[dict[str, Any]] = []
        self._positions: dict[int, int] = {}
        """The engine's index of a call → its place in `calls`."""
        self.finish: str | None = None
        self.stop_reason: str | int | None = None
        self.usage: dict[str, Any] | None = None
        self.prompt_ids: array[int] | None = None
        self.prompt_ids_match: bool | None = None
        self.has_labels = False
        self.is_whole = False
        self.raw: list[bytes] | None = [] if keep_raw else None
        self.flags: list[str] = []
        self.weight_versions: list[dict[str, Any]] | None = None

    def take_prompt(self, payload: bytes) -> bytes:
        """Compare the prompt's ids in a piece of JSON with those sent; return it without them.

        Equal text is equal ids: nothing is parsed. In a JSON string the quotes of the key would be
        escaped, so the key is found only where it is one.
        """
        at = payload.find(_PROMPT_KEY)
        if at < 0:
            return payload
        start = at + len(_PROMPT_KEY)
        prompt = self.prompt
        if prompt is not None and payload.startswith(prompt.json, start):
            end = start + len(prompt.json)
            self.prompt_ids_match = True
        else:
            if payload[start : start + 1] != b"[":
                return payload
            end = payload.find(b"]", start) + 1
            if not end:
                return payload  # cut: parsing it will say so
            self.take_prompt_ids(orjson.loads(payload[start:end]))
        return payload[:start] + b"null" + payload[end:]

    def take_prompt_ids(self, ids: list[int]) -> None:
        """Compare the prompt's ids with those sent."""
        found = array("I", ids)
        self.prompt_ids_match = None if self.prompt is None else found == self.prompt.ids
        self.prompt_ids = None if self.prompt_ids_match else found

    def take_ids(self, ids: list[int]) -> None:
        """Keep sampled ids."""
        self.ids.extend(ids)

    def take_logprobs(self, logprobs: dict[str, Any]) -> None:
        """Keep the sampled tokens' logprobs and what they are labelled with.

        NaN stands where an entry has no number: the reply is not exact, and an answer all the same.
        """
        entries = logprobs.get("content") or ()
        try:
            self.take_numbers([entry["logprob"] for entry in entries])
            if self.has_labels:
                self.labels += [entry["token"] for entry in entries]
        except (KeyError, TypeError) as error:
            raise EngineBroken("bad_event", f"a logprob entry lacks {error}") from error

    def take_numbers(self, logprobs: Iterable[Any]) -> None:
        """Keep logprobs."""
        found = list(logprobs)
        try:
            self.logprobs += array("f", found)
        except TypeError:
            self.logprobs += array(
                "f", [x if isinstance(x, int | float) else math.nan for x in found]
            )

    def take_text(self, content: str | None, reasoning: str | None) -> None:
        """Add pieces of what was said and thought."""
        if content:
            self.content.append(_text(content))
        if reasoning:
            self.reasoning.append(_text(reasoning))

    def take_call(self, part: dict[str, Any]) -> ToolDelta:
        """Add a piece of a tool call; return it with the call's place among the calls.

        Engines number their calls from where they like, and some give several the same number: a
        piece with a new id and a name begins a call.
        """
        index, function = part.get("index"), part.get("function") or {}
        call_id, name, arguments = part.get("id"), function.get("name"), function.get("arguments")
        for text in (call_id, name, arguments):
            if text:
                _text(text)
        if index is None:
            index = len(self.calls) if call_id or name or not self.calls else len(self.calls) - 1
        elif not isinstance(index, int):
            raise TypeError(f"the index of a tool call is {type(index).__name__}")
        place = self._positions.get(index)
        if place is not None and name and call_id:
            known = self.calls[place]
            if known["name"] and known["id"] not in (None, call_id):
                place = None
        if place is None:
            place = self._positions[index] = len(self.calls)
            self.calls.append({"id": None, "name": "", "arguments": ""})
        call = self.calls[place]
        if call_id:
            call["id"] = call_id
        call["name"] += name or ""
        call["arguments"] += arguments or ""
        return ToolDelta(place, call_id, name, arguments or "")

    def take_usage(self, usage: dict[str, Any]) -> None:
        """Keep the counts of tokens."""
        if not isinstance(usage, dict):
            raise TypeError(f"usage is {type(usage).__name__}")
        self.usage = usage

    def take_finish(self, finish: str, stop_reason: str | int | None) -> None:
        """Keep why the reply ended; a server that owes no exactness may change its mind."""
        if not (stop_reason is None or isinstance(stop_reason, str | int)):
            raise TypeError(f"stop_reason is {type(stop_reason).__name__}")
        if self.wants_ids and self.finish not in (None, finish):
            raise ValueError("the reply ends twice, for different reasons")
        self.finish, self.stop_reason = _text(finish), stop_reason

    def message(self) -> dict[str, Any]:
        """Return the assistant message so far, in whole characters."""
        return {
            "role": "assistant",
            "content": mended("".join(self.content)) if self.content else None,
            "reasoning": mended("".join(self.reasoning)) if self.reasoning else None,
            "tool_calls": [mended_value(call) for call in self.calls],
        }

    def partial(self) -> EngineReply:
        """Return what came so far; ids and logprobs cut to their common length."""
        n = min(len(self.ids), len(self.logprobs))
        return self._reply(self.ids[:n], self.logprobs[:n])

    def finished(self) -> EngineReply:
        """Return the reply; raises EngineBroken if it is not whole."""
        if self.finish is None:
            raise EngineBroken("missing_finish", "the answer ended without a finish reason")
        if not self.wants_ids:
            return self._reply(self.ids, self.logprobs)
        n_out = (self.usage or {}).get("completion_tokens")
        if n_out is None:
            raise EngineBroken("missing_usage", "the answer does not say how many tokens it has")
        if len(self.ids) != n_out or len(self.logprobs) != n_out:
            lacks = not self.ids or not self.logprobs
            raise EngineBroken(
                "missing_ids" if lacks and n_out else "count_mismatch",
                f"{n_out} tokens counted, {len(self.ids)} ids and {len(self.logprobs)} logprobs",
            )
        return self._reply(self.ids, self.logprobs)

    def _reply(self, ids: "array[int]", logprobs: "array[float]") -> EngineReply:
        pairs = None
        if self.has_labels and self.labels:
            pairs = self.labels == [f"{_ID_PREFIX}{number}" for number in ids]
        return EngineReply(
            message=self.message(),
            finish=self.finish,
            stop_reason=self.stop_reason,
            usage=self.usage,
            prompt_ids_match=self.prompt_ids_match,
            prompt_ids=self.prompt_ids,
            out_ids=ids if ids or self.wants_ids else None,
            logprobs=logprobs if logprobs or self.wants_ids else None,
            pairs_match=pairs,
            raw=b"".join(self.raw) if self.raw else None,
            flags=list(self.flags),
            weight_versions=self.weight_versions,
            logprob_entries=self.entries or None,
        )


def loads(data: bytes) -> Any:
    """Return the value of JSON as any engine writes it; raises ValueError.

    Some write NaN, or half of a character that goes on in the next event: Python's reader takes
    these, and so does what stands behind it.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} stands where a text should")
    return value
