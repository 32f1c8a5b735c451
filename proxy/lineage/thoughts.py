"""The reasoning that a recorded conversation holds, for history policy `keep-reasoning`.

What stands before a call is what its parent's prompt showed and the parent's reply; behind that it
is as the harness sent it then. So the reasoning at any place of a conversation is found on the way
up from its last call: in replies, and in requests where an assistant message came from the harness
(a compacted history, say). Of two calls that said the same only the one on the way counts.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from budwood.trajectory_store import CallId, Turn

from ..call import ChatRequest, Message, mended, reply_thought
from .forest import Forest

MAX_REQUESTS = 64
"""Requests whose reasoning is remembered; others are read from the store again."""

LoadHistory = Callable[[CallId], Awaitable[Sequence[Message]]]


@dataclass(frozen=True, slots=True)
class Thought:
    """The reasoning of one assistant message."""

    text: str
    """As it is compared."""
    wire: Mapping[str, Any]
    """The field of the chat message that holds it: `reasoning`, or `content` with a think block."""


class Thoughts:
    """The reasoning in the conversations of one forest."""

    def __init__(self, forest: Forest, load_history: LoadHistory) -> None:
        """What `forest` holds; `load_history` gives the request of a call as it was sent."""
        self._forest = forest
        self._load_history = load_history
        self._sent: OrderedDict[CallId, dict[int, Thought]] = OrderedDict()

    async def shown(self, turn: Turn, request: ChatRequest) -> dict[int, Thought] | None:
        """The reasoning in the request and reply of `turn`, by position, dropped or not since.

        `request` begins with them, reasoning left out. None: not known, or `request` has other
        reasoning in one place.
        """
        found: dict[int, Thought] = {}
        for each, before in self._forest.path(turn):
            if before is None and each.parent is not None:
                return None
            thought = _of_reply(each.reply or {})
            if thought is not None:
                found[each.n_messages] = thought
            start = before.n_messages + 1 if before else 0
            new = request.messages[start : each.n_messages]
            if any(message.role == "assistant" for message in new):
                found |= await self._of_request(each, start)
        for position, message in enumerate(request.messages[: turn.n_messages + 1]):
            if message.thought:
                thought = found.get(position)
                if thought is None or thought.text != message.thought:
                    return None
        return found

    async def _of_request(self, turn: Turn, start: int) -> dict[int, Thought]:
        """The reasoning that the request of `turn` brought from position `start` on."""
        found = self._sent.get(turn.id)
        if found is None:
            messages = (await self._load_history(turn.id))[: turn.n_messages]
            found = {
                position: _of_message(message)
                for position, message in enumerate(messages)
                if position >= start and message.thought
            }
        self._sent[turn.id] = found
        self._sent.move_to_end(turn.id)
        if len(self._sent) > MAX_REQUESTS:
            self._sent.popitem(last=False)
        return found


def _of_reply(reply: Mapping[str, Any]) -> Thought | None:
    text = reply_thought(reply)
    if not text:
        return None
    name = "reasoning" if (reply.get("reasoning") or "").strip() else "content"
    return Thought(text, {name: mended(reply[name])})


def _of_message(message: Message) -> Thought:
    name = "reasoning" if (message.reasoning or "").strip() else "content"
    return Thought(message.thought, {name: message.wire[name]})
