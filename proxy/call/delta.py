"""A piece of a reply on its way from the engine to a client."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolDelta:
    """A piece of one tool call. The first of an index carries `id` and `name`."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a reply; all of it may be empty while tokens are swallowed by a parser."""

    content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolDelta, ...] = ()
    token_ids: Sequence[int] | None = None
    """Ids of the tokens of this piece; only shown to a client that asked for ids."""
    logprobs: Sequence[dict] | None = None
    """The engine's `logprobs.content` entries of these tokens; only shown to one that asked."""
