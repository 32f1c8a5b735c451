"""What the trajectory store costs: `python -m bench.store [--database sqlite|postgresql|both]`.

Bytes against layout A (whole request and response, ids and logprobs as JSON, a row a turn) over
the same growing session; durable turns a second with many writers; the time to read a session.
Goals are printed beside the figures; nothing fails on a figure.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from sqlalchemy import create_engine, text

from budwood.trajectory_store import (
    CallId,
    CallIntent,
    CallResult,
    CallState,
    Lane,
    RequestBody,
    RolloutId,
    Store,
    new_call_id,
    new_lane_id,
)
from budwood.trajectory_store.testing.postgres import running_postgres

from .growing_session import Session, SessionTurn

ENVELOPE = b'{"model":"m","messages":[\x00],"tools":\x01,"stream":true}'
PAYLOAD = {
    "blob": "length(hash) + length(packed)",
    "message": "length(hash) + coalesce(length(parent), 0) + length(blob) + 6",
    "tokens": "length(suffix) + length(out) + length(logprobs) + length(checksum) + 24",
    "call": "300 + coalesce(length(reply), 0) + coalesce(length(separators), 0)",
}
"""Bytes of content in a row of each table; a call's many small columns are put at 300."""


class Recorder:
    """Records one session's turns as the proxy would."""

    def __init__(self, store: Store, rollout_id: RolloutId) -> None:
        """Record into a rollout."""
        self._store = store
        self._rollout_id = rollout_id
        self._lane = Lane(id=new_lane_id(), rollout_id=rollout_id, created_at=datetime.now(UTC))
        self._parent: CallId | None = None
        self._turn = 0

    def record(self, turn: SessionTurn) -> None:
        """Record a turn and wait until it is durable."""
        call_id = new_call_id()
        body = RequestBody.from_parts(ENVELOPE, turn.messages, None, turn.tools)
        self._store.begin_call(
            CallIntent(
                id=call_id,
                rollout_id=self._rollout_id,
                dialect="chat",
                lane=self._lane.id,
                parent=self._parent,
                body_hash=sha256(call_id.encode()).digest(),
                body=body,
                stream=True,
                asked_model="m",
                client={"user-agent": "bench"},
                message_digests=b"".join(sha256(m).digest()[:16] for m in turn.messages[-2:]),
            )
        )
        done = self._store.finish_call(
            CallResult(
                id=call_id,
                state=CallState.COMMITTED,
                lane=self._lane,
                parent=self._parent,
                turn_index=self._turn,
                exact=True,
                sampling={"temperature": 1.0, "top_p": 1, "top_k": 0, "max_tokens": 4096},
                usage={
                    "prompt_tokens": len(turn.prompt_ids),
                    "completion_tokens": len(turn.out_ids),
                },
                finish="tool_calls",
                stop_id=1,
                engine="vllm 0.32.0",
                template_hash="a" * 64,
                tokenizer_hash="b" * 64,
                timings={"queue": 0.1, "render": 4.2, "first_token": 180.5, "total": 2210.3},
                prompt_ids=turn.prompt_ids,
                prompt_base=self._parent,
                prompt_common=turn.common,
                out_ids=turn.out_ids,
                logprobs=turn.logprobs,
                reply=turn.reply,
                reply_digest=b"r" * 16,
                chain_key=call_id[:16].encode(),
                template_key=b"t" * 16,
            )
        )
        done.result()
        self._store.mark(call_id, CallState.DELIVERED)
        self._parent, self._turn = call_id, self._turn + 1


def naive_bytes(turns: list[SessionTurn]) -> int:
    """Return the bytes of layout A: a JSON row a turn."""
    total = 0
    for turn in turns:
        response = {
            "choices": [{"message": turn.reply, "token_ids": list(turn.out_ids)}],
            "logprobs": [round(x, 6) for x in turn.logprobs],
            "prompt_token_ids": list(turn.prompt_ids),
        }
        total += len(turn.request()) + len(json.dumps(response, separators=(",", ":")))
    return total


def payload_bytes(store_url: str) -> dict[str, int]:
    """Return the bytes of content by table."""
    engine = create_engine(store_url)
    with engine.connect() as connection:
        found = {
            table: int(connection.execute(text(f"SELECT sum({size}) FROM {table}")).scalar() or 0)
            for table, size in PAYLOAD.items()
        }
    engine.dispose()
    return found


def file_bytes(store_url: str) -> int:
    """Return the size of the database on disk, write-ahead log folded in."""
    engine = create_engine(store_url)
    query = (
        "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
        if engine.dialect.name == "sqlite"
        else "SELECT pg_database_size(current_database())"
    )
    with engine.connect() as connection:
        size = int(connection.execute(text(query)).scalar_one())
    engine.dispose()
    return size


