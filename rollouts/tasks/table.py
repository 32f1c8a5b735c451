"""What every table of `task.toml` shares: frozen, no unknown keys, no guessing of types.

TOML has types, so a number in quotes is a mistake and is not read as a number.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, Strict


class Table(BaseModel):
    """A table whose keys are all known."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _a_user(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise ValueError(f"wants a user's name or number, found {value!r:.40}")
    return value


def _named(value: object) -> object:
    if isinstance(value, str) and not value.strip():
        raise ValueError("wants some text")
    return value


Flag = Annotated[bool, Strict()]
Count = Annotated[int, Strict(), Field(ge=0)]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Seconds = Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)]
Wait = Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)]
Text = Annotated[str, BeforeValidator(_named)]
User = Annotated[str | int | None, PlainValidator(_a_user)]
"""A name or a number; None where the environment's own user is meant."""
