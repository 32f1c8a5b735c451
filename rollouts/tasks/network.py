"""Who may be reached: `network_mode` and `allowed_hosts`, in three tables of `task.toml`."""

from __future__ import annotations

import re
from ipaddress import ip_network
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, model_validator

from .table import Table, Text

NetworkMode = Literal["public", "no-network", "allowlist"]
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def _host(entry: str) -> str:
    """Return one host, address or range in lower case; raises ValueError."""
    host = entry.strip().lower().rstrip(".")
    if _is_address(host):
        return host
    name = host.removeprefix("*.")
    if name and all(_LABEL.fullmatch(label) for label in name.split(".")):
        if host == name or not _is_address(name):
            return host
    raise ValueError(
        f"wants host names, `*.` names, addresses or ranges, without scheme, port or path; "
        f"found {entry!r}"
    )


def _is_address(host: str) -> bool:
    try:
        ip_network(host, strict=True)
    except ValueError:
        return False
    return "%" not in host


class Network(Table):
    """What a table says about the network; both None where it says nothing."""

    network_mode: NetworkMode | None = None
    allowed_hosts: tuple[Annotated[Text, AfterValidator(_host)], ...] | None = None
    """Only with `allowlist`."""

    @model_validator(mode="after")
    def _hosts_need_the_mode(self) -> Self:
        if self.allowed_hosts and self.network_mode != "allowlist":
            raise ValueError('allowed_hosts is only read with network_mode = "allowlist": add it')
        return self
