"""How a call becomes durable records: intent, result, delivery (`proxy.md` 8 and 10).

The result is the only record that is waited for: `finish` returns once the store says it is on
disk. What could not be recorded (the database locked or full) is kept, bounded, and recorded as
failed with class `store` once the store answers again; such a call was never acknowledged.
"""

import asyncio
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass

import structlog

from budwood.trajectory_store import (
    CallId,
    CallIntent,
    CallResult,
    CallState,
    NotWritten,
    Store,
    StoreError,
)
from budwood.trajectory_store.bodies import RequestBody

log = structlog.get_logger()

MAX_UNRECORDED = 10_000
"""Calls kept in memory while the store refuses them; beyond it the oldest are only counted."""

MAX_UNRECORDED_BYTES = 256 * 2**20
"""The same for the requests that are kept with them."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A result that waits for the store, and its intent where that is not written either."""

    result: CallResult
    intent: CallIntent | None

    @property
    def size_bytes(self) -> int:
        body = self.intent.body if self.intent is not None else b""
        if isinstance(body, RequestBody):
            slices = (body.envelope, body.tools or b"", *body.messages)
            return sum(map(len, slices))
        return len(body)


class Ledger:
    """The proxy's one way to write calls."""

    def __init__(self, store: Store) -> None:
        """Write through `store`, which the caller owns and closes."""
        self._store = store
        self._unrecorded: deque[_Kept] = deque()
        self._unrecorded_bytes = 0
        self._lock = threading.Lock()
        self._intents: dict[CallId, CallIntent] = {}
        """Intents that are not known to be written."""
        self._pending: set[Future] = set()
        self.n_forgotten = 0

    def intend(self, intent: CallIntent) -> None:
        """Write down that a call is about to be made; not waited for, ordered before its result."""
        self._intents[intent.id] = intent
        begun = self._store.begin_call(intent)
        begun.add_done_callback(lambda done: self._begun(intent, done))
        self._watch(begun, "intent")

    async def finish(self, result: CallResult) -> int:
        """Make a result durable; returns its sequence number. Raises StoreError."""
        try:
            seq = await asyncio.wrap_future(self._store.finish_call(result))
        except NotWritten:
            intent = self._intents.get(result.id)
            if intent is None:
                raise
            # The intent met a busy store, the result does not: now both can be written.
            self.intend(intent)
            seq = await asyncio.wrap_future(self._store.finish_call(result))
        if self._unrecorded:
            self._retry()
        return seq

    def mark(self, call_id: CallId, state: CallState) -> None:
        """Note a delivery state; not waited for."""
        self._watch(self._store.mark(call_id, state), state.value)

    def remember(self, result: CallResult) -> None:
        """Keep a result that could not be recorded, for when the store answers again."""
        self._keep(_Kept(result, self._intents.pop(result.id, None)))

    async def flushed(self) -> None:
        """Return once everything handed over so far has been written or refused."""
        # A copy, made in one step: the writer thread takes its futures out of the set.
        pending = [asyncio.wrap_future(future) for future in list(self._pending)]
        await asyncio.gather(*pending, return_exceptions=True)

    async def settle(self) -> None:
        """Try once more to record what is kept; used at shutdown. Never raises."""
        while self._unrecorded:
            kept = self._take()
            try:
                await asyncio.wrap_future(self._record(kept))
            except NotWritten:
                self.n_forgotten += 1
            except StoreError as error:
                n_calls = len(self._unrecorded) + 1
                log.error("calls not recorded", n_calls=n_calls, error=str(error))
                return

    def _retry(self) -> None:
        for _ in range(len(self._unrecorded)):
            kept = self._take()
            self._watch(self._record(kept), "unrecorded", kept=kept)

    def _record(self, kept: _Kept) -> Future[int]:
        if kept.intent is not None:
            self.intend(kept.intent)
        return self._store.finish_call(kept.result)

    def _begun(self, intent: CallIntent, done: Future) -> None:
        if not done.cancelled() and done.exception() is None:
            self._intents.pop(intent.id, None)

    def _keep(self, kept: _Kept) -> None:
        with self._lock:  # the writer's thread keeps what failed again
            self._unrecorded.append(kept)
            self._unrecorded_bytes += kept.size_bytes
        while self._unrecorded and (
            len(self._unrecorded) > MAX_UNRECORDED or self._unrecorded_bytes > MAX_UNRECORDED_BYTES
        ):
            self._take()
            self.n_forgotten += 1

    def _take(self) -> _Kept:
        with self._lock:
            kept = self._unrecorded.popleft()
            self._unrecorded_bytes -= kept.size_bytes
            return kept

    def _watch(self, future: Future, what: str, kept: _Kept | None = None) -> None:
        """Log a failed write that nobody waits for; its call's own commit will fail likewise."""

        def done(finished: Future) -> None:
            self._pending.discard(finished)
            error = None if finished.cancelled() else finished.exception()
            if error is None:
                return
            log.warning("store write failed", what=what, error=str(error))
            if kept is not None and isinstance(error, NotWritten):
                self.n_forgotten += 1  # asking again would be refused again
            elif kept is not None:
                self.remember(kept.result)

        self._pending.add(future)
        future.add_done_callback(done)
