"""Which writers still live: each holds a lock that only the death of its process lets go.

On SQLite the lock is `flock` on a file beside the database, on PostgreSQL an advisory lock of the
writer's session. Neither trusts process ids or clocks, so containers that share a file and hosts
that share a server are told apart rightly. Where a platform has no `flock`, every writer counts as
alive and nothing is swept.
"""

from __future__ import annotations

import contextlib
import os
import socket
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Connection, insert, select, text, update

from . import tables

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_LOCK_CLASS = 0x62756477
"""First key of our advisory locks on PostgreSQL."""


class Liveness:
    """This store's own mark of life, and the test of others'."""

    def __init__(self, database: Path | None) -> None:
        """Give the SQLite file, or None for PostgreSQL."""
        self._database = database
        self._held: int | None = None
        self.writer_id = 0

    def register(self, connection: Connection) -> int:
        """Add a writer and take its lock; the caller commits after."""
        row = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started_at": datetime.now(UTC),
        }
        result = connection.execute(insert(tables.writer).values(row))
        key = result.inserted_primary_key
        assert key is not None
        self.writer_id = int(key[0])
        if self._database is not None:
            self._held = self._lock_file(self.writer_id)
        else:
            self.hold(connection)
        return self.writer_id

    def hold(self, connection: Connection) -> None:
        """Take the lock again: a new session to PostgreSQL does not have the old one's."""
        if self._database is None and self.writer_id:
            connection.execute(
                text("SELECT pg_advisory_lock(:class, :id)"),
                {"class": _LOCK_CLASS, "id": self.writer_id},
            )

    def release(self, connection: Connection | None) -> None:
        """Give the lock back; the writer has ended in order."""
        if connection is not None and self.writer_id:
            ended = update(tables.writer).where(tables.writer.c.id == self.writer_id)
            connection.execute(ended.values(ended_at=datetime.now(UTC)))
            if self._database is None:
                connection.execute(
                    text("SELECT pg_advisory_unlock(:class, :id)"),
                    {"class": _LOCK_CLASS, "id": self.writer_id},
                )
        if self._held is not None:
            with contextlib.suppress(OSError):
                self._lock_path(self.writer_id).unlink()
            os.close(self._held)
            self._held = None

    def dead_writers(self, connection: Connection) -> list[int]:
        """Return the writers with open intents whose lock nobody holds."""
        call = tables.call.c
        found = connection.execute(
            select(call.writer)
            .where(call.seq.is_(None), call.state.in_(("intent", "streaming")))
            .distinct()
        )
        others = [int(n) for (n,) in found if n != self.writer_id]
        return [n for n in others if not self._is_alive(connection, n)]

    def has_others(self, connection: Connection) -> bool:
        """Whether another living writer uses this database."""
        writer = tables.writer.c
        query = select(writer.id).where(writer.ended_at.is_(None), writer.id != self.writer_id)
        return any(self._is_alive(connection, int(n)) for (n,) in connection.execute(query))

    def _is_alive(self, connection: Connection, writer_id: int) -> bool:
        if self._database is not None:
            return self._file_is_locked(writer_id)
        keys = {"class": _LOCK_CLASS, "id": writer_id}
        free = connection.execute(text("SELECT pg_try_advisory_xact_lock(:class, :id)"), keys)
        return not free.scalar_one()

    def _lock_path(self, writer_id: int) -> Path:
        assert self._database is not None
        return self._database.with_name(f"{self._database.name}-writer-{writer_id}")

    def _lock_file(self, writer_id: int) -> int | None:
        if fcntl is None:
            return None
        handle = os.open(self._lock_path(writer_id), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return handle

    def _file_is_locked(self, writer_id: int) -> bool:
        if fcntl is None:
            return True
        path = self._lock_path(writer_id)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            with contextlib.suppress(OSError):
                path.unlink()
            return False
        finally:
            os.close(handle)
