"""From what the proxy says to rows: hashing, compressing and comparing, before any transaction.

A `Batch` is what one commit writes. Planning touches no table (but a base's ids may be read where
they are not remembered); `writing` puts a batch into the database.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from .bodies import RequestBody
from .ids import CallId, LaneId, RolloutId
from .packing import HASH_SIZE, content_hash, pack
from .recent import Chain, ReadPath, Recent
from .records import CallIntent, CallResult, Lane
from .secrets import FLAG, SecretScanner
from .tables import dump_json
from .tokens import ID_BYTES, Path, Planned, plan, to_bytes

Row = dict[str, Any]


@dataclass(slots=True)
class Batch:
    """The rows of one commit, in the order in which they can be written."""

    blobs: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    messages: dict[bytes, Row] = field(default_factory=dict[bytes, Row])
    calls: list[Row] = field(default_factory=list[Row])
    digests: list[Row] = field(default_factory=list[Row])
    lanes: dict[LaneId, Lane] = field(default_factory=dict[LaneId, Lane])
    results: list[Row] = field(default_factory=list[Row])
    tokens: list[tuple[int, Planned]] = field(default_factory=list[tuple[int, Planned]])
    """With the index of the result that each belongs to."""
    after: list[Callable[[Batch], None]] = field(default_factory=list[Callable[["Batch"], None]])
    """To be called once the commit is durable."""


@dataclass(frozen=True, slots=True)
class _Open:
    rollout_id: RolloutId
    has_secret: bool
    chain: Chain | None = None


class Planner:
    """Plans rows with the help of what it remembers; used by the writer's thread alone."""

    def __init__(
        self,
        recent: Recent,
        scanner: SecretScanner,
        writer_id: int,
        read_path: ReadPath,
    ) -> None:
        """Plan for one writer."""
        self._recent = recent
        self._scanner = scanner
        self._writer_id = writer_id
        self._read_path = read_path
        self._open: dict[CallId, _Open] = {}
        self._lanes: dict[LaneId, Lane] = {}
        self._frames: dict[bytes, bool] = {}

    def begin(self, batch: Batch, intent: CallIntent) -> None:
        """Add an intent with its request to the batch."""
        body = intent.body
        row = {
            "id": intent.id,
            "rollout_id": intent.rollout_id,
            "writer": self._writer_id,
            "state": "intent",
            "dialect": intent.dialect,
            "lane": intent.lane,
            "parent": intent.parent,
            "turn_index": 0,
            "prompt_mode": intent.prompt_mode,
            "exact": False,
            "body_hash": intent.body_hash,
            "stream": intent.stream,
            "asked_model": intent.asked_model,
            "client": self._blob(batch, dump_json(intent.client)),
            "echoed": False,
            "has_logprobs": False,
            "failure_class": "none",
            "created_at": intent.created_at,
        }
        if isinstance(body, RequestBody):
            opened = self._cut_body(batch, row, body, intent)
        else:
            row |= {"envelope": self._blob(batch, body), "body_size": len(body)}
            row |= {
                "tools": None,
                "message": None,
                "n_messages": None,
                "separators": None,
            }
            opened = _Open(intent.rollout_id, self._scanner.in_json(body))
        batch.calls.append(row)
        self._open[intent.id] = opened

    def forget_call(self, call_id: CallId) -> None:
        """Let go of an intent that did not make it."""
        self._open.pop(call_id, None)

    def _cut_body(self, batch: Batch, row: Row, body: RequestBody, intent: CallIntent) -> _Open:
        chain = self._chain(batch, intent.rollout_id, body.messages, intent.message_digests)
        envelope = self._blob(batch, body.envelope)
        tools = b"" if body.tools is None else self._blob(batch, body.tools)
        has_secret = (
            chain.first_secret is not None
            or self._frame_has_secret(envelope, body.envelope)
            or (body.tools is not None and self._frame_has_secret(tools, body.tools))
        )
        pieces = body.separators
        row |= {
            "envelope": envelope,
            "tools": tools or None,
            "message": chain.nodes[-1] if chain.nodes else None,
            "n_messages": len(chain.nodes),
            "separators": None if pieces is None else pack_separators(pieces),
            "body_size": body_size(body),
        }
        return _Open(intent.rollout_id, has_secret, chain)

    def _frame_has_secret(self, name: bytes, data: bytes) -> bool:
        """Scan what comes with every call once only."""
        known = self._frames.get(name)
        if known is None:
            if len(self._frames) > 1 << 12:
                self._frames.clear()
            known = self._frames[name] = self._scanner.in_json(data)
        return known

    def _chain(
        self,
        batch: Batch,
        rollout_id: RolloutId,
        messages: tuple[bytes, ...],
        digests: bytes,
    ) -> Chain:
        known, shared = self._recent.longest_chain(rollout_id, messages)
        nodes = list(known.nodes[:shared])
        first = known.first_secret
        first = first if first is not None and first < shared else None
        for i in range(shared, len(messages)):
            raw = messages[i]
            if first is None and self._scanner.in_json(raw):
                first = i
            parent = nodes[-1] if nodes else None
            content = self._blob(batch, raw)
            node = content_hash(parent or b"", content)
            nodes.append(node)
            if not self._recent.is_known(node):
                batch.messages[node] = {
                    "hash": node,
                    "parent": parent,
                    "blob": content,
                    "depth": i,
                    "has_secret": first is not None,
                    "digest": digests[HASH_SIZE * i : HASH_SIZE * (i + 1)] or None,
                }
        chain = Chain(
            known.messages[:shared] + messages[shared:],
            tuple(nodes),
            first,
            min(known.digested, shared),
        )
        self._digest(batch, rollout_id, chain, digests)
        return chain

    def _digest(self, batch: Batch, rollout_id: RolloutId, chain: Chain, digests: bytes) -> None:
        """Give rows their digests, where they were written without."""
        n = min(len(digests) // HASH_SIZE, len(chain.nodes))
        for i in range(chain.digested, n):
            digest, node = digests[HASH_SIZE * i : HASH_SIZE * (i + 1)], chain.nodes[i]
            if node not in batch.messages:
                batch.digests.append({"b_hash": node, "digest": digest})
            elif batch.messages[node]["digest"] is None:
                batch.messages[node]["digest"] = digest
        kept = replace(chain, digested=max(chain.digested, n))
        batch.after.append(lambda _: self._recent.keep_chain(rollout_id, kept))

    def finish(self, batch: Batch, result: CallResult) -> None:
        """Add a result with its arrays to the batch."""
        opened = self._open.get(result.id)
        flags = set(result.flags)
        reply = None if result.reply is None else dump_json(result.reply)
        if (opened and opened.has_secret) or (reply and self._scanner.in_json(reply)):
            flags.add(FLAG)
        row = _result_row(result, flags) | {"reply": None if reply is None else pack(reply)}
        row["origin"] = self._blob(batch, dump_json(_origin(result)))
        if result.raw_reply is not None:
            row["raw_reply"] = self._blob(batch, result.raw_reply)
        if result.prompt_ids is not None and result.out_ids is not None:
            self._plan_tokens(batch, row, result)
        if opened and opened.chain and result.message_digests:
            self._digest(batch, opened.rollout_id, opened.chain, result.message_digests)
        for lane in (*result.lane_updates, result.lane):
            if self._lanes.get(lane.id) != lane:
                batch.lanes[lane.id] = lane
        batch.results.append(row)
        batch.after.append(lambda _: self._finished(result))

    def _finished(self, result: CallResult) -> None:
        self._open.pop(result.id, None)
        if len(self._lanes) > 1 << 14:
            self._lanes.clear()
        for lane in (*result.lane_updates, result.lane):
            self._lanes[lane.id] = lane

    def _plan_tokens(self, batch: Batch, row: Row, result: CallResult) -> None:
        assert result.prompt_ids is not None
        assert result.out_ids is not None
        prompt, out = to_bytes(result.prompt_ids), to_bytes(result.out_ids)
        logprobs = b"" if result.logprobs is None else to_bytes(result.logprobs)
        if logprobs and len(logprobs) != len(out):
            raise ValueError(
                f"{len(out) // ID_BYTES} sampled ids with {len(logprobs) // ID_BYTES} logprobs"
            )
        rollout_id = result.lane.rollout_id
        base, claimed = self._base(rollout_id, result), result.prompt_common
        if base is None:
            base, claimed = self._recent.nearest_path(rollout_id, prompt), None
        planned = plan(prompt, out, logprobs, base, claimed)
        row["n_prompt"], row["n_out"] = planned.row["n_prompt"], planned.row["n_out"]
        row["has_logprobs"] = bool(logprobs)
        index = len(batch.results)
        batch.tokens.append((index, planned))
        batch.after.append(
            lambda done: self._recent.keep_path(
                rollout_id, result.id, planned.path(done.results[index]["seq"])
            )
        )

    def _base(self, rollout_id: RolloutId, result: CallResult) -> Path | None:
        if result.prompt_base is None:
            return None
        known = self._recent.path(rollout_id, result.prompt_base)
        return known or self._read_path(result.prompt_base)

    def _blob(self, batch: Batch, data: bytes) -> bytes:
        name = content_hash(data)
        if name not in batch.blobs and not self._recent.is_known(name):
            batch.blobs[name] = pack(data)
        return name

    def remember(self, batch: Batch) -> None:
        """Take note of a batch that is durable now."""
        for name in (*batch.blobs, *batch.messages):
            self._recent.know(name)
        for act in batch.after:
            act(batch)

    def forget(self, rollout_id: RolloutId) -> None:
        """Let go of a closed rollout."""
        self._recent.forget(rollout_id)


def body_size(body: RequestBody) -> int:
    """Return the length of the joined body without joining it."""
    n = len(body.messages)
    if body.separators is not None:
        between = sum(map(len, body.separators))
    else:
        between = max(n - 1, 0) * (2 if b"\x02" in body.envelope else 1)
    marks = sum(body.envelope.count(mark) for mark in (b"\x00", b"\x01", b"\x02"))
    return (
        len(body.envelope) - marks + len(body.tools or b"") + sum(map(len, body.messages)) + between
    )


def pack_separators(pieces: tuple[bytes, ...]) -> bytes:
    """Return the separators packed; a regular indentation costs the same at any length."""
    between = set(pieces[1:-1])
    kind, kept = "list", pieces
    if len(between) == 1:
        kind, kept = "same", (pieces[0], pieces[1], pieces[-1])
    return pack(dump_json([kind, *(piece.decode("latin-1") for piece in kept)]))


def _origin(result: CallResult) -> dict[str, Any]:
    return {
        "sampling": result.sampling,
        "policy_label": result.policy_label,
        "engine": result.engine,
        "template_hash": result.template_hash,
        "tokenizer_hash": result.tokenizer_hash,
    }


def _result_row(result: CallResult, flags: set[str]) -> Row:
    return {
        "b_id": result.id,
        "state": result.state.value,
        "lane": result.lane.id,
        "parent": result.parent,
        "edit_of": result.edit_of,
        "turn_index": result.turn_index,
        "prompt_mode": result.prompt_mode,
        "exact": result.exact,
        "reasons": list(result.reasons) or None,
        "usage": result.usage,
        "finish": result.finish,
        "stop_id": result.stop_id,
        "policy_before": result.policy_before,
        "policy_after": result.policy_after,
        "template_key": result.template_key,
        "timings": result.timings or None,
        "flags": sorted(flags) or None,
        "n_prompt": None,
        "n_out": None,
        "has_logprobs": False,
        "reply_digest": result.reply_digest,
        "chain_key": result.chain_key,
        "bare_key": result.bare_key,
        "raw_reply": None,
        "failure_class": result.failure_class.value,
        "cause": result.cause,
        "finished_at": datetime.now(UTC),
    }