def measure_size(url: str, n_turns: int, goal: str) -> None:
    """Print bytes against layout A, and the time to read the session again."""
    turns = list(Session().turns(n_turns))
    naive = naive_bytes(turns)
    with Store.open(url) as store:
        empty = file_bytes(url)
        rollout = store.open_rollout(store.open_run("bench").id)
        recorder = Recorder(store, rollout.id)
        began = time.process_time()
        for turn in turns:
            recorder.record(turn)
        cpu_ms = (time.process_time() - began) / n_turns * 1000
        calls = store.calls(rollout.id)
        wrong = sum(
            store.request_body(c.id) != t.request() for c, t in zip(calls, turns, strict=True)
        )
        began = time.perf_counter()
        n_ids = sum(len(t.prompt_ids) + len(t.out_ids) for _, t in store.rollout_tokens(rollout.id))
        read_ms = (time.perf_counter() - began) * 1000
        began = time.perf_counter()
        rows = store.sequences(rollout.id)
        rows_ms = (time.perf_counter() - began) * 1000
    parts = payload_bytes(url)
    kept, disk = sum(parts.values()), file_bytes(url)
    print(f"  {n_turns} turns, {len(turns[-1].prompt_ids)} tokens at the end")
    print(f"    layout A           {naive / 1e6:9.2f} MB")
    print(
        f"    this store         {kept / 1e6:9.3f} MB = {kept / naive:.2%} of A (goal {goal}), "
        f"{kept / n_turns:.0f} bytes a turn"
    )
    print("    of which           " + ", ".join(f"{k} {v // 1000} kB" for k, v in parts.items()))
    print(f"    on disk            {(disk - empty) / 1e6:9.3f} MB beyond an empty database")
    print(f"    bodies that differ {wrong:9d} of {n_turns}")
    print(f"    CPU a turn         {cpu_ms:9.2f} ms, one writer")
    print(f"    read all ids       {read_ms:9.1f} ms for {n_ids / 1e6:.1f} M ids (goal 150 at 200)")
    print(
        f"    training rows      {rows_ms:9.1f} ms, {len(rows)} row of {rows[0].n_trained} trained"
    )


def measure_rate(url: str, writers: int, seconds: float) -> None:
    """Print durable turns a second, each writer waiting for each of its turns."""
    made = [list(Session(seed).turns(12)) for seed in range(4)]
    counts = [0] * writers
    with Store.open(url) as store:
        run = store.open_run("bench")
        recorders = [Recorder(store, store.open_rollout(run.id).id) for _ in range(writers)]
        ready = threading.Barrier(writers + 1)
        ended = threading.Event()

        def write(i: int) -> None:
            turns = made[i % len(made)]
            ready.wait()
            while not ended.is_set():
                for turn in turns:
                    if ended.is_set():
                        return
                    recorders[i].record(turn)
                    counts[i] += 1
                recorders[i] = Recorder(store, store.open_rollout(run.id).id)

        threads = [threading.Thread(target=write, args=(i,)) for i in range(writers)]
        for thread in threads:
            thread.start()
        ready.wait()
        before, began, cpu = store.figures.commits, time.perf_counter(), time.process_time()
        time.sleep(seconds)
        total, took = sum(counts), time.perf_counter() - began
        cpu = time.process_time() - cpu
        commits = store.figures.commits - before
        ended.set()
        for thread in threads:
            thread.join()
    print(
        f"  {writers} writers: {total / took:,.0f} durable turns/s, {commits / took:.0f} commits/s,"
        f" {cpu / total * 1e6:.0f} us of CPU a turn"
    )


@contextmanager
def databases(which: str) -> Iterator[dict[str, Iterator[str]]]:
    """Yield an endless supply of URLs of empty databases, by kind."""

    def files(folder: str) -> Iterator[str]:
        n = 0
        while True:
            n += 1
            yield f"sqlite:///{Path(folder) / f'{n}.db'}"

    with tempfile.TemporaryDirectory(prefix="bench-store-", dir=".") as folder:
        found: dict[str, Iterator[str]] = {}
        if which in ("sqlite", "both"):
            found["sqlite"] = files(folder)
        if which in ("postgresql", "both"):
            with running_postgres() as server:
                found["postgresql"] = iter(server.database, "")
                yield found
        else:
            yield found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", choices=["sqlite", "postgresql", "both"], default="both")
    parser.add_argument("--writers", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    asked = parser.parse_args()
    with databases(asked.database) as found:
        for kind, urls in found.items():
            goal = {"sqlite": 1000, "postgresql": 600}[kind]
            print(f"{kind}: durable turns a second (goal {goal:,})")
            measure_rate(next(urls), asked.writers, asked.seconds)
            measure_rate(next(urls), 1, min(asked.seconds, 2.0))
            if kind == "sqlite":
                print("sqlite: bytes and reading")
                measure_size(next(urls), 50, "3 %")
                measure_size(next(urls), 200, "1.2 %")


if __name__ == "__main__":
    main()
