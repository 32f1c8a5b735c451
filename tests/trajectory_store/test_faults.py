"""What the store promises when the disk is full, the database locked or away, a process killed."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import LargeBinary, create_engine, event, func, select, text, update

from budwood.trajectory_store import (
    CallId,
    CallState,
    NotStored,
    RolloutId,
    Store,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreGone,
)
from budwood.trajectory_store.database import Database
from budwood.trajectory_store.tables import blob, message, tokens
from budwood.trajectory_store.testing.postgres import running_postgres

PROGRAM = Path(__file__).with_name("recording_process.py")


@contextmanager
def recording(url: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a process that records until the end of the block, then kill it; yield its rollout."""
    command = [sys.executable, str(PROGRAM), url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            said, rollout_id = process.stdout.readline().split()
            assert said == "ready"
            yield process, rollout_id
        finally:
            process.kill()


def sweep_the_dead(store: Store) -> None:
    """Sweep what a killed process left; a server takes its time to notice that one is gone."""
    end = time.monotonic() + 60
    while not store.sweep():
        assert time.monotonic() < end
        time.sleep(0.05)


@contextmanager
def locked(url: str) -> Iterator[None]:
    """Hold the lock that writers need."""
    engine = create_engine(url)
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.exec_driver_sql("LOCK TABLE counter, call IN ACCESS EXCLUSIVE MODE")
        yield
        connection.rollback()
    engine.dispose()


def test_a_record_is_seen_by_others_when_its_future_resolves(store_url: str, hand: Any) -> None:
    engine = create_engine(store_url)
    seen: list[Any] = []

    def look(future: Any) -> None:
        with engine.connect() as connection:
            query = text("SELECT seq, state FROM call WHERE seq = :seq")
            seen.append(connection.execute(query, {"seq": future.result()}).one().seq)

    intents = [hand.intent() for _ in range(40)]
    for intent in intents:
        hand.store.begin_call(intent)
    futures = [hand.store.finish_call(hand.result(i.id, [1], [2])) for i in intents]
    for future in futures:
        future.add_done_callback(look)
    hand.store.close()
    assert sorted(seen) == sorted(future.result() for future in futures)
    assert len(set(seen)) == 40
    engine.dispose()


def test_sqlite_flushes_the_disk_at_each_commit(tmp_path: Path) -> None:
    database = Database(tmp_path / "s.db", busy_s=1, read_only=False)
    with database.writing.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
    database.dispose()


def test_a_locked_database_is_waited_for_and_then_named(store_url: str, hand_of: Any) -> None:
    with Store.open(store_url, busy_s=0.3) as store:
        hand = hand_of(store)
        intent = hand.intent()
        store.begin_call(intent).result()
        with locked(store_url):
            future = store.finish_call(hand.result(intent.id, [1], [2]))
            assert isinstance(future.exception(), StoreBusy)
        store.finish_call(hand.result(intent.id, [1], [2])).result()
        assert len(store.turns_after(hand.rollout_id, 0)) == 1


def test_a_lock_that_is_let_go_in_time_costs_nothing(store_url: str, hand: Any) -> None:
    with locked(store_url):
        futures = [hand.store.begin_call(hand.intent()) for _ in range(3)]
        with pytest.raises(TimeoutError):
            futures[0].result(timeout=0.7)
    assert [future.result() for future in futures] == [None] * 3
    assert hand.store.figures.busy_retries >= 1


def test_a_full_disk_is_named_leaves_nothing_half_and_heals(tmp_path: Path, hand_of: Any) -> None:
    """SQLite's own limit on pages: the same error as a disk without space."""
    with Store.open(tmp_path / "s.db") as store:
        hand = hand_of(store)
        first = hand.call([1], [2])
        intent = hand.intent()
        store.begin_call(intent).result()
        limit = [10]

        def limited(dbapi: Any, _: Any) -> None:
            dbapi.execute(f"PRAGMA max_page_count={limit[0]}")

        engine = store._database.writing
        event.listen(engine, "connect", limited)
        # A break of the connection, as after any fault, makes the limit hold.
        store._writer._disconnect()  # pyright: ignore[reportOptionalMemberAccess]
        big = list(range(1_000_000, 1_060_000))
        failed = store.finish_call(hand.result(intent.id, big, [3]))
        assert isinstance(failed.exception(), StoreFull)
        assert store.call(intent.id).state is CallState.INTENT
        with pytest.raises(NotStored):
            store.tokens(intent.id)
        assert list(store.tokens(first).out_ids) == [2]
        limit[0] = 1_000_000
        store.finish_call(hand.result(intent.id, big, [3])).result()
        assert list(store.tokens(intent.id).prompt_ids) == big


def _delete(path: Path) -> None:
    for name in ("", "-wal", "-shm"):
        path.with_name(path.name + name).unlink(missing_ok=True)


def _replace(path: Path) -> None:
    other = path.with_name("other.db")
    Store.open(other).close()
    other.replace(path)


def _delete_log(path: Path) -> None:
    path.with_name(path.name + "-wal").unlink()


def _move_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


@pytest.mark.parametrize("harm", [_delete, _replace, _delete_log, _move_folder])
def test_no_call_is_acknowledged_into_a_file_that_is_no_longer_there(
    tmp_path: Path, hand_of: Any, harm: Callable[[Path], None]
) -> None:
    path = tmp_path / "here" / "s.db"
    with Store.open(path) as store:
        hand = hand_of(store)
        hand.call([1], [2])
        harm(path)
        for _ in range(3):
            intent = hand.intent()
            store.begin_call(intent)
            failed = store.finish_call(hand.result(intent.id, [1], [2]))
            assert isinstance(failed.exception(), StoreGone)


def test_a_log_that_another_connection_cuts_is_still_the_log(tmp_path: Path, hand_of: Any) -> None:
    with Store.open(tmp_path / "s.db") as store:
        hand = hand_of(store)
        hand.call([1], [2])
        with contextlib.closing(sqlite3.connect(tmp_path / "s.db")) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        call_id = hand.call([3], [4])
        store._writer._disconnect()  # pyright: ignore[reportOptionalMemberAccess]
        hand.call([5], [6])
        assert list(store.tokens(call_id).out_ids) == [4]


def test_postgres_that_goes_away_and_comes_back_loses_nothing(hand_of: Any) -> None:
    with running_postgres() as server, Store.open(server.database(), busy_s=30) as store:
        hand = hand_of(store)
        before = hand.call([1], [2])
        server.stop(signal.SIGQUIT)
        intent = hand.intent()
        store.begin_call(intent)
        waiting = store.finish_call(hand.result(intent.id, [1], [3]))
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.3)
        server.start()
        waiting.result()
        assert list(store.tokens(intent.id).out_ids) == [3]
        assert list(store.tokens(before).out_ids) == [2]


