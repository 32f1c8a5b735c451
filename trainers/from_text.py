"""Rows for imitation from recordings that have no token ids: their text, rendered anew.

Each call is rendered by the target's template, once as a prompt and once with its answer; what the
answer adds is trained, up to the last end-of-turn token in it. Calls then make rows as recorded
ones do (`trajectory_store/sequences.py`): a call whose prompt begins with all of its parent's
tokens continues its row, any other begins a new one, and each answer is trained once.

These are not the tokens that were sampled, nobody knows those. Such rows are never exact and have
no logprobs, so they are for imitation only, and whatever is made of them says that it was.

Left out, by reason: `dialect` (only chat is rendered), `no_reply`, `template` (the rendered answer
does not continue the rendered prompt, or the template refuses the conversation).
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from budwood.trajectory_store import Call, RolloutId, Sequence, Store
from budwood.trajectory_store.sequences import Wanted, build
from budwood.trajectory_store.tokens import Piece, to_bytes

from .settings import DataSettings


def sequences_from_text(
    store: Store,
    rollout_id: RolloutId,
    tokenizer: Any,
    data: DataSettings,
    left_out: Counter[str],
) -> list[Sequence]:
    """Return a rollout's rows as a tokenizer renders them; what can't be is counted."""
    rendered = _Rendered({})
    calls: list[Call] = []
    for call in store.calls(rollout_id):
        found = _render(store, call, tokenizer) if call.state.is_complete else call.state.value
        if isinstance(found, str):
            left_out[found] += 1
            continue
        assert call.seq is not None
        rendered.calls[call.seq] = found
        prompt, out = found
        calls.append(replace(call, n_prompt=len(prompt), n_out=len(out), exact=False))
    wanted = Wanted(
        frozenset(data.lanes),
        include_inexact=True,
        include_secret=data.include_secrets,
        allow=frozenset({"greedy"}),
    )
    lanes = {lane.id: lane for lane in store.lanes(rollout_id)}
    rows = build(rollout_id, calls, lanes, rendered, wanted)
    left_out.update(rows.dropped)
    return rows.sequences


@dataclass(frozen=True, slots=True)
class _Rendered:
    """Rendered calls by seq, as rows are built from: (prompt, output)."""

    calls: dict[int, tuple[array[int], array[int]]]

    def piece(self, seq: int) -> Piece:
        prompt, out = self.calls[seq]
        return Piece(seq, None, 0, 0, len(prompt), len(out), b"", b"", b"", b"", {})

    def full(self, seq: int) -> bytes:
        prompt, out = self.calls[seq]
        return to_bytes(prompt + out)


def _render(store: Store, call: Call, tokenizer: Any) -> tuple[array[int], array[int]] | str:
    """Return prompt and output, or the reason why there are none."""
    if call.dialect != "chat":
        return "dialect"
    if call.reply is None:
        return "no_reply"
    asked = json.loads(store.request_body(call.id))
    messages = [_message(message) for message in asked["messages"]]
    more = asked.get("chat_template_kwargs") or {}

    def ids(conversation: list[dict[str, Any]], *, is_prompt: bool) -> list[int]:
        return tokenizer.apply_chat_template(
            conversation,
            tools=asked.get("tools") or None,
            add_generation_prompt=is_prompt,
            tokenize=True,
            return_dict=True,
            **more,
        )["input_ids"]

    try:
        prompt = ids(messages, is_prompt=True)
        whole = ids([*messages, _message(_said(call.reply))], is_prompt=False)
    except Exception:  # a template is a program of its own, and raises what it likes
        return "template"
    if whole[: len(prompt)] != prompt:
        return "template"
    out = whole[len(prompt) :]
    if tokenizer.eos_token_id in out:
        out = out[: len(out) - out[::-1].index(tokenizer.eos_token_id)]
    return array("I", prompt), array("I", out)


def _said(reply: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded answer as a message of a request."""
    calls = [
        {
            "id": call.get("id"),
            "type": "function",
            "function": {"name": call["name"], "arguments": call["arguments"]},
        }
        for call in reply.get("tool_calls") or ()
    ]
    said: dict[str, Any] = {"role": "assistant", "content": reply.get("content") or ""}
    if reply.get("reasoning"):
        # Templates know it by either name.
        said |= {"reasoning": reply["reasoning"], "reasoning_content": reply["reasoning"]}
    return said | ({"tool_calls": calls} if calls else {})


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """Give tool calls their arguments as objects, as templates want them."""
    if not message.get("tool_calls"):
        return message
    return {**message, "tool_calls": [_parsed(call) for call in message["tool_calls"]]}


def _parsed(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    try:
        arguments = json.loads(function["arguments"])
    except (KeyError, TypeError, ValueError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}
