"""Connections to SQLite and PostgreSQL, and what their errors mean.

SQLite: write-ahead log with synchronous=FULL, so a commit that returned survives power loss; one
connection writes (`BEGIN IMMEDIATE`: it waits for the lock before it reads), others read snapshots.
PostgreSQL: synchronous_commit stays on whatever the server's default.
"""

from __future__ import annotations

import errno
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    SQLAlchemyError,
    StatementError,
)

from .errors import NotWritten, StoreBusy, StoreCorrupt, StoreError, StoreFull, StoreGone

PAGE_BYTES = 8192
"""Rows of arrays are 2 to 5 kB: in pages of 4 kB one fills a page and wastes half of it."""
_CHECKPOINT_PAGES = 2000

_PG_FULL = {"53100", "53000", "25006", "53200"}
_PG_BUSY = {"55P03", "40001", "40P01", "57014", "53300"}
_PG_LOST = ("08", "57P")
_SQLITE_FULL = {"SQLITE_FULL", "SQLITE_READONLY", "SQLITE_CANTOPEN"}
_SQLITE_BUSY = {"SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL"}
_SQLITE_BROKEN = {"SQLITE_CORRUPT", "SQLITE_NOTADB"}


class ConnectionLost(StoreBusy):
    """The server went away; whether an open commit took place is unknown."""


class Database:
    """A writing and a reading engine on one database."""

    def __init__(self, url: str | Path, *, busy_s: float, read_only: bool) -> None:
        """Prepare engines; nothing is opened yet."""
        self.url = _url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.path = Path(self.url.database or "").absolute() if self.is_sqlite else None
        self._gone: str | None = None
        self._log = Path(f"{self.path}-wal")
        self.busy_s = busy_s
        self.read_only = read_only
        self._files: dict[Path, tuple[int, int]] = {}
        """Device and inode of the files that are open for writing."""
        attempt_s = min(busy_s, 0.5)
        self.writing = self._engine(attempt_s, writes=True)
        self.reading = self._engine(busy_s, writes=False)

    def _engine(self, busy_s: float, *, writes: bool) -> Engine:
        pool: dict[str, Any] = {"pool_size": 1, "max_overflow": 0} if writes else {"pool_size": 4}
        if self.is_sqlite:
            engine = create_engine(
                self.url,
                connect_args={"check_same_thread": False, "timeout": busy_s},
                **pool,
            )
            _prepare_sqlite(engine, busy_s, writes=writes)
        else:
            _check_driver()
            args = {
                "connect_timeout": max(int(self.busy_s), 2),
                "application_name": "budwood",
            }
            engine = create_engine(
                self.url,
                connect_args=args,
                pool_pre_ping=not writes,
                pool_use_lifo=True,
                **pool,
            )
            _prepare_postgres(engine, busy_s, writes=writes)
        return engine

    def keep_place(self) -> None:
        """Remember which file is at the path; to be called when it is open for good."""
        if self.path is not None:
            self._files = {self.path: _identity(self.path)}

    def check_place(self, *, log: bool) -> None:
        """Raise StoreGone where the path no longer leads to the files that are written.

        SQLite notices nothing: it goes on into a file without a name, which ends with the process.
        The `log` beside the database, while it is open, holds what was committed last, and counts
        like the file itself. Once it was so, it stays so: what is there now is another store.
        """
        if self._gone is not None:
            raise StoreGone(self._gone)
        if self.path is None or not self._files:
            return
        for path in (self.path, self._log) if log else (self.path,):
            try:
                found = _identity(path)
            except PermissionError:
                continue
            except OSError:
                found = None
            if path == self._log and found is not None:
                self._files.setdefault(path, found)
            if found != self._files.get(path):
                self._gone = (
                    f"{path} was deleted, moved or replaced while it was open; "
                    "start again to record into what is there now"
                )
                raise StoreGone(self._gone)

    def forget_log(self) -> None:
        """The writing connection ends: the next one may find a new log."""
        self._files.pop(self._log, None)

    def dispose(self) -> None:
        """Close all connections."""
        self.writing.dispose()
        self.reading.dispose()


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def file_of(url: str | Path) -> Path | None:
    """Return the file of the store that a path or URL names; None: a server keeps it."""
    parsed = _url(url)
    return Path(parsed.database or "") if parsed.get_backend_name() == "sqlite" else None


