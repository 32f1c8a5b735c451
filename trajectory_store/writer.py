"""The writer: one thread, one connection, many records a commit.

Records are handed over with a future each. The thread takes what is there, up to 256, plans it,
writes it in one transaction, and resolves the futures after COMMIT has returned; while a commit
flushes, the next batch gathers. Nobody waits for intents and marks: they linger a little for a
result to ride with. A result goes at once, or, where many are coming in, after at most 2 ms.

One bad record does not take the others with it: where a batch is refused, its records are written
again, each within a savepoint. A database that is locked or away is asked again until a record is
`busy_s` old; one that is full fails at once and is asked again by the next batch.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from .database import ConnectionLost, Database, translated
from .errors import (
    NotWritten,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
)
from .ids import CallId
from .liveness import Liveness
from .planning import Batch, Planner
from .records import CallIntent, CallResult, CallState
from .writing import Statements, is_stored, stored_seq, write, write_echoes, write_mark

BATCH = 256
GATHER_S = 0.002
LINGER_S = 0.010
_CROWD = 4
_RETRY_S = 0.05

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Mark:
    """A later state of a call."""

    call_id: CallId
    state: CallState


@dataclass(frozen=True, slots=True)
class Echo:
    """A call's answer was seen in a later request."""

    call_id: CallId


@dataclass(frozen=True, slots=True)
class Action:
    """Anything off the hot path, done in the batch's transaction."""

    act: Callable[[Connection], Any]


Record = CallIntent | CallResult | Mark | Echo | Action


@dataclass(slots=True, eq=False)
class _Op:
    record: Record
    future: Future[Any]
    asked_at: float
    is_awaited: bool
    value: Any = None
    error: StoreError | None = None
    outcome_unknown: bool = False
    """A commit that held it broke off: it may be stored already."""


@dataclass(slots=True)
class WriterFigures:
    """What the writer has done; read by benchmarks and metrics."""

    commits: int = 0
    records: int = 0
    one_by_one: int = 0
    busy_retries: int = 0
    largest: int = field(default=0)


