"""An engine in this process: a template, a hostile tokenizer, and replies that no template writes.

Ids and parsing are those of the scripted engine; no sockets, so that thousands of conversations
take seconds.
"""

import json
from array import array
from random import Random
from typing import Any

from budwood.proxy.testing import Reply, ToyTokenizer
from budwood.proxy.testing.chat_template import CHAT_TEMPLATE, render
from budwood.proxy.testing.scripted_reply import Sampled, sample

_WORDS = (
    "look", "the file", "na\u00efve", "\u6f22", "ok", "fix it", "return 0", "  two spaces  ", "<b>",
    "</think>", "a <tool_call> tag", "user", "\u2713 done", "`x`", "1.50", "{}", "line\nbreak",
)  # fmt: skip


def words(chance: Random, n: int) -> str:
    """Return some text that occurs once only."""
    return " ".join([*(chance.choice(_WORDS) for _ in range(n)), f"#{chance.getrandbits(40):x}"])


def plain_words(chance: Random, n: int) -> str:
    """Return some text without markup: what a model says."""
    safe = [word for word in _WORDS if "<" not in word]
    return " ".join([*(chance.choice(safe) for _ in range(n)), f"#{chance.getrandbits(40):x}"])


_TOKENIZER = ToyTokenizer(adversarial=True)


class FakeEngine:
    """Renders and tokenises (it is a `Renderer`), and samples."""

    def __init__(self, template: str = CHAT_TEMPLATE) -> None:
        self.template = template
        self.tokenizer = _TOKENIZER

    async def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None,
        template: dict[str, Any],
        add_generation_prompt: bool = True,
    ) -> "array[int]":
        """The ids of a prompt."""
        text = self.text(messages, tools, add_generation_prompt=add_generation_prompt)
        return array("I", self.tokenizer.encode(text))

    async def tokenize(self, text: str) -> "array[int]":
        """The ids of bare text."""
        return array("I", self.tokenizer.encode(text))

    def text(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None,
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """The text of a prompt."""
        return render(
            messages, tools, template=self.template, add_generation_prompt=add_generation_prompt
        )

    def sample(self, reply: Reply, seed: int, *, tools: bool, max_tokens: int | None) -> Sampled:
        """The tokens of a reply: a spelling that the tokenizer itself would seldom choose."""
        return sample(reply, self.tokenizer, seed=seed, tools=tools, max_tokens=max_tokens)


def odd_arguments(chance: Random) -> str:
    """Return tool arguments as models write them: valid mostly, spelled as no template would."""
    value: dict[str, Any] = {
        "command": plain_words(chance, 2),
        "n": chance.choice([1, 1.0, -0.5, 10**12, True, None]),
        "nested": {"b": [1, {"a": "\u00e9"}], "a": plain_words(chance, 1)},
    }
    kept = dict(list(value.items())[: chance.randint(1, 3)])
    text = json.dumps(
        kept,
        ensure_ascii=chance.random() < 0.3,
        separators=chance.choice([(", ", ": "), (",", ":"), (" ,", " :  ")]),
    )
    return text[:-2] if chance.random() < 0.04 else text


def invented_reply(chance: Random, *, reasons: bool, n_calls: int, says: bool) -> Reply:
    """Return a reply of this shape."""
    return Reply(
        content=plain_words(chance, chance.randint(1, 6)) if says or not n_calls else "",
        reasoning=plain_words(chance, chance.randint(1, 6)) if reasons else "",
        tool_calls=[
            (chance.choice(["bash", "edit", "read"]), odd_arguments(chance)) for _ in range(n_calls)
        ],
    )
