"""JSON as clients send it, read strictly where meaning is at stake.

Refused: keys that occur twice, NaN and infinities, nesting beyond a limit, bytes that are not
UTF-8. Accepted: lone surrogates, escaped or as bytes, which broken emoji handling puts into
histories for good; they stay in what is returned, and `mended` replaces them.
"""

import json
import re
from typing import Any

MAX_NESTING = 128
"""Deeper values are refused: encoders and template engines further on give up at about 250."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


class NotStrict(ValueError):
    """The text is not JSON, or not JSON that has one meaning; the message says why."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise NotStrict("a key occurs twice in one object")
    return found


def _constant(name: str) -> Any:
    raise NotStrict(f"{name} is not a JSON number")


def _float(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise NotStrict("a number is too large")
    return number


def _number(text: str) -> float | int:
    number = _float(text)
    return int(number) if number.is_integer() else number


_STRICT = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_float=_float)
_VALUES = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_float=_number)


def loads(raw: bytes, max_nesting: int = MAX_NESTING) -> Any:
    """Return the value of a JSON text; raises `NotStrict`."""
    try:
        text = raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise NotStrict("the text is not UTF-8") from error
    return _decode(_STRICT, text, max_nesting)


def loads_comparable(text: str) -> Any:
    """Return the value with 1.0 read as 1, so that equal values are equal; raises `NotStrict`."""
    return _decode(_VALUES, text, MAX_NESTING)


def loads_loosely(text: str) -> Any:
    """Return the value that Python's own reader, and so vLLM, makes of a text; None where none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return None if _is_deeper(value, MAX_NESTING) else value


def canonical(value: Any) -> str:
    """Return one text for all spellings of a value that `loads_comparable` returned."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def dumps(value: Any) -> str:
    """Return a JSON text in the order and spacing that Python's own writer uses."""
    return json.dumps(value, ensure_ascii=False)


def _decode(decoder: json.JSONDecoder, text: str, max_nesting: int) -> Any:
    try:
        value = decoder.decode(text)
    except NotStrict:
        raise
    except RecursionError:
        raise NotStrict(f"values are nested deeper than {max_nesting}") from None
    except json.JSONDecodeError as error:
        raise NotStrict(f"{error.msg} at character {error.pos}") from None
    except ValueError as error:  # an integer of more digits than Python converts
        raise NotStrict("a number is too large") from error
    if text.count("[") + text.count("{") > max_nesting and _is_deeper(value, max_nesting):
        raise NotStrict(f"values are nested deeper than {max_nesting}")
    return value


def _is_deeper(value: Any, limit: int) -> bool:
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(limit):
        if not level:
            return False
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
    return bool(level)


def mended(text: str) -> str:
    """Return the text with split surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    if text.isascii() or not _SURROGATE.search(text):
        return text
    joined = _PAIR.sub(_join, text)
    return _SURROGATE.sub("\ufffd", joined)


def mended_value(value: Any) -> Any:
    """Return a JSON value with every text mended, keys included."""
    if isinstance(value, str):
        return mended(value)
    if isinstance(value, list):
        return [mended_value(inner) for inner in value]
    if isinstance(value, dict):
        return {mended(key): mended_value(inner) for key, inner in value.items()}
    return value


def _join(pair: re.Match[str]) -> str:
    return pair[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le")
