"""Why a reply is not exact: the conditions of exactness that a whole reply can still miss.

What vLLM must send and did not (ids, counts, a finish) is a failed call and never gets here
(`reply.Collected.finished`); other servers owe nothing, and their replies are text.
"""

import math
from array import array
from enum import StrEnum

from .info import EngineInfo, Problem
from .reply import EngineReply

_LEAST_LOGPROB = -9000.0
"""vLLM writes -9999 where it has no logprob."""


class Inexact(StrEnum):
    """Codes of what keeps a reply from being exact."""

    NO_TOKEN_IDS = "no_token_ids"
    NO_PROMPT_IDS = "no_prompt_ids"
    ENGINE_IGNORED_IDS = "engine_ignored_ids"
    COUNTS_DIFFER = "counts_differ"
    PAIRS_DIFFER = "pairs_differ"
    BAD_LOGPROBS = "bad_logprobs"
    RAW_LOGPROBS = "raw_logprobs"
    UNKNOWN_FINISH = "unknown_finish"
    NO_END_ID = "no_end_id"


EXPLANATIONS: dict[str, str] = {
    Inexact.NO_TOKEN_IDS: "the engine returned no token ids: the call is recorded as text",
    Inexact.NO_PROMPT_IDS: "the engine did not return the ids that it read",
    Inexact.ENGINE_IGNORED_IDS: "the engine read other ids than those that it was sent",
    Inexact.COUNTS_DIFFER: "the numbers of ids, logprobs and counted tokens differ",
    Inexact.PAIRS_DIFFER: "a logprob belongs to another id than the one beside it",
    Inexact.BAD_LOGPROBS: "a logprob is missing, not a number, or above 0",
    Inexact.RAW_LOGPROBS: "the logprobs ignore the temperature that sampled",
    Inexact.UNKNOWN_FINISH: "the engine gave no finish reason that is known",
    Inexact.NO_END_ID: "the reply ends neither by length, nor by an end id, nor by a stop string",
}


def exactness(reply: EngineReply, sent: "array[int] | None", info: EngineInfo) -> list[str]:
    """Return the codes of what keeps a reply from being exact; none: it is exact.

    `sent` are the ids that the call was sent with, None where the engine rendered.
    """
    ids, logprobs = reply.out_ids, reply.logprobs
    if ids is None or logprobs is None:
        return [*reply.reasons, Inexact.NO_TOKEN_IDS]
    reasons: list[str] = list(reply.reasons)
    if sent is not None and reply.prompt_ids_match is False:
        reasons.append(Inexact.ENGINE_IGNORED_IDS)
    elif reply.prompt_ids is None and not reply.prompt_ids_match:
        reasons.append(Inexact.NO_PROMPT_IDS)
    if not len(ids) == len(logprobs) == (reply.usage or {}).get("completion_tokens"):
        reasons.append(Inexact.COUNTS_DIFFER)
    if reply.pairs_match is False:
        reasons.append(Inexact.PAIRS_DIFFER)
    if len(logprobs) and not (
        min(logprobs) > _LEAST_LOGPROB and max(logprobs) <= 0.0 and math.isfinite(sum(logprobs))
    ):
        reasons.append(Inexact.BAD_LOGPROBS)
    if Problem.RAW_LOGPROBS in info.problems and reply.temperature not in (None, 1.0):
        reasons.append(Inexact.RAW_LOGPROBS)
    if reply.finish not in ("stop", "tool_calls", "length"):
        reasons.append(Inexact.UNKNOWN_FINISH)
    elif reply.finish != "length" and not _has_end(reply, info):
        reasons.append(Inexact.NO_END_ID)
    return reasons


def _has_end(reply: EngineReply, info: EngineInfo) -> bool:
    """Whether the reply ends by an end id, or by a stop that was asked for.

    Without known end ids vLLM's word counts: it says `stop` without a stop reason for them only.
    """
    if reply.stop_reason is not None:
        return True
    if not reply.out_ids:
        return False
    return not info.end_ids or reply.out_ids[-1] in info.end_ids
