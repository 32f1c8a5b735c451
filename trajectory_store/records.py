"""The records: what a run, a rollout, a lane and a call say. Frozen values, no database in them.

A call lives through these states; only the last of a line is final:

    intent → streaming → committed → delivered      the client got the terminal part
                                   → undelivered    complete, but its client had gone
                       → aborted                    cut by the client
                       → failed                     the engine or we failed
    intent → lost                                   its process died before the result was durable
    synthetic                                       answered by us, no engine asked

Times are aware and UTC. Arrays are `array('I')` for token ids and `array('f')` for logprobs.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from .bodies import RequestBody
from .ids import CallId, LaneId, RolloutId, RunId
from .outcome import FailureClass

SCHEMA_VERSION = 1
"""Of the records as stored; rises when a field changes its meaning."""


class CallState(StrEnum):
    """Where a call is in its life; the picture is above."""

    INTENT = "intent"
    STREAMING = "streaming"
    COMMITTED = "committed"
    DELIVERED = "delivered"
    UNDELIVERED = "undelivered"
    ABORTED = "aborted"
    FAILED = "failed"
    LOST = "lost"
    SYNTHETIC = "synthetic"

    @property
    def is_complete(self) -> bool:
        """True where the whole generation is recorded: such a call can be a parent."""
        return self in COMPLETE

    @property
    def is_open(self) -> bool:
        """True where no result is recorded yet."""
        return self in (CallState.INTENT, CallState.STREAMING)


COMPLETE = frozenset({CallState.COMMITTED, CallState.DELIVERED, CallState.UNDELIVERED})


class PromptMode(StrEnum):
    """Whose tokens the prompt is made of."""

    SPLICED = "spliced"
    """The parent's recorded tokens, its sampled tokens, and a suffix."""
    RENDERED = "rendered"
    """A whole render, sent by us as ids."""
    ENGINE_RENDERED = "engine_rendered"
    """No ids sent; those that the engine returned are the record."""


class LaneKind(StrEnum):
    """What a conversation is for."""

    MAIN = "main"
    SUB_AGENT = "sub-agent"
    SIDE = "side"


class Purpose(StrEnum):
    """What a run is recorded for."""

    TRAIN = "train"
    EVAL = "eval"
    RECORD = "record"


