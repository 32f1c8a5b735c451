"""What the fields of a chat request may hold, checked before anything is done for them.

A field of a wrong type would fail later and elsewhere: in our own arithmetic, in the engine's
encoder, in a template. A huge one costs an engine memory or time for nothing (one request with a
large `n` or `top_logprobs` has brought servers down). Ranges are the engine's own where it has
any, and wide where only the type matters; what is merely odd is left to the engine to judge.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import BadRequest

_INT32 = 2**31 - 1
_INT64 = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a range, both ends allowed; integers may be written as 1.0."""

    low: float
    high: float
    whole: bool = False

    def __call__(self, value: Any) -> str | None:
        """What is wrong with a value, if anything."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and self.whole:
            is_number = value == int(value)
        if not is_number or not self.low <= value <= self.high:
            kind = "an integer" if self.whole else "a number"
            return f"must be {kind} from {self.low:g} to {self.high:g}"
        return None


@dataclass(frozen=True, slots=True)
class Text:
    """A text of at most so many characters."""

    longest: int

    def __call__(self, value: Any) -> str | None:
        """What is wrong with a value, if anything."""
        if not isinstance(value, str) or len(value) > self.longest:
            return f"must be a text of at most {self.longest} characters"
        return None


@dataclass(frozen=True, slots=True)
class Items:
    """A list of at most so many values that each pass a check."""

    most: int
    each: Callable[[Any], str | None]

    def __call__(self, value: Any) -> str | None:
        """What is wrong with a value, if anything."""
        if not isinstance(value, list) or len(value) > self.most:
            return f"must be a list of at most {self.most} values"
        wrong = next((found for found in map(self.each, value) if found), None)
        return f"has a value that {wrong}" if wrong else None


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def _object(value: Any) -> str | None:
    return None if isinstance(value, dict) else "must be an object"


def _text_or_object(value: Any) -> str | None:
    return None if isinstance(value, str | dict) else "must be a text or an object"


def _stop(value: Any) -> str | None:
    one = Text(1024)
    return one(value) if isinstance(value, str) else Items(256, one)(value)


def _logit_bias(value: Any) -> str | None:
    if not isinstance(value, dict) or len(value) > 10_000:
        return "must be an object of at most 10000 biases"
    bias = Number(-100, 100)
    if not all(key.isdecimal() and bias(number) is None for key, number in value.items()):
        return "must give token ids biases from -100 to 100"
    return None


_TOKEN_ID = Number(0, _INT32, whole=True)
_LIMIT = Number(1, _INT64, whole=True)

BOUNDS: dict[str, Callable[[Any], str | None]] = {
    "model": Text(1024),
    "temperature": Number(0, 1000),
    "top_p": Number(0, 1),
    "top_k": Number(-1, _INT32, whole=True),
    "min_p": Number(0, 1),
    "repetition_penalty": Number(0, 1000),
    "presence_penalty": Number(-2, 2),
    "frequency_penalty": Number(-2, 2),
    "length_penalty": Number(-1000, 1000),
    "seed": Number(-_INT64, _INT64, whole=True),
    "stop": _stop,
    "stop_token_ids": Items(256, _TOKEN_ID),
    "max_tokens": _LIMIT,
    "max_completion_tokens": _LIMIT,
    "min_tokens": Number(0, _INT32, whole=True),
    "thinking_token_budget": Number(-1, _INT32, whole=True),
    "top_logprobs": Number(0, 20, whole=True),
    "logit_bias": _logit_bias,
    "bad_words": Items(1024, Text(1024)),
    "allowed_token_ids": Items(1_000_000, _TOKEN_ID),
    "ignore_eos": _flag,
    "include_stop_str_in_output": _flag,
    "parallel_tool_calls": _flag,
    "tool_choice": _text_or_object,
    "response_format": _object,
    "structured_outputs": _object,
    "chat_template": Text(1_000_000),
    "chat_template_kwargs": _object,
    "reasoning_effort": Text(64),
    "documents": Items(10_000, _object),
}
"""What each field must be, where it is given and not null."""

MAX_TOOLS = 4096


def check_fields(fields: Mapping[str, Any]) -> None:
    """Refuse the first field that no engine could serve; raises `BadRequest` with its name."""
    for name, value in fields.items():
        check = BOUNDS.get(name)
        if value is None or check is None:
            continue
        wrong = check(value)
        if wrong:
            raise BadRequest(f"`{name}` {wrong}.", param=name)


def check_tools(tools: list[Any]) -> None:
    """Refuse what can't be tools; odd ones are the engine's to judge. Raises `BadRequest`."""
    if len(tools) > MAX_TOOLS:
        raise BadRequest(f"A request may have {MAX_TOOLS} tools, not {len(tools)}.", param="tools")
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise BadRequest("A tool must be an object.", param=f"tools[{index}]")


def is_wide(value: Any) -> bool:
    """Whether a JSON value holds an integer of more than 64 bits, which no engine reads."""
    if isinstance(value, dict):
        return any(map(is_wide, value.values()))
    if isinstance(value, list):
        return any(map(is_wide, value))
    return isinstance(value, int) and not -_INT64 <= value <= 2**64 - 1
