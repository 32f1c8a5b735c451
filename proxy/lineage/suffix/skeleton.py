"""A conversation of the same structure with markers for texts, and no longer than it must be.

Templates branch on structure: roles, who follows whom, what is none, empty or blank, how many
calls a turn has, where reasoning stands, and on tags inside texts (`</think>`, a user text framed
as `<tool_response>`). All of that stays. Every other text becomes a numbered marker, so that the
markers' order in a render tells what the template kept, lost, repeated or moved.

Long conversations are cut to a representative of at most a few turns of a few tool cycles each:
what templates look at is first and last things, not the hundredth of a kind.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Any

import orjson

from .markers import END, IN_TOOLS, marker_text

_TAG = re.compile(r"<[^<>\n]{1,40}>|\[/?[A-Z_]{2,20}\]")
_MAX_TAGS = 16
_REACHES = (1024, 8192, 65_536)
_MAX_EDGE = 4
_MAX_BLANK = 16
_MAX_TURNS = 4
_MAX_CYCLES = 4

Wire = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Skeleton:
    """What is rendered in place of a conversation, and which markers should come out of it."""

    history: list[Wire]
    reply: Wire
    """The reply; its last field ends in the end marker."""
    tail: list[Wire]
    """The new messages, texts replaced but tags kept."""
    gap_tail: list[Wire]
    """The new messages with nothing but a marker each; the same list where that is no difference.

    Tags in new texts may spell a stop token, so the end of the reply is looked for before these.
    """
    reply_markers: tuple[int, ...]
    tail_markers: tuple[int, ...]
    reasoning_markers: frozenset[int]
    """Those of the markers that stand for reasoning, in history and reply."""
    signature: bytes
    """16 bytes: equal for conversations that no template can tell apart but by their words."""
    structure: bytes
    """16 bytes: coarser, without tags and white space; what audits are counted by."""


class TooManyMarkers(ValueError):
    """The conversation has more separate texts than there are markers."""


def build_skeleton(
    history: Sequence[Wire], reply: Wire, tail: Sequence[Wire], *context: object
) -> Skeleton:
    """The compressed skeleton of `history` + `reply` + `tail` (chat messages, texts as strings).

    `context` is whatever else the template's output depends on (stop id, tools, template
    arguments): JSON values that become part of the signatures. Raises TooManyMarkers.
    """
    outliner = _Outliner()
    kept = compress([*history, reply])
    messages = [outliner.message(message) for message in kept[:-1]]
    first_reply = outliner.n
    closed = outliner.reply(reply)
    first_tail = outliner.n
    new = [outliner.message(message) for message in tail]
    n_all = outliner.n
    gap = new if _open_plainly(new) else [outliner.blind(message) for message in tail]
    where = blake2b(orjson.dumps(context, option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()
    return Skeleton(
        history=messages,
        reply=closed,
        tail=new,
        gap_tail=gap,
        reply_markers=(*range(first_reply + 1, first_tail + 1), END),
        tail_markers=tuple(range(first_tail + 1, n_all + 1)),
        reasoning_markers=frozenset(outliner.reasoning),
        signature=_digest([*messages, closed], new, _verbatim, where),
        structure=_digest([*kept[:-1], closed], list(tail), _kind, where),
    )


class _Outliner:
    """Replaces texts by markers, counting them."""

    def __init__(self) -> None:
        self.n = 0
        self.reasoning: list[int] = []

    def _marker(self) -> str:
        self.n += 1
        if self.n == IN_TOOLS:
            raise TooManyMarkers(f"the conversation has {self.n} texts or more")
        return marker_text(self.n)

    def message(self, message: Wire) -> Wire:
        out = dict(message)
        before = self.n
        if reasoning := message.get("reasoning"):
            out["reasoning"] = outline(reasoning, self._marker)
        self.reasoning += range(before + 1, self.n + 1)
        if content := message.get("content"):
            out["content"] = outline(content, self._marker)
        if calls := message.get("tool_calls"):
            out["tool_calls"] = [_with_argument(call, self._marker()) for call in calls]
        return out

    def reply(self, message: Wire) -> Wire:
        """The skeleton of the reply, closed by the end marker."""
        calls = message.get("tool_calls")
        out = self.message({**message, "tool_calls": calls[:-1]} if calls else message)
        if calls:
            out["tool_calls"].append(_with_argument(calls[-1], marker_text(END)))
        else:
            text = (out.get("content") or "").rstrip()
            out["content"] = f"{text} {marker_text(END)}" if text else marker_text(END)
        return out

    def blind(self, message: Wire) -> Wire:
        return {**message, "content": self._marker()}


def outline(text: str, marker: Callable[[], str]) -> str:
    """`text` with each stretch between tag-like pieces replaced by a marker.

    Of many tags the outer ones stay; blank stretches and up to four characters of white space at
    the edges of the others stay as well. A text that is only white space stays (its start).
    """
    if not text.strip():
        return text[:_MAX_BLANK]
    out, at = [], 0
    for tag in _outer_tags(text):
        out += (_stretch(text[at : tag.start()], marker), tag.group())
        at = tag.end()
    out.append(_stretch(text[at:], marker))
    return "".join(out)


def _outer_tags(text: str) -> list[re.Match[str]]:
    """The tags of a text; of many, half of the limit from each end.

    The last ones are looked for near the end only: a page of HTML holds a tag every few characters.
    """
    half = _MAX_TAGS // 2
    tags = list(islice(_TAG.finditer(text), _MAX_TAGS + 1))
    if len(tags) <= _MAX_TAGS:
        return tags
    first, last = tags[:half], tags[:0]
    for reach in _REACHES:
        start = max(first[-1].end(), len(text) - reach)
        last = list(_TAG.finditer(text, start))[-half:]
        if len(last) == half:
            break
    return first + last


def _stretch(text: str, marker: Callable[[], str]) -> str:
    bare = text.strip()
    if not bare:
        return text[:_MAX_EDGE]
    start = text.index(bare[0])
    end = len(text) - start - len(bare)
    return text[:start][:_MAX_EDGE] + marker() + (text[-end:][-_MAX_EDGE:] if end else "")


def _with_argument(call: Wire, text: str) -> Wire:
    arguments = json.dumps({"x": text}, ensure_ascii=False)
    return {**call, "function": {**call["function"], "arguments": arguments}}


def _open_plainly(tail: Iterable[Wire]) -> bool:
    """Whether the first thing in every new message is a marker."""
    opening = marker_text(1).split(maxsplit=1)[0]
    return all((message.get("content") or "").lstrip().startswith(opening) for message in tail)


def mark_tools(tools: list[Any] | None) -> list[Any] | None:
    """The tool list with a marker at the end of its first description.

    Templates that put the tools in front of the last user message move them with every new one.
    """
    for i, tool in enumerate(tools or ()):
        function = tool.get("function") if isinstance(tool, dict) else None
        if isinstance(function, dict):
            text = f"{function.get('description') or ''} {marker_text(IN_TOOLS)}".lstrip()
            marked = {**tool, "function": {**function, "description": text}}
            return [*tools[:i], marked, *tools[i + 1 :]]  # type: ignore[index]
    return tools


# -- compression ---------------------------------------------------------------------------------


def compress(messages: Sequence[Wire]) -> list[Wire]:
    """The messages that stand for all: leading system text, few turns, few cycles in each.

    A turn is user messages and what follows; a cycle is an assistant message and what follows.
    Always the first and the last two of each, and those that templates treat otherwise: the first
    and the last with reasoning, with calls, with results, or with a system message inside, the last
    with text. The last message is always kept. (DeepSeek's templates open the list of results at
    the first one of the whole conversation only.)
    """
    n_head = next((i for i, m in enumerate(messages) if not _is_system(m)), len(messages))
    turns = _split(messages[n_head:], lambda m, last: m["role"] == "user" != last["role"])
    if len(turns) > _MAX_TURNS:
        turns = _representatives(turns)
    return [*messages[:n_head], *(message for turn in turns for message in _compress_turn(turn))]


def _compress_turn(turn: list[Wire]) -> list[Wire]:
    n_users = next((i for i, m in enumerate(turn) if m["role"] != "user"), len(turn))
    cycles = _split(turn[n_users:], lambda m, last: m["role"] == "assistant")
    if len(cycles) > _MAX_CYCLES:
        texts = [i for i, cycle in enumerate(cycles) if cycle[0].get("content")]
        cycles = _representatives(cycles, also=texts[-1:])
    users = turn[:n_users] if n_users <= 2 else [turn[0], turn[n_users - 1]]
    return [*users, *(message for cycle in cycles for message in cycle)]


def _split(messages: Sequence[Wire], starts: Callable[[Wire, Wire], bool]) -> list[list[Wire]]:
    parts: list[list[Wire]] = []
    for message in messages:
        if parts and not starts(message, parts[-1][-1]):
            parts[-1].append(message)
        else:
            parts.append([message])
    return parts


def _representatives(parts: list[list[Wire]], also: Sequence[int] = ()) -> list[list[Wire]]:
    kept = {0, len(parts) - 2, len(parts) - 1, *also}
    for is_special in (_has_reasoning, _has_calls, _has_results, _has_system):
        places = [i for i, part in enumerate(parts) if is_special(part)]
        kept.update(places[:1] + places[-1:])
    return [parts[i] for i in sorted(kept)]


def _is_system(message: Wire) -> bool:
    return message["role"] in ("system", "developer")


def _has_system(messages: list[Wire]) -> bool:
    return any(_is_system(message) for message in messages)


def _has_calls(messages: list[Wire]) -> bool:
    return any(message.get("tool_calls") for message in messages)


def _has_results(messages: list[Wire]) -> bool:
    return any(message["role"] == "tool" for message in messages)


def _has_reasoning(messages: list[Wire]) -> bool:
    return any(message.get("reasoning") for message in messages)


# -- signatures ----------------------------------------------------------------------------------


def _verbatim(text: str | None) -> object:
    return text


def _kind(text: str | None) -> object:
    if not text:
        return text
    return " " if text.isspace() else "x"


def _digest(
    messages: list[Wire],
    tail: list[Wire],
    see: Callable[[str | None], object],
    where: str,
) -> bytes:
    """Digest of messages seen through `see`; ids and names count only by which are equal."""
    aliases: dict[str, int] = {}

    def alias(name: str | None) -> int | None:
        return None if name is None else aliases.setdefault(name, len(aliases))

    def seen(message: Wire) -> list[object]:
        calls = message.get("tool_calls")
        return [
            message["role"],
            see(message.get("content")),
            see(message.get("reasoning")),
            alias(message.get("tool_call_id")),
            alias(message.get("name")),
            calls and [[alias(call.get("id")), alias(call["function"]["name"])] for call in calls],
        ]

    value = [[seen(m) for m in messages], [seen(m) for m in tail], where]
    return blake2b(orjson.dumps(value), digest_size=16).digest()