class History(StrEnum):
    """What the model reads of its own past."""

    AS_SENT = "as-sent"
    KEEP_REASONING = "keep-reasoning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A named batch of rollouts with its configuration."""

    id: RunId
    name: str
    purpose: Purpose = Purpose.RECORD
    history: History = History.AS_SENT
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    versions: dict[str, Any] = field(default_factory=dict[str, Any])
    seed: int | None = None
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One attempt at one task by one harness with one model."""

    id: RolloutId
    run_id: RunId
    group_id: str | None = None
    attempt: int = 0
    task: str | None = None
    harness: str | None = None
    harness_version: str | None = None
    model: str | None = None
    key_hash: bytes | None = None
    """SHA-256 of the secret that names this rollout; the secret itself is never stored."""
    state: str = "open"
    """`open` or `closed`."""
    labels: dict[str, Any] = field(default_factory=dict[str, Any])
    budgets: dict[str, Any] = field(default_factory=dict[str, Any])
    created_at: datetime
    expires_at: datetime | None = None
    closed_at: datetime | None = None
    replay_of: RolloutId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One agent's conversation."""

    id: LaneId
    rollout_id: RolloutId
    kind: LaneKind = LaneKind.MAIN
    segment: int = 0
    """The n-th conversation of the same agent, after compaction."""
    parent_lane: LaneId | None = None
    created_at: datetime
    offers_tools: bool = False
    """Whether its first call offered tools."""
    agent_key: bytes = b""
    """Digest of its system text and tools: equal for segments of the same agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallIntent:
    """What is known before the engine is asked."""

    id: CallId
    rollout_id: RolloutId
    dialect: str
    lane: LaneId
    parent: CallId | None = None
    prompt_mode: PromptMode | None = None
    body_hash: bytes
    body: RequestBody | bytes
    stream: bool = False
    asked_model: str | None = None
    client: dict[str, Any] = field(default_factory=dict[str, Any])
    """Headers worth keeping; never a credential."""
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    message_digests: bytes = b""
    """16 bytes a request message, canonical; may come with the result instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """What is known when a call has ended; lane and parent are final here."""

    id: CallId
    state: CallState
    lane: Lane
    parent: CallId | None = None
    turn_index: int = 0
    prompt_mode: PromptMode | None = None
    exact: bool = False
    reasons: tuple[str, ...] = ()
    sampling: dict[str, Any] = field(default_factory=dict[str, Any])
    """As sent to the engine."""
    usage: dict[str, Any] | None = None
    finish: str | None = None
    stop_id: int | None = None
    policy_before: int | None = None
    policy_after: int | None = None
    policy_label: str | None = None
    """The engine's own string for its weights."""
    engine: str | None = None
    template_hash: str | None = None
    tokenizer_hash: str | None = None
    template_key: bytes | None = None
    """Lineage's key of tools and template arguments, 16 bytes."""
    timings: dict[str, float] = field(default_factory=dict[str, float])
    """Milliseconds: queue, render, first_token, total."""
    flags: tuple[str, ...] = ()
    prompt_ids: array[int] | None = None
    prompt_base: CallId | None = None
    prompt_common: int = 0
    """`prompt_ids[:prompt_common]` equals the same of the base's prompt + output; the store
    verifies it and keeps a whole snapshot where it is not so."""
    out_ids: array[int] | None = None
    logprobs: array[float] | None = None
    """Parallel to `out_ids`; None where the engine gave none."""
    reply: dict[str, Any] | None = None
    """The assistant message in canonical JSON:
    {role, content, reasoning, tool_calls: [{id, engine_id, name, arguments}]}."""
    reply_digest: bytes | None = None
    chain_key: bytes | None = None
    """Lineage's key of request + reply, 16 bytes."""
    bare_key: bytes | None = None
    """The same key with reasoning left out."""
    edit_of: CallId | None = None
    """The call whose conversation the harness edited: not a parent, nothing is echoed by it."""
    lane_updates: tuple[Lane, ...] = ()
    """Other lanes whose kind is seen differently now; written in the same commit."""
    raw_reply: bytes | None = None
    failure_class: FailureClass = FailureClass.NONE
    cause: str | None = None
    message_digests: bytes = b""
    """16 bytes a request message, canonical."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A complete call with ids, as lineage needs it."""

    id: CallId
    seq: int
    lane: Lane
    parent: CallId | None
    turn_index: int
    chain_key: bytes | None
    bare_key: bytes | None
    reply_digest: bytes | None
    reply: dict[str, Any] | None
    finish: str | None
    stop_id: int | None
    state: CallState
    exact: bool
    n_prompt: int
    n_out: int
    n_messages: int
    flags: frozenset[str]
    template_key: bytes | None
    body_hash: bytes
    template_hash: str | None = None
    """What the engine made of a fixed conversation when it read this one; None: not known."""
    tokenizer_hash: str | None = None
    """The same for a fixed text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Everything recorded of a call except its arrays and bodies."""

    id: CallId
    rollout_id: RolloutId
    seq: int | None
    """The order of results in this store; None while open or lost."""
    state: CallState
    dialect: str
    lane: LaneId
    parent: CallId | None
    edit_of: CallId | None
    turn_index: int
    prompt_mode: PromptMode | None
    exact: bool
    reasons: tuple[str, ...]
    body_hash: bytes
    body_size: int
    n_messages: int
    stream: bool
    asked_model: str | None
    client: dict[str, Any]
    sampling: dict[str, Any]
    usage: dict[str, Any] | None
    finish: str | None
    stop_id: int | None
    policy_before: int | None
    policy_after: int | None
    policy_label: str | None
    engine: str | None
    template_hash: str | None
    tokenizer_hash: str | None
    template_key: bytes | None
    timings: dict[str, float]
    flags: frozenset[str]
    """What the proxy said of it, and `secret` where the content scan found one."""
    echoed: bool
    n_prompt: int | None
    n_out: int | None
    has_logprobs: bool
    reply: dict[str, Any] | None
    reply_digest: bytes | None
    chain_key: bytes | None
    failure_class: FailureClass
    cause: str | None
    created_at: datetime
    finished_at: datetime | None

    @property
    def has_ids(self) -> bool:
        """True where token ids of prompt and output are stored."""
        return self.n_prompt is not None

    @property
    def is_delivered(self) -> bool:
        """True where the harness has the answer, or has shown in a later call that it has."""
        return self.state is CallState.DELIVERED or self.echoed


@dataclass(frozen=True, slots=True)
class Tokens:
    """A call's arrays."""

    prompt_ids: array[int]
    out_ids: array[int]
    logprobs: array[float]
    """Parallel to `out_ids`; NaN where the engine gave none."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """Where one call's output stands in a sequence: `[start_out, end_out)`."""

    call_id: CallId
    start_out: int
    end_out: int
    policy: int | None
    """The version that sampled it; None where unknown or mixed."""
    is_trained: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """Token ids along one branch of a lane; the first three arrays are per token and parallel."""

    rollout_id: RolloutId
    lane: Lane
    branch: int
    call_ids: tuple[CallId, ...]
    input_ids: array[int]
    loss_mask: bytes
    """1 on tokens to train, else 0."""
    logprobs: array[float]
    """NaN where a token was not sampled."""
    calls: tuple[Boundary, ...]
    is_exact: bool
    """Whether all that is trained is: the engine read the tokens before it, and sampled it."""
    dropped: dict[str, int]
    """Calls of this branch whose output is not trained here, by reason."""

    @property
    def n_trained(self) -> int:
        """How many tokens have loss mask 1."""
        return self.loss_mask.count(1)
