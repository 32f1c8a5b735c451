"""Where settings come from; only this module reads the environment and `budwood.toml`.

One model a room, nested under the room's name. For each field the first of these wins:

    command line   →   BUDWOOD_<ROOM>__<FIELD>   →   budwood.toml   →   the model's default

`BUDWOOD_CONFIG` names another file than `./budwood.toml`. Deeper fields take one more `__`
(`BUDWOOD_PROXY__ENGINE__URLS`). A name that no model knows is an error, never ignored. A room's
model is imported when it is asked for, so that looking at a store never loads the proxy.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator

if TYPE_CHECKING:
    from budwood.proxy.settings import ProxySettings

PREFIX = "BUDWOOD_"
CONFIG_VARIABLE = "BUDWOOD_CONFIG"
CONFIG_FILE = "budwood.toml"

_PASSWORD = re.compile(r"(://[^/@\s:]*:)[^/@\s]*@")
"""The password in a URL."""
COMMAND_LINE = "command line"
DEFAULT = "default"


def default_store() -> str:
    """Return the path of the store that is used where none is named."""
    home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return str(Path(home) / "budwood" / "budwood.db")


def logs_beside(store_url: str) -> Path:
    """Return the folder for outputs and logs of runs, where none is named."""
    if "://" in store_url:
        store_url = default_store()
    return Path(store_url).expanduser().absolute().parent / "runs"


class StoreSettings(BaseModel):
    """Where the records are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(default_factory=default_store)
    """A path (SQLite) or a URL: `postgresql+psycopg://...`."""
    busy_s: float = Field(10.0, gt=0)
    """Seconds to wait for a database that another process has locked."""
    secrets: tuple[SecretStr, ...] = ()
    """Values that must not leave the store: calls that hold one are marked, views and exports
    mask them. Eight characters or more each."""

    @field_validator("secrets")
    @classmethod
    def _long_enough(cls, values: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        if values:
            # Imported late: the command's help and `config` do without the store.
            from budwood.trajectory_store.secrets import MIN_LENGTH

            for number, value in enumerate(values, 1):
                if len(value.get_secret_value()) < MIN_LENGTH:
                    raise ValueError(
                        f"each needs {MIN_LENGTH} characters or more, number {number} has "
                        f"{len(value.get_secret_value())}: shorter ones would match everywhere"
                    )
        return values


class ViewerSettings(BaseModel):
    """How `budwood view` serves its pages."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    """Address to listen on. Any but a loopback address needs `token`."""
    port: int = Field(8802, ge=0, le=65535)
    """Port of the pages; 0 takes a free one."""
    token: SecretStr | None = None
    """What opens the viewer. None: a random one, for a URL that works once. 16 characters or
    more."""
    allowed_hosts: tuple[str, ...] = ()
    """Further names (without port) that a browser may use for this server."""
    page_size: int = Field(50, ge=1, le=500)
    """Rows of a page."""


ROOMS: dict[str, str] = {
    "store": "budwood.cli.settings:StoreSettings",
    "viewer": "budwood.cli.settings:ViewerSettings",
    "proxy": "budwood.proxy.settings:ProxySettings",
}
"""Room name → the model of its settings."""


class SettingsError(typer.BadParameter):
    """A setting that cannot be used; the message names it, its origin, and what is allowed."""

    def __init__(self, message: str) -> None:
        """Say what was wanted, what was found and what to do."""
        super().__init__(message)


@dataclass(frozen=True)
class Effective:
    """One setting as it counts."""

    name: str
    """Dotted: `store.url`."""
    value: str
    """For people; a secret is masked."""
    origin: str


M = TypeVar("M", bound=BaseModel)


class Settings:
    """All rooms' settings; each room is read and checked when it is first asked for.

    Raises `SettingsError` for unknown names and values out of range.
    """

    def __init__(
        self,
        config: Path | None = None,
        changes: Mapping[str, Mapping[str, Any]] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Read the file at once, the rooms on demand.

        `changes` is the command line: room → field → value, nested as the models are; a value
        of None was not given.
        """
        self._environ = os.environ if environ is None else environ
        self._changes = changes or {}
        self._file, self._table = _read_file(config, self._environ)

    @cached_property
    def store(self) -> StoreSettings:
        """Where the records are."""
        return self._load("store", StoreSettings)[0]

    @cached_property
    def viewer(self) -> ViewerSettings:
        """How the pages are served."""
        return self._load("viewer", ViewerSettings)[0]

    @cached_property
    def proxy(self) -> ProxySettings:
        """How the proxy records."""
        from budwood.proxy.settings import ProxySettings

        return self._load("proxy", ProxySettings)[0]

    def effective(self) -> Iterator[Effective]:
        """Yield every setting of every room with its origin, secrets masked."""
        for room, where in ROOMS.items():
            module, _, name = where.partition(":")
            settings, origins = self._load(room, getattr(import_module(module), name))
            yield from _flatten(settings, room, origins)

    def _load(self, room: str, model: type[M]) -> tuple[M, dict[str, str]]:
        merged: dict[str, Any] = {}
        origins: dict[str, str] = {}
        _merge(merged, self._table.get(room, {}), origins, room, self._file)
        for variable, path, value in _variables(room, self._environ):
            _merge(merged, _nested(path, value), origins, room, variable)
        _merge(merged, _given(self._changes.get(room, {})), origins, room, COMMAND_LINE)
        try:
            return model.model_validate(merged), origins
        except ValidationError as error:
            raise SettingsError(_complaint(room, error, origins)) from None


def load_settings(
    config: Path | None = None, changes: Mapping[str, Mapping[str, Any]] | None = None
) -> Settings:
    """Return the settings of this process; see `Settings`."""
    return Settings(config, changes)


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _read_file(config: Path | None, environ: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    named = config or environ.get(CONFIG_VARIABLE)
    path = Path(named or CONFIG_FILE)
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if named:
            raise SettingsError(f"there is no settings file {named}") from None
        return str(path), {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from None
    unknown = sorted(set(table) - set(ROOMS))
    if unknown:
        raise SettingsError(f"{path}: no room {unknown[0]!r}; there are {', '.join(ROOMS)}")
    for room, values in table.items():
        if not isinstance(values, dict):
            raise SettingsError(f"{path}: {room} must be a table: [{room}]")
    return str(path), table


def _variables(room: str, environ: Mapping[str, str]) -> Iterator[tuple[str, list[str], Any]]:
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or "__" not in variable:
            continue
        head, *path = variable.removeprefix(PREFIX).lower().split("__")
        if head not in ROOMS:
            raise SettingsError(f"{variable}: no room {head!r}; there are {', '.join(ROOMS)}")
        if head == room:
            yield variable, path, _decoded(environ[variable])


def _decoded(text: str) -> Any:
    """Lists and tables are written as JSON; all else is text, which pydantic converts."""
    if text[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _nested(path: list[str], value: Any) -> dict[str, Any]:
    for name in reversed(path):
        value = {name: value}
    return value


def _merge(
    into: dict[str, Any],
    values: Mapping[str, Any],
    origins: dict[str, str],
    prefix: str,
    origin: str,
) -> None:
    for name, value in values.items():
        dotted = f"{prefix}.{name}"
        if isinstance(value, Mapping) and isinstance(into.get(name, {}), dict):
            _merge(into.setdefault(name, {}), value, origins, dotted, origin)
            if into[name]:
                continue  # what is in the table has origins of its own
        else:
            into[name] = value
        origins[dotted] = origin


def _complaint(room: str, error: ValidationError, origins: Mapping[str, str]) -> str:
    lines: list[str] = []
    for problem in error.errors(include_url=False, include_input=False):
        path = [str(part) for part in problem["loc"]]
        dotted = ".".join([room, *path])
        # A problem may lie in an item of what was set, or be that of a table as a whole.
        origin = next((origins[name] for name in _upwards(dotted) if name in origins), None)
        origin = origin or _origin(dotted, origins)
        lines.append(f"{dotted} ({origin}): {_what(problem['type'], problem['msg'], origin)}")
    return "; ".join(lines) + ". `budwood config` lists all settings."


def _what(kind: str, message: str, origin: str) -> str:
    """Return what is wrong, in words for people."""
    if kind == "extra_forbidden":
        return "no such setting"
    is_variable = origin.startswith(PREFIX)
    if kind in ("tuple_type", "list_type"):
        example = f"""as JSON: {origin}='["one", "two"]'""" if is_variable else '["one", "two"]'
        return f"a list is wanted, written {example}"
    if kind in ("dict_type", "model_type", "model_attributes_type"):
        example = f"""as JSON: {origin}='{{"name": "value"}}'""" if is_variable else "as a table"
        return f"a table is wanted, written {example}"
    return message.removeprefix("Value error, ")


def _upwards(dotted: str) -> Iterator[str]:
    while dotted:
        yield dotted
        dotted = dotted.rpartition(".")[0]


def _origin(dotted: str, origins: Mapping[str, str]) -> str:
    """Return where a setting is from; the entries of a table may be from several places."""
    found = [
        origin
        for name, origin in origins.items()
        if name == dotted or name.startswith(f"{dotted}.")
    ]
    return ", ".join(dict.fromkeys(found)) or DEFAULT


def _flatten(settings: BaseModel, prefix: str, origins: Mapping[str, str]) -> Iterator[Effective]:
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        dotted = f"{prefix}.{name}"
        if isinstance(value, BaseModel):
            yield from _flatten(value, dotted, origins)
            continue
        yield Effective(dotted, _shown(value), _origin(dotted, origins))


def _shown(value: Any) -> str:
    if isinstance(value, SecretStr):
        return "********" if value.get_secret_value() else '""'
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_shown(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {_shown(item)}" for name, item in value.items()) + "}"
    if value is None:
        return "none"
    return _PASSWORD.sub(r"\1********@", str(value))
