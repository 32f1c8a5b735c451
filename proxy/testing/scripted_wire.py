"""A sampled reply in vLLM's JSON: chat answers plain and streamed, and `/inference/v1/generate`.

Field for field what vLLM 0.32 sends; `tests/proxy/testing` holds this against recorded answers.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

from .scripted_reply import Sampled, noise

FINGERPRINT = "scripted-engine-no-model"
CREATED = 1_700_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """What a request asked to see."""

    answer_id: str
    model: str
    logprobs: bool = False
    n_top: int = 0
    token_ids: bool = False
    tokens_as_ids: bool = False
    usage: bool = False
    scale: float = 1.0
    """What divides the distances of logprobs: the temperature, or 1 for raw ones."""


def event(value: Any) -> bytes:
    """Return one SSE event."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


DONE = b"data: [DONE]\n\n"


def usage(sampled: Sampled, n_prompt: int, *, plain: bool) -> dict[str, Any]:
    """Return the `usage` object."""
    n_out = len(sampled.ids)
    out: dict[str, Any] = {
        "prompt_tokens": n_prompt,
        "total_tokens": n_prompt + n_out,
        "completion_tokens": n_out,
    }
    if plain:
        out["prompt_tokens_details"] = None
    out["completion_tokens_details"] = {"reasoning_tokens": sampled.n_reasoning}
    return out


def _logprob_entry(sampled: Sampled, index: int, shape: Shape) -> dict[str, Any]:
    piece = sampled.pieces[index]
    number = sampled.ids[index]
    token = f"token_id:{number}" if shape.tokens_as_ids else piece.decode("utf-8", "ignore")
    raw = list(piece) if _is_text(piece) else []
    first = {"token": token, "logprob": sampled.logprobs[index], "bytes": raw}
    top = [first] if shape.n_top else []
    for rank in range(1, shape.n_top):
        other = noise(number, rank) % 256
        spelled = f"token_id:{other}" if shape.tokens_as_ids else f"\\x{other:02x}"
        top.append(
            {"token": spelled, "logprob": first["logprob"] - rank / shape.scale, "bytes": [other]}
        )
    return {**first, "top_logprobs": top}


def _is_text(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


def head_event(shape: Shape, prompt_json: bytes | None) -> bytes:
    """Return the first chunk: the role, and the prompt's ids as they came."""
    choice = {
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    body = orjson.dumps({**_chunk(shape), "choices": [choice]})
    if prompt_json is not None:
        body = body[:-1] + b',"prompt_token_ids":' + prompt_json + b',"prompt_text":null}'
    return b"data: " + body + b"\n\n"


def _chunk(shape: Shape) -> dict[str, Any]:
    return {
        "id": shape.answer_id,
        "object": "chat.completion.chunk",
        "created": CREATED,
        "model": shape.model,
    }


def token_events(sampled: Sampled, shape: Shape, tokens_per_event: int = 1) -> list[bytes]:
    """Return the chunks that carry tokens, `tokens_per_event` a chunk."""
    base, last = _chunk(shape), len(sampled.ids) - 1
    out = []
    for start in range(0, len(sampled.ids), tokens_per_event):
        span = range(start, min(start + tokens_per_event, len(sampled.ids)))
        choice: dict[str, Any] = {
            "index": 0,
            "delta": _joined([sampled.deltas[i] for i in span]),
            "logprobs": {"content": [_logprob_entry(sampled, i, shape) for i in span]}
            if shape.logprobs
            else None,
            "finish_reason": None,
        }
        if span[-1] == last:
            choice["finish_reason"] = sampled.finish
            choice["stop_reason"] = sampled.stop_reason
        if shape.token_ids:
            choice["token_ids"] = [sampled.ids[i] for i in span]
        out.append(event({**base, "choices": [choice]}))
    return out


def _joined(deltas: list[dict[str, Any]]) -> dict[str, Any]:
    if len(deltas) == 1:
        return deltas[0]
    out: dict[str, Any] = {}
    for delta in deltas:
        for name in ("content", "reasoning"):
            if delta.get(name):
                out[name] = (out.get(name) or "") + delta[name]
        for part in delta.get("tool_calls", ()):
            out.setdefault("content", None)
            known = out.setdefault("tool_calls", [])
            same = [call for call in known if call["index"] == part["index"]]
            if same and "id" not in part:
                function = same[0]["function"]
                text = function.get("arguments", "") + part["function"]["arguments"]
                function["arguments"] = text
            else:
                known.append({**part, "function": dict(part["function"])})
    return out


def usage_event(sampled: Sampled, shape: Shape, n_prompt: int) -> bytes:
    """Return the chunk that counts: it has no choices."""
    return event(
        {
            **_chunk(shape),
            "choices": [],
            "usage": usage(sampled, n_prompt, plain=False),
            "system_fingerprint": FINGERPRINT,
        }
    )


def plain_chat(sampled: Sampled, shape: Shape, prompt_json: bytes | None, n_prompt: int) -> bytes:
    """Return a whole chat completion."""
    indices = range(len(sampled.ids))
    choice = {
        "index": 0,
        "message": sampled.message(),
        "logprobs": {"content": [_logprob_entry(sampled, i, shape) for i in indices]}
        if shape.logprobs
        else None,
        "finish_reason": sampled.finish,
        "stop_reason": sampled.stop_reason,
        "token_ids": sampled.ids if shape.token_ids else None,
        "routed_experts": None,
    }
    return orjson.dumps(
        {
            "id": shape.answer_id,
            "object": "chat.completion",
            "created": CREATED,
            "model": shape.model,
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": usage(sampled, n_prompt, plain=True),
            "prompt_logprobs": None,
            "prompt_token_ids": orjson.Fragment(prompt_json) if prompt_json is not None else None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }
    )


def generated(
    sampled: Sampled, shape: Shape, prompt_json: bytes, n_prompt: int, weight_version: str
) -> dict[str, Any]:
    """Return the answer of `/inference/v1/generate`, in ids."""
    entries = [
        {"token_id": number, "logprob": logprob, "rank": 1, "top_logprobs": []}
        for number, logprob in zip(sampled.ids, sampled.logprobs, strict=True)
    ]
    choice = {
        "index": 0,
        "finish_reason": "stop" if sampled.finish == "tool_calls" else sampled.finish,
        "stop_reason": sampled.stop_reason,
        "token_ids": sampled.ids,
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": [{"version": weight_version, "start": 0, "end": len(sampled.ids)}],
        "logprobs": {"content": entries} if shape.logprobs else None,
    }
    return {
        "request_id": f"generate-tokens-{shape.answer_id.removeprefix('chatcmpl-')}",
        "model": shape.model,
        "created": CREATED,
        "usage": {**usage(sampled, n_prompt, plain=True), "completion_tokens_details": None},
        "prompt_logprobs": None,
        "prompt_token_id_logprobs": None,
        "prompt_token_ids": orjson.Fragment(prompt_json),
        "mm_placeholders": None,
        "metrics": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "output_mode": "tokens",
        "choices": [choice],
    }


@lru_cache(maxsize=64)
def error(status: int, message: str, param: str | None = None, kind: str = "") -> bytes:
    """Return vLLM's error body."""
    kind = kind or {404: "NotFoundError"}.get(status, "BadRequestError")
    return orjson.dumps(
        {"error": {"message": message, "type": kind, "param": param, "code": status}}
    )
