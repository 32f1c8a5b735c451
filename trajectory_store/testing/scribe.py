"""Writes calls into a store as a proxy would, with ids that are bytes."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from typing import Any

from ..bodies import MESSAGES, TOOLS, RequestBody
from ..ids import CallId, new_call_id, new_lane_id
from ..outcome import FailureClass
from ..records import CallIntent, CallResult, CallState, Lane, LaneKind, PromptMode, Rollout
from ..store import Store

START, END = 256, 257
"""Ids of the markers round a message; all others are UTF-8 bytes."""

Message = dict[str, Any]
TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}


def text_of(ids: Iterable[int]) -> str:
    """Return what ids spell; markers are left out."""
    return bytes(i for i in ids if i < 256).decode("utf-8", "replace")


def _ids(text: str) -> array[int]:
    return array("I", list(text.encode("utf-8", "replace")))


def render(messages: Sequence[Message]) -> array[int]:
    """Return the ids of messages and the beginning of an assistant's turn."""
    ids = array("I")
    for message in messages:
        ids.append(START)
        ids.extend(_ids(f"{message['role']}\n{_spelled(message)}"))
        ids.extend((END, 10))
    ids.append(START)
    ids.extend(_ids("assistant\n"))
    return ids


def _spelled(message: Message) -> str:
    calls = message.get("tool_calls") or []
    tools = "".join(json.dumps([c["function"]["name"], c["function"]["arguments"]]) for c in calls)
    return f"{message.get('reasoning_content') or ''}{message.get('content') or ''}{tools}"


@dataclass(slots=True)
class Scribe:
    """Records one rollout."""

    store: Store
    rollout: Rollout
    history: dict[CallId, list[Message]] = field(default_factory=dict[CallId, list[Message]])
    """Each call's messages with its reply, to go on from."""
    _arrays: dict[CallId, array[int]] = field(default_factory=dict[CallId, "array[int]"])

    def lane(self, kind: LaneKind = LaneKind.MAIN, **more: Any) -> Lane:
        """Return a fresh lane; it is stored with its first call."""
        return Lane(
            id=new_lane_id(),
            rollout_id=self.rollout.id,
            kind=kind,
            created_at=self.rollout.created_at,
            offers_tools=kind is not LaneKind.SIDE,
            **more,
        )

    def call(
        self,
        lane: Lane,
        messages: Sequence[Message],
        text: str = "",
        *,
        reasoning: str | None = None,
        tool_calls: Sequence[tuple[str, str]] = (),
        parent: CallId | None = None,
        state: CallState = CallState.DELIVERED,
        stream: bool = True,
        fields: dict[str, Any] | None = None,
        **result: Any,
    ) -> CallId:
        """Record a call and return its id; `result` overrides fields of `CallResult`."""
        call_id = new_call_id()
        asked = {"model": "example", "stream": stream, **(fields or {})}
        body = _body(messages, asked, with_tools=lane.offers_tools)
        digests = b"".join(_digest(m) for m in messages)
        intent = CallIntent(
            id=call_id,
            rollout_id=self.rollout.id,
            dialect="chat",
            lane=lane.id,
            parent=parent,
            body_hash=sha256(body.join()).digest(),
            body=body,
            stream=stream,
            asked_model="example",
            client={"user-agent": "example/1"},
            message_digests=digests,
        )
        answer = _answer(call_id, text, reasoning, tool_calls)
        self.store.begin_call(intent)
        values = self._complete(call_id, messages, answer, parent) if state.is_complete else {}
        final = CallState.COMMITTED if state.is_complete else state
        values |= {"lane": lane, "parent": parent, "state": final, **result}
        self.store.finish_call(CallResult(id=call_id, **values)).result()
        if state is not final:
            self.store.mark(call_id, state).result()
        return call_id

    def _complete(
        self,
        call_id: CallId,
        messages: Sequence[Message],
        answer: Message,
        parent: CallId | None,
    ) -> dict[str, Any]:
        said: Message = {"role": "assistant", "content": answer["content"]}
        if answer["reasoning"]:
            said["reasoning_content"] = answer["reasoning"]
        if answer["tool_calls"]:
            said["tool_calls"] = [
                {
                    "id": c["id"],
                    "type": "function",
                    "function": {"name": c["name"], "arguments": c["arguments"]},
                }
                for c in answer["tool_calls"]
            ]
        prompt, out = render(messages), _ids(_spelled(said))
        out.append(END)
        before = self._arrays.get(parent) if parent else None
        common = len(before) if before is not None and prompt[: len(before)] == before else 0
        self.history[call_id] = [*messages, said]
        self._arrays[call_id] = prompt + out
        return {
            "turn_index": sum(m["role"] == "assistant" for m in messages),
            "prompt_mode": PromptMode.SPLICED if common else PromptMode.RENDERED,
            "exact": True,
            "sampling": {"temperature": 1.0, "top_p": 1.0},
            "usage": {
                "prompt_tokens": len(prompt),
                "completion_tokens": len(out),
                "total_tokens": len(prompt) + len(out),
            },
            "finish": "tool_calls" if answer["tool_calls"] else "stop",
            "stop_id": END,
            "policy_before": 3,
            "policy_after": 3,
            "engine": "example engine",
            "timings": {"queue": 0.1, "render": 1.5, "first_token": 12.25, "total": 80.0},
            "prompt_ids": prompt,
            "prompt_base": parent if common else None,
            "prompt_common": common,
            "out_ids": out,
            "logprobs": array("f", [-0.1 * (1 + i % 7) for i in range(len(out))]),
            "reply": answer,
            "reply_digest": _digest(said),
            "chain_key": _digest([*messages, said]),
            "failure_class": FailureClass.NONE,
        }


def _body(messages: Sequence[Message], asked: dict[str, Any], *, with_tools: bool) -> RequestBody:
    rest = json.dumps(asked, separators=(",", ":")).encode()[1:]
    tools = json.dumps([TOOL]).encode() if with_tools else None
    head = b'{"messages":[' + MESSAGES + b"],"
    envelope = head + (b'"tools":' + TOOLS + b"," if with_tools else b"") + rest
    slices = [json.dumps(m, ensure_ascii=False).encode("utf-8", "replace") for m in messages]
    return RequestBody.from_parts(envelope, slices, None, tools)


def _answer(
    call_id: CallId, text: str, reasoning: str | None, tool_calls: Sequence[tuple[str, str]]
) -> Message:
    calls = [
        {
            "id": blake2b(f"{call_id}{i}".encode(), digest_size=5).hexdigest()[:9],
            "engine_id": f"call_{i}",
            "name": name,
            "arguments": arguments,
        }
        for i, (name, arguments) in enumerate(tool_calls)
    ]
    return {
        "role": "assistant",
        "content": text or None,
        "reasoning": reasoning,
        "tool_calls": calls,
    }


def _digest(value: Any) -> bytes:
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).digest()
