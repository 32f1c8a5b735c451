"""How two prompts, or two requests, of the same call differ; each difference by its name.

What a proxied call's engine reads (`read`) may differ from what the harness sent, rendered whole
(`sent`), only inside the model's own earlier output, which goes back in as it was sampled. Two runs
of a harness may send different things only where a clock, a port, a folder or a random id shows.
A difference without a name is a fault.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

SAME_TOKENS_NOT = "own output in the tokens that were sampled, same text"
WHITE_SPACE = "white space of own output"
ARGUMENTS = "spelling of own arguments"
CALL_IDS = "ids of tool calls"
REASONING = "field that carries reasoning"

_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
_REASONING = {"reasoning", "reasoning_content"}
_OF_THE_RUN = (
    ("a date or a time", r"\d{4}-\d\d-\d\d|\d\d:\d\d(:\d\d)?([.,]\d+)?|\d{10}(\.\d+)?"),
    ("a port", r"(127\.0\.0\.1|localhost):\d+"),
    ("a temporary folder", r"/tmp/\S+"),
    ("a random id", r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|(call|chatcmpl)[\w-]{8,}"),
)  # fmt: skip
_WORD = re.compile(r"\s+|[^\s\"'<>(),]+|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Difference:
    """One place in which two texts differ."""

    name: str | None
    """None: it has no name, and must not be."""
    one: str
    other: str


def of_own_output(parts: Sequence[str], sent: str) -> list[Difference]:
    """Differences between a prompt as read and as sent.

    `parts` is the prompt as read, cut: others' text, own output, others' text, own output, ...
    """
    pattern = "".join(
        re.escape(part) if number % 2 == 0 else "(.*?)" for number, part in enumerate(parts)
    )
    found = re.fullmatch(pattern, sent, re.DOTALL)
    if found is None:
        return [Difference(None, "".join(parts), sent)]
    pairs = zip(parts[1::2], found.groups(), strict=True)
    return [
        Difference(_own_name(own, echoed), own, echoed) for own, echoed in pairs if own != echoed
    ]


def _own_name(own: str, echoed: str) -> str | None:
    if own.split() == echoed.split():
        return WHITE_SPACE
    one, other = _CALL.split(own), _CALL.split(echoed)
    if len(one) != len(other):
        return None
    for number, (a, b) in enumerate(zip(one, other, strict=True)):
        if number % 2 == 0 and a.split() != b.split():
            return None
        if number % 2 == 1 and not _is_same_json(a, b):
            return None
    return ARGUMENTS


def _is_same_json(one: str, other: str) -> bool:
    try:
        return json.loads(one) == json.loads(other)
    except ValueError:
        return False


def of_two_runs(one: str, other: str) -> list[Difference]:
    """Differences between what two runs of a harness sent, as text."""
    a, b = _WORD.findall(one), _WORD.findall(other)
    found = []
    for kind, a0, a1, b0, b1 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if kind != "equal":
            here, there = "".join(a[a0:a1]), "".join(b[b0:b1])
            found.append(Difference(_run_name(here, there), here, there))
    return found


def _run_name(one: str, other: str) -> str | None:
    for name, pattern in _OF_THE_RUN:
        if re.fullmatch(pattern, one) and re.fullmatch(pattern, other):
            return name
    return None


def of_requests(one: bytes, other: bytes) -> list[Difference]:
    """Differences between two bodies that a harness sent, field by field."""
    a, b = dict(_fields(json.loads(one))), dict(_fields(json.loads(other)))
    found = []
    for path in sorted(a.keys() | b.keys()):
        here, there = a.get(path), b.get(path)
        if here != there:
            name = _field_name(path, here, there, a, b)
            found.append(Difference(name, f"{path}: {here}", f"{path}: {there}"))
    return found


def _fields(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _fields(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _fields(inner, f"{path}[{number}]")
    else:
        yield path, json.dumps(value)


def _field_name(
    path: str, one: str | None, other: str | None, a: dict[str, str], b: dict[str, str]
) -> str | None:
    before, _, last = path.rpartition(".")
    if last == "tool_call_id" or (last == "id" and "tool_calls[" in before):
        return CALL_IDS if one and other else None
    if last in _REASONING:
        told = [{fields.get(f"{before}.{name}") for name in _REASONING} for fields in (a, b)]
        return REASONING if told[0] - {None} == told[1] - {None} else None
    if one is None or other is None:
        return None
    here, there = json.loads(one), json.loads(other)
    if not isinstance(here, str) or not isinstance(there, str):
        return None
    if last == "arguments":
        return ARGUMENTS if _is_same_json(here, there) else None
    if ".role" not in path and here.split() == there.split():
        return WHITE_SPACE
    names = [each.name for each in of_two_runs(here, there)]
    return names[0] if None not in names else None
