"""The store: the one door to the database; it says what is durable when it returns.

Writes go through one thread (`writer.py`); what returns a value has been committed with the disk
flushed, what returns a future resolves it then. Reads use connections of their own and see one
snapshot each. A store belongs to one process; several processes may have stores on one database.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, func, select, update
from sqlalchemy.exc import SQLAlchemyError

from . import reading, request_reading, schema, tables, token_reading
from .bodies import RequestBody
from .database import Database, translated
from .errors import NotStored, StoreBusy, StoreCorrupt, StoreError
from .ids import CallId, RolloutId, RunId, new_rollout_id, new_run_id
from .liveness import Liveness
from .outcome import FailureClass, Outcome
from .planning import Planner
from .recent import Recent
from .records import (
    SCHEMA_VERSION,
    Call,
    CallIntent,
    CallResult,
    CallState,
    History,
    Lane,
    Purpose,
    Rollout,
    Run,
    Sequence,
    Tokens,
    Turn,
)
from .secrets import SecretScanner
from .selector import select_rollouts
from .sequences import Rows, Wanted, build
from .tokens import Path as TokenPath
from .writer import Action, Echo, Mark, Writer, WriterFigures
from .writing import insert_row

RECENT_BYTES = 256 * 1024 * 1024
"""What the writer may remember of open rollouts."""

T = TypeVar("T")


class Store:
    """Runs, rollouts and calls in one database; thread-safe and synchronous.

    Open it with `Store.open` and close it, or use it in a `with`.
    """

    def __init__(
        self, database: Database, liveness: Liveness | None, secrets: tuple[str, ...]
    ) -> None:
        """Use `open`; a store without `liveness` only reads."""
        self._database = database
        self._scanner = SecretScanner(secrets)
        self._writer: Writer | None = None
        if liveness is not None:
            recent = Recent(RECENT_BYTES)
            planner = Planner(recent, self._scanner, liveness.writer_id, self._token_path)
            self._planner = planner
            self._liveness = liveness
            self._writer = Writer(database, liveness, planner)

    @classmethod
    def open(
        cls,
        url: str | Path,
        *,
        create: bool = True,
        busy_s: float = 10.0,
        read_only: bool = False,
        secrets: tuple[str, ...] = (),
    ) -> Store:
        """Open, create or upgrade the database at a path (SQLite) or URL.

        `busy_s` is how long a record may wait for a locked or unreachable database. `secrets` are
        values to look for in what is recorded, beside the known forms of tokens. Raises
        `SchemaTooNew` for a later version's database, `StoreError` where there is none and
        `create` is False or `read_only` True.
        """
        database = Database(url, busy_s=busy_s, read_only=read_only)
        if database.path is not None and not database.path.exists() and (read_only or not create):
            raise StoreError(f"{database.path} does not exist")
        try:
            if read_only:
                with _naming():
                    schema.check(database)
                return cls(database, None, secrets)
            if database.path is not None:
                database.path.parent.mkdir(parents=True, exist_ok=True)
            _patiently(lambda: schema.prepare(database, create=create), busy_s)
            liveness = Liveness(database.path)
            _patiently(lambda: _register(database, liveness), busy_s)
            database.keep_place()
            return cls(database, liveness, secrets)
        except StoreError as error:
            database.dispose()
            raise schema.not_opened(database, error) from error
        except BaseException:
            database.dispose()
            raise

    def close(self) -> None:
        """Write what is queued, then close; later calls raise `StoreClosed`."""
        if self._writer is not None:
            self._writer.close()
        self._database.dispose()

    def __enter__(self) -> Self:
        """Return the store."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Close the store."""
        self.close()

    @property
    def figures(self) -> WriterFigures:
        """What the writer has done so far."""
        return self._writing().figures

    @property
    def secrets(self) -> SecretScanner:
        """The scanner that marked the calls, to mask what is shown and exported."""
        return self._scanner

    # Runs and rollouts: durable when these return.

    def open_run(
        self,
        name: str,
        *,
        purpose: Purpose = Purpose.RECORD,
        history: History = History.AS_SENT,
        settings: dict[str, Any] | None = None,
        versions: dict[str, Any] | None = None,
        seed: int | None = None,
    ) -> Run:
        """Return a new run."""
        run = Run(
            id=new_run_id(),
            name=name,
            purpose=Purpose(purpose),
            history=History(history),
            settings=settings or {},
            versions=versions or {},
            seed=seed,
            created_at=datetime.now(UTC),
        )
        self._act(lambda c: insert_row(c, tables.run, _columns(run)))
        return run

    def open_rollout(
        self,
        run_id: RunId,
        *,
        key_hash: bytes | None = None,
        group_id: str | None = None,
        attempt: int = 0,
        task: str | None = None,
        harness: str | None = None,
        harness_version: str | None = None,
        model: str | None = None,
        labels: dict[str, Any] | None = None,
        budgets: dict[str, Any] | None = None,
        expires_at: datetime | None = None,
        replay_of: RolloutId | None = None,
    ) -> Rollout:
        """Return a new rollout; raises `NotWritten` for an unknown run or a key in use."""
        rollout = Rollout(
            id=new_rollout_id(),
            run_id=run_id,
            group_id=group_id,
            attempt=attempt,
            task=task,
            harness=harness,
            harness_version=harness_version,
            model=model,
            key_hash=key_hash,
            labels=labels or {},
            budgets=budgets or {},
            created_at=datetime.now(UTC),
            expires_at=expires_at,
            replay_of=replay_of,
        )
        row = _columns(rollout) | {"schema_version": SCHEMA_VERSION}
        self._act(lambda c: insert_row(c, tables.rollout, row))
        return rollout

    def close_rollout(self, rollout_id: RolloutId) -> None:
        """Close it: no further call is expected. A closed one stays as it was closed."""

        def close(connection: Connection) -> None:
            table = tables.rollout
            reading.one(connection, _rollout_query(rollout_id), f"rollout {rollout_id}")
            change = update(table).where(table.c.id == rollout_id, table.c.state == "open")
            connection.execute(change.values(state="closed", closed_at=datetime.now(UTC)))
            self._planner.forget(rollout_id)

        self._act(close)

    def label_rollout(self, rollout_id: RolloutId, labels: dict[str, Any]) -> None:
        """Add or replace labels; a value of None removes one."""

        def label(connection: Connection) -> None:
            table = tables.rollout
            query = _rollout_query(rollout_id).with_for_update()
            row = reading.one(connection, query, f"rollout {rollout_id}")
            merged = {k: v for k, v in (row.labels | labels).items() if v is not None}
            connection.execute(update(table).where(table.c.id == rollout_id).values(labels=merged))

        self._act(label)

    def rollout_by_key(self, key_hash: bytes) -> Rollout | None:
        """Return the rollout whose secret has this hash."""
        table = tables.rollout
        with self._read() as connection:
            row = connection.execute(select(table).where(table.c.key_hash == key_hash)).first()
        return None if row is None else reading.rollout_of(row)

    def run(self, run_id: RunId) -> Run:
        """Return a run; raises `NotStored`."""
        with self._read() as connection:
            query = select(tables.run).where(tables.run.c.id == run_id)
            return reading.run_of(reading.one(connection, query, f"run {run_id}"))

    def runs(self) -> list[Run]:
        """Return all runs, oldest first."""
        run = tables.run
        with self._read() as connection:
            rows = connection.execute(select(run).order_by(run.c.created_at, run.c.id))
            return [reading.run_of(row) for row in rows]

    def rollout(self, rollout_id: RolloutId) -> Rollout:
        """Return a rollout; raises `NotStored`."""
        with self._read() as connection:
            query = _rollout_query(rollout_id)
            return reading.rollout_of(reading.one(connection, query, f"rollout {rollout_id}"))

    def rollouts(self, run_id: RunId | None = None) -> list[Rollout]:
        """Return the rollouts of a run, or all, oldest first."""
        rollout = tables.rollout
        query = select(rollout).order_by(rollout.c.created_at, rollout.c.id)
        if run_id is not None:
            query = query.where(rollout.c.run_id == run_id)
        with self._read() as connection:
            return [reading.rollout_of(row) for row in connection.execute(query)]

    # Calls: the futures resolve once the commit that holds them is durable.

    def begin_call(self, intent: CallIntent) -> Future[None]:
        """Record an intent with its request; it rides with the next results, soon at the latest."""
        return self._writing().submit(intent, is_awaited=False)

    def finish_call(self, result: CallResult) -> Future[int]:
        """Record a result; the future resolves to `call.seq`.

        The future fails with `StoreBusy`, `StoreFull`, `NotWritten` (unknown call, a second
        result) or another `StoreError`; nothing of the result is stored then. It cannot be
        cancelled.
        """
        return self._writing().submit(result, is_awaited=True)

    def mark(self, call_id: CallId, state: CallState) -> Future[None]:
        """Record a later state: streaming, aborted (of open calls), delivered or undelivered."""
        return self._writing().submit(Mark(call_id, CallState(state)), is_awaited=False)

    def mark_echoed(self, call_id: CallId) -> Future[None]:
        """Record that a later request showed this call's answer."""
        return self._writing().submit(Echo(call_id), is_awaited=False)

    # Reads

    def turns_after(self, rollout_id: RolloutId, seq: int) -> list[Turn]:
        """Return the rollout's complete calls whose seq is higher, in order."""
        with self._read() as connection:
            return reading.read_turns(connection, rollout_id, seq)

    def calls(self, rollout_id: RolloutId) -> list[Call]:
        """Return the rollout's calls: those with a result in order of seq, then the others."""
        with self._read() as connection:
            return reading.read_calls(connection, tables.call.c.rollout_id == rollout_id)

    def progress(self, rollout_id: RolloutId) -> tuple[str, int, int]:
        """Return the rollout's state, its number of calls, and how many of them are still open.

        As long as it stays equal, no call began or ended: cheap to ask again and again.
        """
        with self._read() as connection:
            return reading.read_progress(connection, rollout_id)

    def call(self, call_id: CallId) -> Call:
        """Return a call; raises `NotStored`."""
        with self._read() as connection:
            found = reading.read_calls(connection, tables.call.c.id == call_id)
        if not found:
            raise NotStored(f"call {call_id} is not in this store")
        return found[0]

    def lanes(self, rollout_id: RolloutId) -> list[Lane]:
        """Return the rollout's lanes, oldest first."""
        with self._read() as connection:
            return reading.read_lanes(connection, rollout_id)

    def request_body(self, call_id: CallId) -> bytes:
        """Return the request body as received, byte for byte."""
        with self._read() as connection:
            body = request_reading.read_body(connection, call_id)
        return body.join() if isinstance(body, RequestBody) else body

    def request_messages(self, call_id: CallId) -> list[bytes]:
        """Return the raw messages of the request; empty where the body was kept whole."""
        with self._read() as connection:
            return request_reading.read_messages(connection, call_id)

    def message_digests(self, call_id: CallId) -> bytes:
        """Return the 16-byte digests of the request's messages, joined; empty if not known."""
        with self._read() as connection:
            return request_reading.read_digests(connection, call_id)

    def raw_reply(self, call_id: CallId) -> bytes | None:
        """Return the engine's raw reply, where it was kept."""
        call = tables.call.c
        with self._read() as connection:
            query = select(call.raw_reply).where(call.id == call_id)
            name = reading.one(connection, query, f"call {call_id}").raw_reply
            return None if name is None else reading.read_blobs(connection, [name])[bytes(name)]

    def tokens(self, call_id: CallId) -> Tokens:
        """Return a call's arrays, proved; raises `NotStored` where it has none."""
        with self._read() as connection:
            return token_reading.read_tokens(connection, call_id)

    def rollout_tokens(self, rollout_id: RolloutId) -> Iterator[tuple[CallId, Tokens]]:
        """Yield the arrays of each call that has ids, by seq; each stored row is read once."""
        call = tables.call.c
        query = select(call.id, call.seq).where(
            call.rollout_id == rollout_id, call.n_prompt.is_not(None)
        )
        with self._read() as connection:
            held = token_reading.RolloutTokens(connection, rollout_id)
            rows = connection.execute(query.order_by(call.seq)).all()
        for row in rows:
            yield row.id, held.tokens(row.seq)

    # Outcomes

    def score(
        self,
        rollout_id: RolloutId,
        reward: float | None,
        *,
        by: str,
        failure_class: FailureClass = FailureClass.NONE,
        cause: str | None = None,
    ) -> Outcome:
        """Add a version to the rollout's outcomes, durable; earlier ones stay."""
        if reward is not None and not -1e308 < reward < 1e308:
            raise ValueError(f"a reward is a finite number or None, not {reward}")

        def add(connection: Connection) -> Outcome:
            # The lock on the rollout's row makes versions of several processes follow each other.
            query = _rollout_query(rollout_id).with_for_update()
            reading.one(connection, query, f"rollout {rollout_id}")
            table = tables.outcome
            latest = select(func.max(table.c.version)).where(table.c.rollout_id == rollout_id)
            version = (connection.execute(latest).scalar() or 0) + 1
            outcome = Outcome(
                rollout_id=rollout_id,
                version=version,
                reward=None if reward is None else float(reward),
                failure_class=FailureClass(failure_class),
                cause=cause,
                by=by,
                created_at=datetime.now(UTC),
            )
            insert_row(connection, table, _columns(outcome))
            return outcome

        return self._act(add)

    def outcome(self, rollout_id: RolloutId) -> Outcome:
        """Return the latest outcome; version 0 with reward None where none was given."""
        found = self.outcomes(rollout_id)
        if found:
            return found[-1]
        return Outcome(
            rollout_id=self.rollout(rollout_id).id,
            version=0,
            reward=None,
            failure_class=FailureClass.NONE,
            cause=None,
            by="",
            created_at=None,
        )

    def outcomes(self, rollout_id: RolloutId) -> list[Outcome]:
        """Return all outcomes, oldest first."""
        table = tables.outcome
        query = select(table).where(table.c.rollout_id == rollout_id).order_by(table.c.version)
        with self._read() as connection:
            return [reading.outcome_of(row) for row in connection.execute(query)]

    def select(self, selector: str) -> list[RolloutId]:
        """Return the rollouts that a selector names; `SelectorError` says what is allowed."""
        with self._read() as connection:
            return select_rollouts(connection, selector)

    # Sequences

    def sequences(
        self,
        rollout_id: RolloutId,
        *,
        lanes: tuple[str, ...] = ("main", "sub-agent"),
        include_inexact: bool = False,
        include_secret: bool = False,
        allow: tuple[str, ...] = (),
    ) -> list[Sequence]:
        """Return the rollout's training rows; `rows` also tells what is in none of them."""
        return self.rows(
            rollout_id,
            lanes=lanes,
            include_inexact=include_inexact,
            include_secret=include_secret,
            allow=allow,
        ).sequences

    def rows(
        self,
        rollout_id: RolloutId,
        *,
        lanes: tuple[str, ...] = ("main", "sub-agent"),
        include_inexact: bool = False,
        include_secret: bool = False,
        allow: tuple[str, ...] = (),
    ) -> Rows:
        """Return the rollout's training rows, and the untrained calls by reason.

        `allow` names flags that are trained although they are masked by default (`greedy`).
        """
        wanted = Wanted(frozenset(lanes), include_inexact, include_secret, frozenset(allow))
        with self._read() as connection:
            reading.one(connection, _rollout_query(rollout_id), f"rollout {rollout_id}")
            calls = reading.read_calls(connection, tables.call.c.rollout_id == rollout_id)
            known = {lane.id: lane for lane in reading.read_lanes(connection, rollout_id)}
            held = token_reading.RolloutTokens(connection, rollout_id)
        return build(rollout_id, calls, known, held, wanted)

    def has_company(self) -> bool:
        """Whether another living process writes to this database too.

        A writer registers when it opens the store, before it can record anything.
        """
        with self._read() as connection:
            return self._liveness.has_others(connection)

    def sweep(self) -> int:
        """Turn open intents of dead processes into `lost`; return how many.

        Intents of processes that live are left alone, also of other hosts and containers.
        """

        def sweep(connection: Connection) -> int:
            dead = self._liveness.dead_writers(connection)
            if not dead:
                return 0
            table = tables.call
            change = update(table).where(
                table.c.writer.in_(dead),
                table.c.seq.is_(None),
                table.c.state.in_(("intent", "streaming")),
            )
            lost = {"state": "lost", "failure_class": FailureClass.OURS.value, "cause": "crash"}
            return connection.execute(change.values(lost)).rowcount

        return self._act(sweep)

    # Inside

    def _writing(self) -> Writer:
        if self._writer is None:
            raise StoreError("this store was opened to read only")
        return self._writer

    def _act(self, act: Callable[[Connection], T]) -> T:
        return self._writing().submit(Action(act), is_awaited=True).result()

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        with _naming(), _proving(), self._database.reading.connect() as connection:
            yield connection

    def _token_path(self, call_id: CallId) -> TokenPath | None:
        with self._read() as connection:
            return token_reading.read_path(connection, call_id)


def _columns(record: Run | Rollout | Outcome) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}


def _rollout_query(rollout_id: RolloutId) -> Any:
    return select(tables.rollout).where(tables.rollout.c.id == rollout_id)


@contextmanager
def _naming() -> Iterator[None]:
    """Name the database's errors as ours."""
    try:
        yield
    except SQLAlchemyError as error:
        raise translated(error) from error


@contextmanager
def _proving() -> Iterator[None]:
    """Name what can't be read as the damage that it is: rows hold what this software wrote."""
    try:
        yield
    except (StoreError, SQLAlchemyError):
        raise
    except (ValueError, TypeError, LookupError) as error:
        kind = type(error).__name__
        raise StoreCorrupt(f"a row holds what was never written there ({kind}: {error})") from error


def _patiently(act: Callable[[], T], busy_s: float) -> T:
    """Do it again while the database is locked, for up to `busy_s`."""
    end = time.monotonic() + busy_s
    while True:
        try:
            with _naming():
                return act()
        except StoreBusy:
            if time.monotonic() >= end:
                raise
            time.sleep(0.05)


def _register(database: Database, liveness: Liveness) -> None:
    with database.writing.connect() as connection, connection.begin():
        liveness.register(connection)