class Writer:
    """The thread that writes; `submit` from any thread, `close` once."""

    def __init__(self, database: Database, liveness: Liveness, planner: Planner) -> None:
        """Start the thread; the schema is there and the writer registered."""
        self.figures = WriterFigures()
        self._database = database
        self._liveness = liveness
        self._planner = planner
        self._statements = Statements(database.url.get_backend_name())
        self._queue: queue.SimpleQueue[_Op | None] = queue.SimpleQueue()
        self._connection: Connection | None = None
        self._ending = False
        self._closed = False
        self._crowded = False
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._loop, name="store-writer", daemon=True)
        self._thread.start()

    def submit(self, record: Record, *, is_awaited: bool) -> Future[Any]:
        """Queue a record; the future cannot be cancelled, since what was asked is written."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        if os.getpid() != self._pid:
            raise StoreError("this store was opened before a fork: open it again in each process")
        with self._lock:
            if self._closed:
                raise StoreClosed("the store is closed")
            self._queue.put(_Op(record, future, time.monotonic(), is_awaited))
        return future

    def close(self) -> None:
        """Write what is queued, mark the writer as ended, and stop the thread."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._queue.put(None)
        self._thread.join()

    def _loop(self) -> None:
        while ops := self._gather():
            try:
                self._commit(ops)
            except Exception as error:
                # The boundary: a batch fails, the thread lives on.
                failed = StoreError(f"the writer failed: {type(error).__name__}: {error}")
                failed.__cause__ = error
                self._disconnect()
                for op in ops:
                    if not op.future.done():
                        op.future.set_exception(failed)
        self._end()

    def _gather(self) -> list[_Op]:
        """Return the next batch; empty when the store closes."""
        if self._ending:
            return []
        first = self._queue.get()
        ops: list[_Op] = []
        deadline = time.monotonic() + LINGER_S
        awaited = False
        op: _Op | None = first
        while True:
            if op is None:
                self._ending = True
                break
            ops.append(op)
            if op.is_awaited and not awaited:
                awaited = True
                deadline = time.monotonic() + (GATHER_S if self._crowded else 0.0)
            if len(ops) >= BATCH:
                break
            try:
                left = deadline - time.monotonic()
                op = self._queue.get(timeout=left) if left > 0 else self._queue.get_nowait()
            except queue.Empty:
                break
        self._crowded = sum(op.is_awaited for op in ops) >= _CROWD
        return ops

    def _commit(self, ops: list[_Op]) -> None:
        """Write a batch and resolve its futures, whatever happens."""
        pending = ops
        while pending:
            try:
                self._attempt(pending)
            except StoreBusy as error:
                self.figures.busy_retries += 1
                self._disconnect()
                unknown = isinstance(error, ConnectionLost)
                now, late = time.monotonic(), []
                for op in pending:
                    op.outcome_unknown |= unknown
                    if now - op.asked_at >= self._database.busy_s:
                        late.append(op)
                self._fail(
                    late,
                    StoreBusy(f"no turn within {self._database.busy_s} s: {error}"),
                )
                pending = [op for op in pending if not op.future.done()]
                if pending:
                    time.sleep(_RETRY_S)
                continue
            except StoreError as error:
                self._disconnect()
                self._fail(pending, error)
            pending = []

    def _fail(self, ops: list[_Op], error: StoreError) -> None:
        for op in ops:
            if isinstance(op.record, CallIntent):
                self._planner.forget_call(op.record.id)
            op.future.set_exception(error)

    def _attempt(self, ops: list[_Op]) -> None:
        batch = Batch()
        good = [op for op in ops if self._plan(batch, op)]
        try:
            self._transact(good, batch)
        except NotWritten:
            # A refused statement ends the transaction on PostgreSQL: begin anew, one by one.
            self.figures.one_by_one += 1
            good = [op for op in ops if op.error is None]
            batches = self._transact_each(good)
        else:
            batches = [batch]
        self.figures.commits += 1
        self.figures.records += len(ops)
        self.figures.largest = max(self.figures.largest, len(ops))
        for done in batches:
            self._planner.remember(done)
        for op in ops:
            if op.error is not None:
                self._fail([op], op.error)
            else:
                op.future.set_result(op.value)

    def _plan(self, batch: Batch, op: _Op) -> bool:
        try:
            if isinstance(op.record, CallIntent):
                self._planner.begin(batch, op.record)
            elif isinstance(op.record, CallResult):
                self._planner.finish(batch, op.record)
        except (StoreBusy, StoreFull):
            raise
        except StoreCorrupt as error:
            op.error = error
        except (TypeError, ValueError, LookupError, ArithmeticError) as error:
            op.error = NotWritten(f"{type(error).__name__}: {error}")
            op.error.__cause__ = error
        return op.error is None

    def _transact(self, ops: list[_Op], batch: Batch) -> None:
        if any(op.outcome_unknown for op in ops):
            raise NotWritten("each record is looked up")
        try:
            connection = self._connected()
            with connection.begin():
                self._write(connection, ops, batch)
            self._database.check_place(log=True)
        except (SQLAlchemyError, StoreError) as error:
            raise translated(error) from error

    def _transact_each(self, ops: list[_Op]) -> list[Batch]:
        batches: list[Batch] = []
        try:
            connection = self._connected()
            with connection.begin():
                for op in ops:
                    self._write_one(connection, op, batches)
            self._database.check_place(log=True)
        except (SQLAlchemyError, StoreError) as error:
            for op in ops:
                op.error = None
            raise translated(error) from error
        return batches

    def _write_one(self, connection: Connection, op: _Op, batches: list[Batch]) -> None:
        if op.outcome_unknown and self._is_stored(connection, op):
            return
        batch = Batch()
        if not self._plan(batch, op):
            return
        try:
            with connection.begin_nested():
                self._write(connection, [op], batch)
        except (SQLAlchemyError, StoreError) as error:
            op.error = translated(error)
            if not isinstance(op.error, NotWritten):
                raise op.error from error
        else:
            batches.append(batch)

    def _is_stored(self, connection: Connection, op: _Op) -> bool:
        """Return whether the broken commit took place after all."""
        if isinstance(op.record, CallResult):
            op.value = stored_seq(connection, op.record.id)
            return op.value is not None
        if isinstance(op.record, CallIntent):
            return is_stored(connection, op.record.id)
        return False

    def _write(self, connection: Connection, ops: list[_Op], batch: Batch) -> None:
        for op in ops:
            if isinstance(op.record, Action):
                op.value = op.record.act(connection)
        write(connection, self._statements, batch)
        marks: dict[CallState, list[str]] = {}
        for op in ops:
            if isinstance(op.record, Mark):
                marks.setdefault(op.record.state, []).append(op.record.call_id)
        for state in sorted(marks, key=_MARK_ORDER.index):
            write_mark(connection, self._statements, state, marks[state])
        echoes = [op.record.call_id for op in ops if isinstance(op.record, Echo)]
        write_echoes(connection, self._statements, echoes)
        seqs = {row["b_id"]: row["seq"] for row in batch.results}
        for op in ops:
            if isinstance(op.record, CallResult):
                op.value = seqs[op.record.id]

    def _connected(self) -> Connection:
        if self._connection is None:
            self._database.check_place(log=False)
            connection = self._database.writing.connect()
            try:
                if not self._database.is_sqlite:
                    self._liveness.hold(connection)
                    connection.commit()
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        self._database.forget_log()
        if connection is not None:
            try:
                connection.invalidate()
                connection.close()
            except SQLAlchemyError:
                pass

    def _end(self) -> None:
        try:
            with self._connected().begin():
                self._liveness.release(self._connection)
        except (SQLAlchemyError, StoreError):
            # The process is leaving: its lock goes with it, and that alone is what others ask.
            self._liveness.release(None)
        if self._connection is not None:
            self._connection.close()


_MARK_ORDER = list(CallState)