def test_a_killed_process_loses_no_call_that_it_acknowledged(store_url: str) -> None:
    acknowledged: list[tuple[str, int]] = []
    for n in (1, 7, 30):
        with recording(store_url) as (process, rollout_id):
            assert process.stdout is not None
            for _ in range(n):
                call_id, number = process.stdout.readline().split()
                acknowledged.append((call_id, int(number)))
            process.kill()
            for line in process.stdout:
                if line.endswith("\n"):
                    call_id, number = line.split()
                    acknowledged.append((call_id, int(number)))
        with Store.open(store_url) as store:
            sweep_the_dead(store)
            states = {call.state for call in store.calls(rollout_id)}  # pyright: ignore
            assert states <= {CallState.COMMITTED, CallState.LOST}
            for call_id, number in acknowledged:
                found = store.tokens(call_id)  # pyright: ignore
                assert list(found.out_ids) == [number] * 50
                assert len(found.prompt_ids) == 3 + 50 * (number - 1)
            assert store.sweep() == 0
    engine = create_engine(store_url)
    if engine.dialect.name == "sqlite":
        with engine.connect() as connection:
            assert connection.execute(text("PRAGMA integrity_check")).scalar() == "ok"
    engine.dispose()


def test_two_processes_share_a_store_and_sweep_only_the_dead(store_url: str, hand_of: Any) -> None:
    with Store.open(store_url) as store, recording(store_url) as (process, rollout_id):
        hand = hand_of(store)
        assert process.stdout is not None
        mine = [hand.call([1], [2]) for _ in range(5)]
        theirs = [process.stdout.readline().split()[0] for _ in range(5)]
        open_intent = hand.intent()
        store.begin_call(open_intent).result()
        assert store.sweep() == 0
        with Store.open(store_url) as third:
            assert third.sweep() == 0
        process.kill()
        process.wait()
        sweep_the_dead(store)
        calls = store.calls(rollout_id)  # pyright: ignore[reportArgumentType]
        assert {call.state for call in calls} == {CallState.COMMITTED, CallState.LOST}
        assert store.call(open_intent.id).state is CallState.INTENT
        seqs = {store.call(c).seq for c in [*mine, *theirs]}  # pyright: ignore
        assert len(seqs) == 10


