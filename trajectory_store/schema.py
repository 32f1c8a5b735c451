"""Bringing a database to the schema of this software: created, upgraded, or refused as too new.

All of it happens in one transaction under the writer's lock (SQLite) or an advisory lock
(PostgreSQL): of several processes that start at once one migrates, and a process that dies in the
middle leaves what was there.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, text

from . import tables
from .database import Database
from .errors import SchemaTooNew, StoreCorrupt, StoreError, StoreFull
from .migrations import REVISIONS

_LOCK = 0x627564776F6F64


def prepare(database: Database, *, create: bool) -> None:
    """Create or upgrade the schema; raises `SchemaTooNew`, or `StoreError` where it may not."""
    if database.path is not None and database.path.exists() and database.path.stat().st_size:
        # Before anything is written: even SQLite's way to keep a log is a mark in the file.
        with database.reading.connect() as connection:
            revision(connection, database)
    with database.writing.connect() as connection, connection.begin():
        if not database.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        found = revision(connection, database)
        if found == REVISIONS[-1]:
            return
        if found is None and not create:
            raise StoreError(f"{where(database)} holds no store; it may not be created here")
        _check_known(found, database)
        _migrate(connection)


def check(database: Database) -> None:
    """Raise unless the schema is the current one; nothing is changed."""
    with database.reading.connect() as connection:
        found = revision(connection, database)
    if found is None:
        raise StoreError(f"{where(database)} holds no store")
    _check_known(found, database)
    if found != REVISIONS[-1]:
        raise StoreError(
            f"{where(database)} has schema {found}, this software reads {REVISIONS[-1]}: "
            "open it for writing once, which upgrades it"
        )


def revision(connection: Connection, database: Database) -> str | None:
    """Return the revision of the database; None where it is empty.

    Raises `StoreError` where it is another program's.
    """
    found = set(inspect(connection).get_table_names())
    if not found:
        return None
    if not {"alembic_version", tables.rollout.name, tables.call.name} <= found:
        raise StoreError(
            f"{where(database)} holds no store, but another program's tables: "
            "name a new file, or an empty database"
        )
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def where(database: Database) -> str:
    """Return the database's name for messages, without a password."""
    return str(database.path or database.url.render_as_string(hide_password=True))


def not_opened(database: Database, error: StoreError) -> StoreError:
    """Return an error of opening that names the database and says what to do."""
    name, said = where(database), str(error)
    if name in said:
        return error
    advice = ""
    if isinstance(error, StoreCorrupt):
        advice = ": it is another kind of file, or damaged"
    elif isinstance(error, StoreFull) and database.is_sqlite:
        advice = ": the file and its folder must be writable, even to read (SQLite's log is there)"
    return type(error)(f"{name} can't be opened ({said}){advice}")


def _check_known(found: str | None, database: Database) -> None:
    if found is not None and found not in REVISIONS:
        raise SchemaTooNew(
            f"{where(database)} has schema {found}, the newest this software knows is "
            f"{REVISIONS[-1]}: use the version that wrote it, or a later one"
        )


def _migrate(connection: Connection) -> None:
    # Imported here: a store that is up to date needs none of it, and it takes a tenth of a second.
    from alembic import command
    from alembic.config import Config

    config = Config()
    # Percent signs are the configuration parser's.
    config.set_main_option("script_location", str(_migrations()).replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _migrations() -> Path:
    return Path(__file__).parent / "migrations"
