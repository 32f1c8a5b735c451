"""The `[environment]` table: what the place is made of in which a task is done.

Old keys are read as their successors: `memory = "2G"`, `storage = "10G"`, `allow_internet`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from .network import Network
from .table import Count, Number, Seconds, Table, Text, Wait

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGkmg])[Bb]?")
_MB = {"K": 1 / 1024, "M": 1, "G": 1024}


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _http_is_streamable(value: object) -> object:
    return "streamable-http" if value == "http" else value


class Healthcheck(Table):
    """A command that must end with 0 before the agent starts."""

    command: Text
    interval_sec: Wait = 5.0
    timeout_sec: Seconds = 30.0
    start_period_sec: Wait = 0.0
    start_interval_sec: Wait = 5.0
    retries: Count = 3


class Tpu(Table):
    """A slice of a TPU."""

    type: Text
    topology: Annotated[str, Field(pattern=r"^[1-9]\d*(x[1-9]\d*)+$")]


class McpServer(Table):
    """A server of tools for the agent."""

    name: Text
    transport: Annotated[
        Literal["stdio", "sse", "streamable-http"], BeforeValidator(_http_is_streamable)
    ] = "sse"
    url: str | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    headers: Mapping[str, str] = {}

    @model_validator(mode="after")
    def _says_where_it_is(self) -> Self:
        if self.transport == "stdio":
            if not self.command:
                raise ValueError('transport = "stdio" wants the key command')
            if self.headers:
                raise ValueError('headers are not read with transport = "stdio": take them out')
        elif not self.url:
            raise ValueError(f'transport = "{self.transport}" wants the key url')
        return self


class Environment(Network):
    """What the place is made of; None where the task does not mind."""

    build_timeout_sec: Seconds = 600.0
    docker_image: Text | None = None
    os: Annotated[Literal["linux", "windows"], BeforeValidator(_lower)] = "linux"
    cpus: Annotated[Number, Field(gt=0)] | None = None
    memory_mb: Annotated[Count, Field(gt=0)] | None = None
    storage_mb: Annotated[Count, Field(gt=0)] | None = None
    gpus: Count | None = None
    gpu_types: tuple[Text, ...] | None = None
    tpu: Tpu | None = None
    mcp_servers: tuple[McpServer, ...] = ()
    env: Mapping[str, str] = {}
    """Values may be `${NAME}` or `${NAME:-default}` (`variables.py`)."""
    skills_dir: Text | None = None
    healthcheck: Healthcheck | None = None
    workdir: Text | None = None
    """Where commands start; None: the image's own, /app without an image."""

    @model_validator(mode="before")
    @classmethod
    def _read_old_keys(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        data = dict(data)
        for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
            if old in data:
                _supersede(data, old, new, _megabytes(old, data.pop(old)))
        if "allow_internet" in data:
            allowed = data.pop("allow_internet")
            if not isinstance(allowed, bool):
                raise ValueError(f"allow_internet: wants true or false, found {allowed!r}")
            data.setdefault("network_mode", "public" if allowed else "no-network")
        return data

    @field_validator("workdir")
    @classmethod
    def _is_absolute(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith("/"):
            raise ValueError(f"wants an absolute path, found {value!r}")
        return value


def _supersede(data: dict[str, Any], old: str, new: str, value: int) -> None:
    if data.setdefault(new, value) != value:
        raise ValueError(f"{old} says {value} and {new} says {data[new]}: take {old} out")


def _megabytes(key: str, size: object) -> int:
    found = _SIZE.fullmatch(size.strip()) if isinstance(size, str) else None
    if not found:
        raise ValueError(f'{key}: wants a size such as "2G" or "512M", found {size!r}')
    return max(1, int(float(found[1]) * _MB[found[2].upper()]))
