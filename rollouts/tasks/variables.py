"""`${NAME}` and `${NAME:-default}` in the values of a task's `env` tables.

A task is somebody's text, so nothing of this machine's environment reaches it by itself: only what
the caller hands in as `variables`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..errors import MissingVariable

_TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}", re.DOTALL)


def fill(env: Mapping[str, str], variables: Mapping[str, str], *, table: str) -> dict[str, str]:
    """Return `env` with its templates filled in; raises MissingVariable, which names the key.

    As in Harbor, a template is a whole value: one inside a longer text stays as it is.
    """
    filled: dict[str, str] = {}
    for key, value in env.items():
        template = _TEMPLATE.fullmatch(value)
        if not template:
            filled[key] = value
            continue
        given = variables.get(template[1], template[2])
        if given is None:
            raise MissingVariable(f"{table}.env.{key}", template[1])
        filled[key] = given
    return filled
