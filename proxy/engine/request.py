"""What the engine is asked: the harness's request, with everything decided that decides tokens.

The rule for each field stands in the sets below. Sampling is always written out: a field left out
takes the value of the model's `generation_config`, which nobody recorded. With ids given, the
engine renders nothing, and the messages are dummies that only its parsers look at.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from budwood.trajectory_store import CallId, LaneId, Purpose

from ..call import ChatRequest, constraints
from .info import EngineInfo
from .prompt import Prompt

NEUTRAL: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Sampling from the model's own distribution; every field is sent in every call."""

_SHAPING = frozenset(
    {"tool_choice", "parallel_tool_calls", "chat_template_kwargs", "reasoning_effort", "documents"}
)
"""What parsers and templates read: passed as it came."""

_STOPPING = frozenset({"stop", "stop_token_ids", "include_stop_str_in_output"})

_BENDING = frozenset(
    {
        "response_format", "logit_bias", "bad_words", "min_tokens", "structured_outputs",
        "guided_json", "guided_regex", "guided_choice", "guided_grammar", "allowed_token_ids",
        "ignore_eos", "thinking_token_budget",
    }
)  # fmt: skip
"""Bends what can be sampled: passed, and the call is marked (`call.constraints`)."""

_OURS = frozenset(
    {
        "messages", "tools", "model", "stream", "stream_options", "n", "best_of", "echo",
        "logprobs", "top_logprobs", "return_token_ids", "return_tokens_as_token_ids",
        "include_reasoning", "kv_transfer_params", "prompt_token_ids", "cache_salt", "session_id",
        "request_id", "priority", "max_tokens", "max_completion_tokens",
        "continue_final_message", "add_generation_prompt", "skip_special_tokens",
        "spaces_between_special_tokens",
    }
)  # fmt: skip
"""Set here or not at all."""

_DROPPED = frozenset(
    {
        "store", "metadata", "service_tier", "user", "prompt_cache_key", "prompt_cache_retention",
        "safety_identifier", "functions", "function_call", "extra_body", "prediction", "modalities",
        "audio", "verbosity", "web_search_options",
        "api_base", "api_key", "api_version", "base_url", "custom_llm_provider", "extra_headers",
        "extra_query", "fallbacks", "model_list", "organization",
    }
)  # fmt: skip
"""Means something to a vendor only, or is refused by servers that do not know it, or would tell a
gateway where to send the call and the key that comes with it (LiteLLM, CVE-2024-6587)."""


@dataclass(slots=True)
class EngineCall:
    """One call, ready to be sent."""

    call_id: CallId
    lane_id: LaneId
    model: str
    fields: dict[str, Any]
    """The body without `messages` and prompt ids."""
    messages: list[dict[str, Any]]
    """Real ones where the engine renders, else dummies."""
    prompt: Prompt | None
    """The ids to sample from; None where the engine renders."""
    stream: bool
    wants_ids: bool
    """Whether ids and logprobs are owed: vLLM's answer is broken without them."""
    sampling: dict[str, Any]
    """What decides the distribution, as sent; `asked` holds what the harness asked otherwise."""
    flags: list[str] = field(default_factory=list)
    """`constrained`, `greedy`: of no or limited use for training."""
    passes_tokens: bool = False
    """Whether the client asked to see ids or logprobs."""
    keep_raw: bool = False


