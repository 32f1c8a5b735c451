"""TOML text → `TaskConfig`, or the problems in words: which key, what was wanted, what to do."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from ..errors import BrokenTask, Problem
from .config import TaskConfig

_OLD_KEYS = {
    "TaskConfig": ("version",),
    "Environment": ("memory", "storage", "allow_internet"),
}
_WANTED = {
    "string_type": "text in quotes",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list in [ ]",
    "model_type": "a table",
    "mapping_type": "a table",
    "dict_type": "a table",
    "finite_number": "a finite number",
}


def parse_config(text: str, file: Path) -> TaskConfig:
    """Return what the text of `task.toml` says; raises BrokenTask, in which `file` is named."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problem = Problem("", f"is not TOML: {error}; correct it there")
        raise BrokenTask(file, [problem]) from error
    try:
        return TaskConfig.model_validate(table)
    except ValidationError as error:
        problems = [_problem(detail) for detail in error.errors(include_url=False)]
        raise BrokenTask(file, problems) from error


def _problem(detail: Any) -> Problem:
    where, kind, found = detail["loc"], detail["type"], detail["input"]
    key = _dotted(where)
    if kind == "extra_forbidden":
        return Problem(key, f"is not a key that is known here; {_advice(where)}")
    if kind == "missing":
        return Problem(key, "is missing; add it")
    if kind == "value_error":
        return Problem(key, str(detail["ctx"]["error"]))
    wanted = _WANTED.get(kind)
    if wanted is None:
        wanted = detail["msg"].removeprefix("Input should be ").replace("'", '"')
    return Problem(key, f"wants {wanted}, found {_said(found)}")


def _dotted(where: Sequence[str | int]) -> str:
    """`("steps", 0, "agent")` → `steps[0].agent`."""
    key = ""
    for part in where:
        key += f"[{part}]" if isinstance(part, int) else f".{part}" if key else part
    return key


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _advice(where: Sequence[str | int]) -> str:
    """Return the near key, or all that there are."""
    table = _table_at(where[:-1])
    known = sorted({*table.model_fields, *_OLD_KEYS.get(table.__name__, ())})
    near = get_close_matches(str(where[-1]), known, n=1)
    if near:
        return f"did you mean {near[0]}?"
    return f"take it out, or move it into [metadata]; known here: {', '.join(known)}"


def _table_at(where: Sequence[str | int]) -> type[BaseModel]:
    table: type[BaseModel] = TaskConfig
    for part in where:
        field = table.model_fields.get(part) if isinstance(part, str) else None
        table = _table_in(field.annotation) if field else table
    return table


def _table_in(annotation: Any) -> type[BaseModel]:
    """Return the one model that a field's type is made of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = [_table_in(part) for part in get_args(annotation) if _has_table(part)]
    return found[0]


def _has_table(annotation: Any) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return True
    return any(_has_table(part) for part in get_args(annotation))
