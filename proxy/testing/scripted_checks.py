"""What the scripted engine refuses, in vLLM's words."""

import re
from typing import Any, Literal

import orjson

from . import scripted_wire as wire

TokenIn = Literal["kv_transfer", "chat", "ignored"]
"""Which field with ids is honoured."""

_IDS_KEY = b'"prompt_token_ids":'


class Refused(Exception):
    """An answer of an error status, with vLLM's error body."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.body = status, wire.error(status, message, param)


def room(n_prompt: int, body: dict[str, Any], limit: int) -> int:
    """Return how many tokens may be sampled; refuse what has no room, as vLLM says it."""
    asked = body.get("max_completion_tokens") or body.get("max_tokens")
    if asked is not None and asked > limit:
        raise Refused(
            400,
            f"max_tokens={asked} cannot be greater than max_model_len={limit}. Please request"
            f" fewer output tokens. (parameter=max_tokens, value={asked})",
            "max_tokens",
        )
    if n_prompt > limit:
        raise Refused(
            400,
            f"This model's maximum context length is {limit} tokens. However, your prompt contains"
            f" at least {limit + 1} input tokens, which exceeds this limit even without any output"
            " tokens. Please reduce the length of the input prompt."
            f" (parameter=input_tokens, value={limit + 1})",
            "input_tokens",
        )
    if n_prompt == limit:
        raise Refused(
            400,
            "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
            "max_tokens",
        )
    return min(asked or limit, limit - n_prompt)


def check_ids(prompt: bytes, vocab_size: int, *, field: str | None) -> None:
    """Refuse a prompt that is empty or holds ids that are none; `prompt` is JSON text."""
    if not prompt.strip(b"[] "):
        raise Refused(
            400,
            "`kv_transfer_params['prompt_token_ids']` must be a non-empty list of non-negative"
            f" integers. (parameter={field})",
            field,
        )
    if not re.search(rb"\d{5}|[^\d,\[\] ]", prompt):  # fewer digits than the vocabulary's size
        return
    for number in orjson.loads(prompt):
        if not isinstance(number, int) or not 0 <= number < vocab_size:
            where = f" (parameter={field})" if field else ""
            raise Refused(400, f"Token id {number} is out of vocabulary{where}", field)


def loads(body: bytes) -> dict[str, Any]:
    """Return a request's body."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refused(400, f"JSON decode error: {error}", "body") from error
    if not isinstance(value, dict):
        raise Refused(400, "the body is not an object", "body")
    return value


def cut_ids(body: bytes, *, wanted: TokenIn) -> tuple[bytes | None, bytes]:
    """Return the text of the ids that count, and the body without the long list."""
    at = body.find(_IDS_KEY)
    if at < 0:
        return None, body
    start = body.index(b"[", at)
    end = body.index(b"]", start) + 1
    rest = body[:start] + b"null" + body[end:]
    in_kv = body.rfind(b'"kv_transfer_params":', 0, at) >= 0
    honoured = wanted == ("kv_transfer" if in_kv else "chat")
    return (body[start:end] if honoured else None), rest


def check_fields(body: dict[str, Any], *, tool_parser: bool) -> None:
    """Refuse what vLLM refuses (`proxy.md` M12)."""
    if not body.get("stream") and body.get("stream_options"):
        raise Refused(
            400,
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
            "stream_options",
        )
    if "tools" in body and body["tools"] == []:
        raise Refused(
            400,
            "`tools` must not be an empty array. Either provide at least one tool or omit the field"
            " entirely. (parameter=tools)",
            "tools",
        )
    if body.get("tool_choice") not in (None, "none") and not body.get("tools"):
        raise Refused(
            400,
            "When using `tool_choice`, `tools` must be set. (parameter=tool_choice)",
            "tool_choice",
        )
    if body.get("tools") and body.get("tool_choice") != "none" and not tool_parser:
        raise Refused(
            400,
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser'
            " to be set",
        )
    if (body.get("n") or 1) != 1:
        raise Refused(400, "the scripted engine samples one answer a call", "n")