def _url(url: str | Path) -> URL:
    if isinstance(url, Path) or "://" not in url:
        return URL.create("sqlite", database=str(Path(url).expanduser()))
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise StoreError(
            "a store is a path or postgresql://USER@HOST/NAME, not this URL"
        ) from error
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise StoreError(f"SQLite or PostgreSQL is wanted, not {parsed.get_backend_name()}")
    if parsed.get_backend_name() == "sqlite" and parsed.database in (
        None,
        "",
        ":memory:",
    ):
        raise StoreError(
            "a store needs a file: readers and the writer have connections of their own"
        )
    return parsed


def _check_driver() -> None:
    if importlib.util.find_spec("psycopg") is None:
        raise StoreError("a PostgreSQL store needs an extra: pip install 'budwood[postgres]'")


def _prepare_sqlite(engine: Engine, busy_s: float, *, writes: bool) -> None:
    @event.listens_for(engine, "connect")
    def prepare(dbapi: Any, _: Any) -> None:
        dbapi.isolation_level = None  # SQLAlchemy says BEGIN, not the driver
        pragmas = [f"busy_timeout={int(busy_s * 1000)}", "foreign_keys=ON"]
        if writes:
            pragmas += [
                f"page_size={PAGE_BYTES}",
                "journal_mode=WAL",
                "synchronous=FULL",
            ]
            pragmas += [f"wal_autocheckpoint={_CHECKPOINT_PAGES}"]
        else:
            pragmas += ["query_only=ON"]
        with _closed_on_error(dbapi):
            cursor = dbapi.cursor()
            for pragma in pragmas:
                cursor.execute(f"PRAGMA {pragma}")
            cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _prepare_postgres(engine: Engine, busy_s: float, *, writes: bool) -> None:
    @event.listens_for(engine, "connect")
    def prepare(dbapi: Any, _: Any) -> None:
        with _closed_on_error(dbapi):
            cursor = dbapi.cursor()
            if writes:
                cursor.execute("SET synchronous_commit = on")
                cursor.execute(f"SET lock_timeout = {max(int(busy_s * 1000), 1)}")
            else:
                cursor.execute("SET default_transaction_read_only = on")
            cursor.close()
            dbapi.commit()


@contextmanager
def _closed_on_error(dbapi: Any) -> Iterator[None]:
    """Close a connection whose preparation fails: the pool never gets to know of it."""
    try:
        yield
    except BaseException:
        dbapi.close()
        raise


def translated(error: BaseException) -> StoreError:
    """Return our error for one of SQLAlchemy's; the caller raises it from the original."""
    if isinstance(error, StoreError):
        return error
    original = getattr(error, "orig", None)
    message = f"{type(original or error).__name__}: {original or error}".strip()
    name = getattr(original, "sqlite_errorname", None)
    if name is not None:
        return _sqlite_error(name, message)
    state = getattr(original, "sqlstate", None)
    lost = isinstance(error, DBAPIError) and error.connection_invalidated
    if state in _PG_FULL:
        return StoreFull(message)
    if state in _PG_BUSY:
        return StoreBusy(message)
    if lost or isinstance(error, InterfaceError) or (state or "").startswith(_PG_LOST):
        return ConnectionLost(message)
    if isinstance(error, IntegrityError | DataError | StatementError) and not _is_operational(
        error
    ):
        return NotWritten(message)
    if isinstance(error, SQLAlchemyError) and _is_operational(error) and state is None:
        return ConnectionLost(message)
    return StoreError(message)


def _is_operational(error: BaseException) -> bool:
    return type(error).__name__ == "OperationalError"


def _sqlite_error(name: str, message: str) -> StoreError:
    base = "_".join(name.split("_")[:2])
    if base in _SQLITE_BUSY:
        return StoreBusy(message)
    if base in _SQLITE_FULL:
        return StoreFull(message)
    if base == "SQLITE_IOERR":
        # SQLite does not pass errno on; a write, a sync or a resize that fails is nearly always
        # space or quota.
        full = name.rsplit("_", 1)[-1] in (
            "WRITE",
            "FSYNC",
            "TRUNCATE",
            "SHMSIZE",
            "SHMMAP",
        )
        return StoreFull(errno.ENOSPC, os.strerror(errno.ENOSPC)) if full else StoreError(message)
    if base in _SQLITE_BROKEN:
        return StoreCorrupt(message)
    if base in ("SQLITE_CONSTRAINT", "SQLITE_MISMATCH", "SQLITE_TOOBIG"):
        return NotWritten(message)
    return StoreError(message)
