"""What is right for a conversation and a template, told from whole renders and a table by hand.

Independent of the finder: no skeleton, no markers in ids. A sentinel at the very end of the reply
in a render of the *whole* conversation shows where the reply's turn closes; the table says by
which token a model of that family ends its turn; the right suffix is what stands after it, cut in
the ids of the whole render by character offsets. An edit of meaning is a sign of the texts that
the render with the new messages lacks, repeats or moves.
"""

import json
import re
from array import array
from dataclasses import dataclass
from typing import Any, Literal

from jinja2 import TemplateError

from .conversations import Conversation, Message, sign
from .corpus import EOS
from .jinja_renderer import JinjaRenderer

_SIGN = re.compile(r"zq(\w+?)zq")
_SENTINEL = sign("SENT")

_DEEPSEEK_STOP = "<\uff5cend\u2581of\u2581sentence\uff5c>"
_STOPS = (
    # family prefix, stop sampled after a text, stop sampled after a tool call
    ("cohere", "<|END_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
    ("deepseek", _DEEPSEEK_STOP, _DEEPSEEK_STOP),
    ("gemma4_v2", "<turn|>", "<turn|>"),
    ("gemma4", "<turn|>", "<|tool_response>"),
    ("diffusion_gemma", "<turn|>", "<|tool_response>"),
    ("gemma", "<end_of_turn>", "<end_of_turn>"),
    ("glm", "<|user|>", "<|observation|>"),
    ("gptoss", "<|return|>", "<|call|>"),
    ("idefics3", "<end_of_utterance>", "<end_of_utterance>"),
    ("smolvlm", "<end_of_utterance>", "<end_of_utterance>"),
    ("llama3", "<|eot_id|>", "<|eot_id|>"),
    ("llava", "</s>", "</s>"),
    ("muse", "<|eot|>", "<|eot|>"),
    ("phi3", "<|end|>", "<|end|>"),
)  # fmt: skip
_CHATML_STOP = "<|im_end|>"


def stop_id_of(renderer: JinjaRenderer, reply: Message) -> int:
    """The id of `stop_of`."""
    return renderer.id_of(stop_of(renderer, reply))


def stop_of(renderer: JinjaRenderer, reply: Message) -> str:
    """The token with which a model of this template ends such a reply."""
    if renderer.template.name.startswith("mistral/"):
        return EOS
    for prefix, after_text, after_call in _STOPS:
        if renderer.template.family.startswith(prefix):
            return after_call if reply.get("tool_calls") else after_text
    return _CHATML_STOP


@dataclass(frozen=True, slots=True)
class Truth:
    """The right answer for one conversation under one template."""

    edit: Literal["none", "cosmetic", "early_text", "semantic"]
    """What the template does to prompt and reply once the new messages stand there."""
    suffix: "array[int] | None"
    """The ids after the sampled stop; None where the template doesn't write that stop."""
    only_reasoning: bool
    """The edit of meaning is nothing but lost reasoning."""
    stop_id: int
    full: "array[int]"
    """The whole conversation's render."""

    @property
    def splice(self) -> bool:
        """Whether prompt + output + suffix is what the template makes of the conversation."""
        return self.edit != "semantic" and self.suffix is not None


class Unsupported(Exception):
    """The template refuses the conversation."""


def tell(renderer: JinjaRenderer, talk: Conversation, arguments: dict[str, Any]) -> Truth:
    """The truth about a conversation; raises Unsupported where the template refuses it."""

    def text(messages: list[Message], prompt: bool = True) -> str:
        try:
            return renderer.text(messages, talk.tools, arguments, prompt)
        except (TemplateError, TypeError, AttributeError, ValueError) as error:
            raise Unsupported(str(error)) from error

    closed = _with_sentinel(talk.reply)
    marked = text([*talk.history, closed, *talk.tail])
    before = text(talk.history)
    after = text([*talk.history, talk.reply, *talk.tail])
    stop = stop_of(renderer, talk.reply)
    stop_id = stop_id_of(renderer, talk.reply)
    full = renderer.ids(after)
    edit, only_reasoning = _edit(before, after, talk)
    if edit == "cosmetic" and _agree(after, before) < _agree(before, text(talk.history, False)):
        edit = "early_text"
    end = marked.find(_SENTINEL)
    if end < 0:
        return Truth("semantic", None, False, stop_id, full)
    end += len(_SENTINEL)
    blind = [{**message, "content": sign(f"T{i}")} for i, message in enumerate(talk.tail)]
    gap = _gap(text([*talk.history, closed, *blind]), len(blind))
    at = gap.find(stop)
    suffix = None if at < 0 else _ids_after(renderer, marked, end + at, stop_id)
    return Truth(edit, suffix, only_reasoning, stop_id, full)


def _edit(before: str, after: str, talk: Conversation) -> tuple[Any, bool]:
    seen, reply = _SIGN.findall(after), _signs([talk.reply])
    wanted = [*_SIGN.findall(before), *reply, *_signs(talk.tail)]
    if seen == wanted:
        return ("none" if after.startswith(before) else "cosmetic"), False
    thoughts = set(_SIGN.findall(" ".join(
        message.get("reasoning") or "" for message in [*talk.history, talk.reply]
    )))  # fmt: skip
    rest = iter(wanted)
    lost_only = [x for x in wanted if x not in thoughts] == [x for x in seen if x not in thoughts]
    return "semantic", lost_only and all(x in rest for x in seen)


def _signs(messages: list[Message]) -> list[str]:
    found: list[str] = []
    for message in messages:
        found += _SIGN.findall(message.get("reasoning") or "")
        found += _SIGN.findall(message.get("content") or "")
        for call in message.get("tool_calls") or []:
            found += _SIGN.findall(call["function"]["arguments"])
    return found


def _with_sentinel(reply: Message) -> Message:
    """The reply with the sentinel at the end of its last field."""
    if not reply.get("tool_calls"):
        return {**reply, "content": (reply["content"] or "").rstrip() + _SENTINEL}
    *others, last = reply["tool_calls"]
    arguments = json.loads(last["function"]["arguments"])
    key = list(arguments)[-1]
    arguments[key] = f"{arguments[key]}{_SENTINEL}"
    text = json.dumps(arguments, ensure_ascii=False)
    closed = {**last, "function": {**last["function"], "arguments": text}}
    return {**reply, "tool_calls": [*others, closed]}


def _gap(marked: str, n_tail: int) -> str:
    """What the template writes between the reply's end and the first of the new texts."""
    start = marked.find(_SENTINEL) + len(_SENTINEL)
    places = [marked.find(sign(f"T{i}"), start) for i in range(n_tail)]
    return marked[start : min((place for place in places if place >= 0), default=len(marked))]


def _ids_after(renderer: JinjaRenderer, text: str, cut: int, stop_id: int) -> "array[int]":
    """The ids of `text` after the stop that stands at character `cut`."""
    encoded = renderer.tokenizer.encode(text, add_special_tokens=False)
    for i, (token, (start, end)) in enumerate(zip(encoded.ids, encoded.offsets, strict=True)):
        if token == stop_id and start <= cut < max(end, start + 1):
            return array("I", encoded.ids[i + 1 :])
    raise AssertionError(f"the stop at {cut} is no token of its own")


def _agree(a: str, b: str) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