def build_call(
    info: EngineInfo,
    request: ChatRequest,
    *,
    call_id: CallId,
    lane_id: LaneId,
    model: str,
    purpose: Purpose,
    sampling: Mapping[str, Any] | None = None,
    prompt: Prompt | None,
    messages: list[dict[str, Any]],
    policy_label: str | None = None,
    keep_raw: bool = False,
) -> EngineCall:
    """Return the call to make for a request.

    `sampling` is the run's own (temperature, max_tokens), sent whatever the harness asks; None
    leaves it to the harness. `messages` are the real ones. `prompt` None: the engine renders.
    """
    if not info.takes_ids:
        prompt = None
    is_vllm = info.kind == "vllm"
    asked = request.fields
    fields: dict[str, Any] = {"model": model}
    flags: list[str] = []
    _add_shape(fields, flags, request)
    sent = _sampling(asked, sampling, is_vllm=is_vllm, is_train=purpose is Purpose.TRAIN)
    limit_name, limit = _max_tokens(asked, sampling, info, prompt)
    if limit is not None:
        sent[limit_name if not is_vllm else "max_tokens"] = limit
    fields |= sent
    if sent.get("temperature") == 0:
        flags.append("greedy")
    if request.stream:
        fields["stream"] = True
        fields["stream_options"] = {"include_usage": True}
    if is_vllm:
        fields |= _vllm_fields(request, lane_id, policy_label)
    else:
        fields |= {
            name: value
            for name, value in asked.items()
            if name not in fields and name not in _OURS and name not in _DROPPED
        }
        if request.wants_logprobs:
            fields |= {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
    changed = {
        name: asked[name] for name in NEUTRAL if name in asked and asked[name] != sent.get(name)
    }
    return EngineCall(
        call_id=call_id,
        lane_id=lane_id,
        model=model,
        fields=fields,
        messages=messages if prompt is None else dummy_messages(messages),
        prompt=prompt,
        stream=request.stream,
        wants_ids=is_vllm,
        sampling={**sent, "asked": changed} if changed else sent,
        flags=flags,
        passes_tokens=request.wants_logprobs or request.return_token_ids,
        keep_raw=keep_raw or not is_vllm,
    )


def _add_shape(fields: dict[str, Any], flags: list[str], request: ChatRequest) -> None:
    """Add what parsers, templates and grammars read; mark what constrains sampling."""
    asked = request.fields
    if request.tools:
        fields["tools"] = request.tools
    for name in _SHAPING:
        if asked.get(name) is None:
            continue
        if name in ("tool_choice", "parallel_tool_calls") and not request.tools:
            continue  # refused by vLLM without tools
        fields[name] = asked[name]
    for name in _BENDING | _STOPPING:
        value = asked.get(name)
        if value not in (None, {}, [], 0, False, "") and value != {"type": "text"}:
            fields[name] = value
    if constraints({**asked, "tool_choice": fields.get("tool_choice")}):
        flags.append("constrained")


def _sampling(
    asked: Mapping[str, Any], fixed: Mapping[str, Any] | None, *, is_vllm: bool, is_train: bool
) -> dict[str, Any]:
    if is_train or fixed is not None:
        sent = dict(NEUTRAL) if is_vllm else {}
        sent["temperature"] = (fixed or {}).get("temperature", NEUTRAL["temperature"])
        return sent
    sent = {name: asked[name] for name in NEUTRAL if asked.get(name) is not None}
    if is_vllm:
        sent = NEUTRAL | sent
    if asked.get("seed") is not None:
        sent["seed"] = asked["seed"]
    return sent


def _max_tokens(
    asked: Mapping[str, Any],
    fixed: Mapping[str, Any] | None,
    info: EngineInfo,
    prompt: Prompt | None,
) -> tuple[str, int | None]:
    """Return the smallest of what was asked, the run's cap and what the model has room for."""
    name = "max_tokens" if asked.get("max_tokens") is not None else "max_completion_tokens"
    wanted = asked.get("max_completion_tokens")
    wanted = asked.get("max_tokens") if wanted is None else wanted
    room = None
    if info.max_model_len is not None:
        room = info.max_model_len - (len(prompt) if prompt is not None else 1)
    cap = (fixed or {}).get("max_tokens")
    if prompt is None and wanted is None and cap is None:
        return name, None  # the engine knows the room, we do not
    limits = [limit for limit in (wanted, cap, room) if limit is not None]
    return name, max(1, min(limits)) if limits else None


def _vllm_fields(request: ChatRequest, lane_id: LaneId, policy_label: str | None) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "logprobs": True,
        # 0, not null: null has lost the logprobs in some versions.
        "top_logprobs": request.top_logprobs or 0,
        "return_token_ids": True,
        "session_id": str(lane_id),
    }
    if not request.top_logprobs:
        # Labels each logprob with its id. With alternatives asked for, their `bytes` would spell
        # the ids and could not be restored.
        fields["return_tokens_as_token_ids"] = True
    if policy_label:
        fields["cache_salt"] = policy_label
    return fields


def dummy_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages for a call whose ids are given: text only, ending in a user message.

    Parsers that number tool calls over a conversation (Kimi's `functions.name:idx`) count them in
    the request, so the dummies hold as many as the real history. Each is answered, and an assistant
    turn follows, because some servers check the order of roles.
    """
    end = {"role": "user", "content": "-"}
    n_calls = sum(len(message.get("tool_calls") or ()) for message in messages)
    if not n_calls:
        return [end]
    ids = [f"{index:09d}" for index in range(n_calls)]
    calls = [
        {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for call_id in ids
    ]
    answers = [{"role": "tool", "tool_call_id": call_id, "content": "-"} for call_id in ids]
    return [
        end,
        {"role": "assistant", "content": "-", "tool_calls": calls},
        *answers,
        {"role": "assistant", "content": "-"},
        end,
    ]
