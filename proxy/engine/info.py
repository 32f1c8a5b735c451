"""What a probe found out about an engine, and the problems that `budwood doctor` explains."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from .settings import WayName


class Problem(StrEnum):
    """What keeps an engine from exact recording; `ADVICE` says what to do."""

    NOT_VLLM = "not_vllm"
    NO_TOKEN_IDS = "no_token_ids"
    TOKEN_IN_IGNORED = "token_in_ignored"
    RENDER_DISABLED = "render_disabled"
    RAW_LOGPROBS = "raw_logprobs"
    NO_LOGPROBS = "no_logprobs"
    NO_TOOL_PARSER = "no_tool_parser"
    NO_REASONING_PARSER = "no_reasoning_parser"
    NO_PREFIX_CACHE = "no_prefix_cache"
    REPLICAS_DIFFER = "replicas_differ"
    REPLICA_DOWN = "replica_down"


@dataclass(frozen=True, slots=True)
class Advice:
    """What a problem means and what to do; `fatal` where exact recording is impossible."""

    fatal: bool
    meaning: str
    what_to_do: str


ADVICE: dict[Problem, Advice] = {
    Problem.NOT_VLLM: Advice(
        True,
        "this is an OpenAI-compatible server, but not vLLM: calls are recorded as text",
        "start vLLM with `budwood engine MODEL`, or accept records without token ids",
    ),
    Problem.NO_TOKEN_IDS: Advice(
        True,
        "the engine does not return the ids that it read and sampled",
        "use vLLM 0.31 or later",
    ),
    Problem.TOKEN_IN_IGNORED: Advice(
        True,
        "the engine accepts no prompt in token ids: histories are tokenised anew each turn",
        "use vLLM 0.31 or later, with --enable-scale-out",
    ),
    Problem.RENDER_DISABLED: Advice(
        False,
        "the route /v1/chat/completions/render is off; /tokenize renders instead",
        "start the engine with --enable-scale-out",
    ),
    Problem.RAW_LOGPROBS: Advice(
        True,
        "logprobs ignore the temperature: away from temperature 1 they are not the sampler's",
        "start the engine with --logprobs-mode processed_logprobs",
    ),
    Problem.NO_LOGPROBS: Advice(
        True, "the engine returns no logprobs", "start the engine with --max-logprobs 20 or more"
    ),
    Problem.NO_TOOL_PARSER: Advice(
        False,
        "tool calls are not parsed: a harness that offers tools is refused",
        "start the engine with --enable-auto-tool-choice --tool-call-parser PARSER",
    ),
    Problem.NO_REASONING_PARSER: Advice(
        False,
        "reasoning is not parsed: it arrives as part of the text",
        "for a model that reasons, start the engine with --reasoning-parser PARSER",
    ),
    Problem.NO_PREFIX_CACHE: Advice(
        False,
        "prefix caching is off: every turn reads the whole history again",
        "start the engine with --enable-prefix-caching",
    ),
    Problem.REPLICAS_DIFFER: Advice(
        True,
        "the replicas differ in model, version, tokenizer or template: not all of them are used",
        "serve the same model with the same flags on all of them",
    ),
    Problem.REPLICA_DOWN: Advice(
        False, "a replica does not answer", "start it, or take its URL out of the list"
    ),
}


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine is and can."""

    kind: Literal["vllm", "openai"]
    """`vllm`: returns token ids. `openai`: any other server that speaks chat completions."""
    version: str | None
    models: tuple[str, ...]
    served_model: str
    max_model_len: int | None
    way_in: WayName
    render_route: Literal["render", "tokenize"] | None = None
    can_generate: bool = False
    end_ids: frozenset[int] = frozenset()
    """Ids that end a turn, where known (from the model's files, if they are readable here)."""
    template_hash: str | None = None
    """Digest of what the engine makes of a fixed conversation: changes when its template does."""
    tokenizer_hash: str | None = None
    """Digest of what the engine makes of a fixed text."""
    problems: tuple[Problem, ...] = ()

    @property
    def can_render(self) -> bool:
        """Whether the engine turns messages into ids for us."""
        return self.render_route is not None

    @property
    def takes_ids(self) -> bool:
        """Whether a prompt can be sent as ids."""
        return self.way_in != "text"

    @property
    def is_exact(self) -> bool:
        """Whether nothing found keeps recordings from being exact."""
        return not any(ADVICE[problem].fatal for problem in self.problems)

    def with_problems(self, *more: Problem) -> "EngineInfo":
        """Return the same with problems added."""
        return replace(self, problems=tuple(dict.fromkeys((*self.problems, *more))))
