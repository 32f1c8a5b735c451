"""The backends by name."""

from __future__ import annotations

from .errors import Refused
from .interface import Backend
from .local import LocalBackend, LocalSettings, UnisolatedBackend

BACKENDS: dict[str, type[LocalBackend] | type[UnisolatedBackend]] = {
    "local": LocalBackend,
    "local-unisolated": UnisolatedBackend,
}


def backend_named(name: str, local: LocalSettings | None = None) -> Backend:
    """Return a backend, to be opened with `async with`; raises Refused for a name that is none."""
    if name not in BACKENDS:
        raise Refused(name, (f"there is no such backend, only {', '.join(BACKENDS)}",))
    return BACKENDS[name](local)
