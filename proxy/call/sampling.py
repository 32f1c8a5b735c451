"""Which fields of a chat request say how to sample, and which bend what can be sampled."""

from collections.abc import Mapping
from typing import Any

SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "stop_token_ids",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "ignore_eos",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "length_penalty",
    "thinking_token_budget",
)
"""Fields that decide which tokens come, given the distribution, and when they end."""

_CONSTRAINING_FIELDS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "min_tokens",
)


def asked_sampling(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling fields that the client gave a value to, as sent."""
    return {name: fields[name] for name in SAMPLING_FIELDS if fields.get(name) is not None}


def constraints(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of fields that make the engine sample from another distribution.

    Tokens sampled under one are not what the policy alone would have said.
    """
    found = [name for name in _CONSTRAINING_FIELDS if fields.get(name)]
    response_format = fields.get("response_format")
    if isinstance(response_format, dict) and response_format.get("type") == "text":
        found.remove("response_format")
    if fields.get("tool_choice") not in (None, "auto", "none"):
        found.append("tool_choice")
    return tuple(found)
