"""A hand that records: makes intents and results with as little said as a test needs."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import pytest

from budwood.trajectory_store import (
    CallId,
    CallIntent,
    CallResult,
    CallState,
    Lane,
    LaneKind,
    RequestBody,
    RolloutId,
    Store,
    new_call_id,
    new_lane_id,
)

ENVELOPE = b'{"model":"m","messages":[\x00]}'


def body_of(*messages: bytes) -> RequestBody:
    """Return a body with these messages."""
    return RequestBody.from_parts(ENVELOPE, messages)


@dataclass
class Hand:
    """Records calls of one rollout."""

    store: Store
    rollout_id: RolloutId
    lanes: dict[LaneKind, Lane] = field(default_factory=dict[LaneKind, Lane])
    full: dict[CallId, array[int]] = field(default_factory=dict[CallId, "array[int]"])

    def lane(self, kind: LaneKind = LaneKind.MAIN) -> Lane:
        """Return the rollout's lane of a kind."""
        if kind not in self.lanes:
            lane = Lane(
                id=new_lane_id(),
                rollout_id=self.rollout_id,
                kind=kind,
                created_at=datetime.now(UTC),
            )
            self.lanes[kind] = lane
        return self.lanes[kind]

    def intent(self, body: RequestBody | bytes | None = None, **kw: Any) -> CallIntent:
        """Return an intent."""
        body = body_of(b'{"role":"user","content":"hi"}') if body is None else body
        joined = body if isinstance(body, bytes) else body.join()
        values: dict[str, Any] = {
            "id": new_call_id(),
            "rollout_id": self.rollout_id,
            "dialect": "chat",
            "lane": self.lane().id,
            "body_hash": sha256(joined).digest(),
            "body": body,
        }
        return CallIntent(**values | kw)

    def result(
        self,
        call_id: CallId,
        prompt: list[int] | None = None,
        out: list[int] | None = None,
        **kw: Any,
    ) -> CallResult:
        """Return a result, exact where it has ids; `base` defaults to the parent."""
        values: dict[str, Any] = {"id": call_id, "state": CallState.COMMITTED, "lane": self.lane()}
        if prompt is not None:
            sampled = array("I", out or [])
            values |= {
                "prompt_ids": array("I", prompt),
                "out_ids": sampled,
                "logprobs": array("f", [-0.5] * len(sampled)),
                "exact": True,
            }
        return CallResult(**values | kw)

    def call(
        self,
        prompt: list[int] | None = None,
        out: list[int] | None = None,
        body: RequestBody | bytes | None = None,
        **kw: Any,
    ) -> CallId:
        """Record a call from intent to `delivered`, or to the state given; return its id."""
        intent = self.intent(body)
        self.store.begin_call(intent)
        state = kw.pop("state", CallState.DELIVERED)
        done = self.result(intent.id, prompt, out, **kw)
        final = state in (CallState.DELIVERED, CallState.UNDELIVERED)
        self.store.finish_call(
            replace(done, state=CallState.COMMITTED if final else state)
        ).result()
        if final:
            self.store.mark(intent.id, state).result()
        return intent.id


@pytest.fixture
def hand_of() -> Callable[[Store], Hand]:
    """Open a rollout in a store and give a hand that records in it."""

    def make(store: Store) -> Hand:
        return Hand(store, store.open_rollout(store.open_run("r").id).id)

    return make


@pytest.fixture
def hand(store: Store, hand_of: Callable[[Store], Hand]) -> Hand:
    """A hand that records in an empty store, on each database in turn."""
    return hand_of(store)
