"""What a backend has, as data, and the one place where a spec is held against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import Refused
from .limits import Enforcement, Limit
from .spec import Feature, Isolation, Network, Spec


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a backend can do on this machine, found out before the first sandbox."""

    backend: str
    isolation: Isolation
    networks: frozenset[Network]
    limits: Mapping[Limit, Enforcement]
    """The limits that can be held, and how."""
    features: frozenset[Feature] = frozenset()
    has_images: bool = False
    has_binds: bool = True
    has_own_root: bool = True
    """The paths inside are the sandbox's own: workdir, home and /tmp are not the host's."""
    hints: Mapping[Limit, str] | None = None
    """For a limit that can't be held here: why, and what would change it."""


def refuse_what_lacks(spec: Spec, has: Capabilities) -> None:
    """Raise Refused with every single thing that the spec asks for and the backend lacks."""
    lacks = spec.problems()
    if spec.image is not None and not has.has_images:
        lacks.append(f"image {spec.image!r}: this backend has no images")
    if spec.network not in has.networks:
        offered = ", ".join(sorted(has.networks)) or "none"
        lacks.append(f"network {spec.network}: there is {offered}")
    for limit in sorted(spec.limits.asked() - set(has.limits)):
        hint = (has.hints or {}).get(limit, "this backend can't hold it")
        lacks.append(f"limit {limit}: {hint}; set it to None to go without")
    for feature in sorted(spec.needs - has.features):
        lacks.append(f"feature {feature}: this backend does not have it")
    if spec.binds and not has.has_binds:
        lacks.append("binds: this backend can't bind files of the host; put them in instead")
    if lacks:
        raise Refused(has.backend, tuple(lacks))