def test_calls_seen_after_a_seq_are_never_overtaken(store_url: str, hand_of: Any) -> None:
    """A reader that remembers the highest seq it saw misses no call, whoever writes."""
    with Store.open(store_url) as first, Store.open(store_url) as second:
        hand = hand_of(first)
        other = type(hand)(second, hand.rollout_id)
        hand.call([1], [2])
        seen: list[str] = []
        ended = threading.Event()

        def read() -> None:
            last = 0
            while True:
                is_last = ended.is_set()
                for turn in first.turns_after(hand.rollout_id, last):
                    seen.append(turn.id)
                    last = turn.seq
                if is_last:
                    return

        reader = threading.Thread(target=read)
        reader.start()
        lane = hand.lane()
        other.lanes[lane.kind] = lane
        futures = []
        for _ in range(40):
            for who in (hand, other):
                intent = who.intent()
                who.store.begin_call(intent)
                futures.append(who.store.finish_call(who.result(intent.id, [1], [2])))
        for future in futures:
            future.result()
        ended.set()
        reader.join()
        assert len(seen) == len(set(seen)) == 81


FIXTURES = [HealthCheck.function_scoped_fixture]
CHECKED = [
    (t, c)
    for t in (blob, message, tokens)
    for c in t.c
    if isinstance(c.type, LargeBinary) and c.name not in ("digest", "parent")
]


@settings(max_examples=60, deadline=None, suppress_health_check=FIXTURES)
@given(
    place=st.sampled_from(CHECKED),
    row=st.integers(0, 2**16),
    byte=st.integers(0, 2**16),
    change=st.integers(1, 255),
)
def test_a_damaged_byte_is_found_never_returned(
    store_url: str, hand: Any, place: Any, row: int, byte: int, change: int
) -> None:
    first = hand.call(list(range(500)), [7] * 40)
    second = hand.call(
        [*range(500), *[7] * 40, 5], [8] * 40, prompt_base=first, prompt_common=540, parent=first
    )
    bodies = {c: hand.store.request_body(c) for c in (first, second)}
    table, column = place
    engine = create_engine(store_url)
    key = next(iter(table.primary_key.columns))
    with engine.begin() as connection:
        query = select(key, column).where(column.is_not(None), func.length(column) > 0)
        found = sorted(tuple(r) for r in connection.execute(query))
        name, old = found[row % len(found)]
        damaged = bytearray(old)
        damaged[byte % len(old)] ^= change
        values = {column.name: bytes(damaged)}
        connection.execute(update(table).where(key == name).values(values))
    try:
        for call_id, out in ((first, [7] * 40), (second, [8] * 40)):
            with contextlib.suppress(StoreCorrupt):
                assert hand.store.request_body(call_id) == bodies[call_id]
            with contextlib.suppress(StoreCorrupt):
                assert list(hand.store.tokens(call_id).out_ids) == out
            with contextlib.suppress(StoreCorrupt):
                assert hand.store.call(call_id).id == call_id
    finally:
        where = key == (bytes(damaged) if column is key else name)
        with engine.begin() as connection:
            connection.execute(update(table).where(where).values({column.name: old}))
        engine.dispose()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE call SET state = 'weird'",
        "UPDATE call SET prompt_mode = 'weird'",
        "UPDATE call SET failure_class = 'weird'",
        "UPDATE call SET reasons = '{bad'",
        "UPDATE rollout SET labels = '{'",
        "UPDATE rollout SET created_at = 'yesterday'",
        "UPDATE lane SET kind = 'odd'",
        "UPDATE run SET history = 'odd'",
        "DELETE FROM lane",
    ],
)
def test_a_value_that_was_never_written_is_named_as_damage(
    tmp_path: Path, hand_of: Any, damage: str
) -> None:
    path = tmp_path / "s.db"
    with Store.open(path) as store:
        hand = hand_of(store)
        call_id = hand.call([1], [2])
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute(damage)
        other.commit()
    with Store.open(path) as store, pytest.raises(StoreCorrupt):
        _read_all(store, hand.rollout_id, call_id)


def _read_all(store: Store, rollout_id: RolloutId, call_id: CallId) -> None:
    store.call(call_id)
    store.run(store.rollout(rollout_id).run_id)
    store.lanes(rollout_id)
    store.turns_after(rollout_id, 0)


def test_a_store_made_before_a_fork_refuses_to_write_after(store: Store) -> None:
    writer = store._writer
    assert writer is not None
    writer._pid = os.getpid() + 1  # what a child of fork sees
    with pytest.raises(StoreError, match="fork"):
        store.open_run("child")
    writer._pid = os.getpid()
