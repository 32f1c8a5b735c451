"""What a template shows and keeps, told by a few small renders: for logs and `budwood doctor`.

No call is decided by this (a profile misses edits that depend on the conversation); the verdicts
of the finder decide.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .markers import IN_TOOLS, Markers, marker_text
from .renderer import Renderer, RenderRejected

Reasoning = Literal["never", "loop_only", "last_only", "keeps"]
Answer = bool | None
"""Whether the template does it; None where it refuses the messages that would tell."""

_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": marker_text(IN_TOOLS),
            "parameters": {
                "type": "object",
                "properties": {"x": {"type": "string", "description": "What to look up"}},
                "required": ["x"],
            },
        },
    }
]


@dataclass(frozen=True, slots=True)
class TemplateProfile:
    """The answers of one template under one set of template arguments."""

    reasoning: Reasoning
    """Which reasoning of the history is shown: none, that of the tool loop still going on, that of
    the last assistant message, or all."""
    shows_tools: Answer
    shows_tool_calls: Answer
    shows_tool_results: Answer
    shows_text_beside_calls: Answer
    accepts_parallel_calls: bool
    accepts_content_none: bool
    accepts_developer: bool
    accepts_system_in_the_middle: bool
    moves_tools: Answer
    """A new user message moves the tool list (to that message)."""
    moves_system: Answer
    """A new user message moves the system text."""

    def warnings(self, *, reasoning_parser: bool = False, uses_tools: bool = True) -> list[str]:
        """What a user should know before recording, a line each."""
        found = []
        if self.reasoning == "never" and reasoning_parser:
            found.append(
                "the template never shows earlier reasoning: under history=as-sent every turn with"
                " reasoning starts a new branch"
            )
        if uses_tools and self.shows_tools is not True:
            found.append("the template does not show the tool list to the model")
        if uses_tools and self.shows_tool_calls is not True:
            found.append("the template does not show earlier tool calls to the model")
        if uses_tools and self.shows_tool_results is not True:
            found.append("the template does not show tool results to the model")
        if uses_tools and self.shows_text_beside_calls is False:
            found.append("the template drops a reply's text where it calls tools as well")
        if uses_tools and not self.accepts_parallel_calls:
            found.append("the template refuses several tool calls in one reply")
        if uses_tools and self.moves_tools:
            found.append("each user message moves the tool list: it starts a new branch")
        if self.moves_system:
            found.append("each user message moves the system text: it starts a new branch")
        if not self.accepts_system_in_the_middle:
            found.append(
                "system messages past the first are refused: they are moved into user text"
            )
        if not self.accepts_developer:
            found.append("the developer role is refused: it is sent as system")
        return found


async def probe_profile(renderer: Renderer, template: dict[str, Any]) -> TemplateProfile:
    """The profile of the renderer's template under `template`; raises MarkersUnstable."""
    probe = _Probe(renderer, template, await Markers.learn(renderer.tokenize))
    call, result = _assistant("", calls=(3,)), _result(4)
    turn = [_user(1), call, result]
    parallel = [_user(1), _assistant("", calls=(3, 5)), _result(4), _result(6, 1)]
    late_system = [_user(1), _assistant(_m(2)), _system(3), _user(4)]
    beside = [_user(1), _assistant(_m(2), calls=(3,)), result]
    moving = [_system(7), _user(1), _assistant(_m(2)), _user(3)]
    return TemplateProfile(
        reasoning=await probe.reasoning(),
        shows_tools=await probe.shows([_user(1)], IN_TOOLS, tools=True),
        shows_tool_calls=await probe.shows(turn, 3, tools=True),
        shows_tool_results=await probe.shows(turn, 4, tools=True),
        shows_text_beside_calls=await probe.shows(beside, 2, tools=True),
        accepts_parallel_calls=await probe.order(parallel, tools=True) is not None,
        accepts_content_none=await probe.order(
            [_user(1), _assistant(None, calls=(3,)), result], tools=True
        )
        is not None,
        accepts_developer=await probe.order([{**_system(7), "role": "developer"}, _user(1)])
        is not None,
        accepts_system_in_the_middle=await probe.order(late_system) is not None,
        moves_tools=await probe.moves(moving[1:], IN_TOOLS, tools=True),
        moves_system=await probe.moves(moving, 7),
    )


class _Probe:
    """Small renders, read by their markers."""

    def __init__(self, renderer: Renderer, template: dict[str, Any], markers: Markers) -> None:
        self._renderer = renderer
        self._template = template
        self._markers = markers

    async def order(self, messages: list[dict], *, tools: bool = False) -> list[int] | None:
        """The markers in the render, in order; None where the messages are refused."""
        try:
            ids = await self._renderer.render(messages, _TOOLS if tools else None, self._template)
        except RenderRejected:
            return None
        return [found.number for found in self._markers.find(ids)]

    async def shows(self, messages: list[dict], number: int, *, tools: bool = False) -> Answer:
        seen = await self.order(messages, tools=tools)
        return None if seen is None else number in seen

    async def moves(self, messages: list[dict], number: int, *, tools: bool = False) -> Answer:
        """Whether marker `number` stands elsewhere among the first texts after two more turns."""
        before = await self.order(messages[:-2], tools=tools)
        after = await self.order(messages, tools=tools)
        if before is None or after is None:
            return None
        return after[: len(before)] != before and number in before

    async def reasoning(self) -> Reasoning:
        """Which earlier reasoning is shown; shapes that are refused count as not shown."""
        in_loop = await self.shows(
            [_user(1), _assistant("", 2, calls=(3,)), _result(4)], 2, tools=True
        )
        old_loop = await self.shows(
            [_user(1), _assistant("", 2, calls=(3,)), _result(4), _assistant(_m(5)), _user(6)],
            2,
            tools=True,
        )
        old_text = [_user(1), _assistant(_m(3), 2), _user(4), _assistant(_m(6), 5), _user(7)]
        seen = await self.order(old_text) or []
        if 2 in seen and (old_loop or in_loop is None):
            return "keeps"
        if 5 in seen:
            return "last_only"
        return "loop_only" if in_loop else "never"


def _m(number: int) -> str:
    return marker_text(number)


def _system(number: int) -> dict[str, Any]:
    return {"role": "system", "content": _m(number)}


def _user(number: int) -> dict[str, Any]:
    return {"role": "user", "content": _m(number)}


def _assistant(
    content: str | None, reasoning: int | None = None, calls: Sequence[int] = ()
) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning is not None:
        message["reasoning"] = _m(reasoning)
    if calls:
        message["tool_calls"] = [
            {
                "id": f"abcdef{place:03d}",
                "type": "function",
                "function": {"name": "look_up", "arguments": f'{{"x": "{_m(number)}"}}'},
            }
            for place, number in enumerate(calls)
        ]
    return message


def _result(number: int, place: int = 0) -> dict[str, Any]:
    call_id = f"abcdef{place:03d}"
    return {"role": "tool", "content": _m(number), "tool_call_id": call_id, "name": "look_up"}
