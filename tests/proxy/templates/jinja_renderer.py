"""A renderer made of an installed template and a toy tokenizer: what an engine's render route does.

Rendering is transformers' own; messages are prepared as vLLM 0.32 prepares them (reasoning under
both names, tool arguments as objects).
"""

import json
from array import array
from typing import Any

from jinja2 import TemplateError
from tokenizers import Tokenizer
from transformers.utils.chat_template_utils import _compile_jinja_template

from budwood.proxy.lineage.suffix import RenderRejected

from .corpus import BOS, EOS, PAD, ChatTemplate


class JinjaRenderer:
    """A Renderer over one template and one tokenizer; `text` gives what it tokenises."""

    def __init__(self, chat_template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self.template = chat_template
        self.tokenizer = tokenizer
        self.n_renders = 0
        self._compiled = _compile_jinja_template(chat_template.source)

    async def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None,
        template: dict[str, Any],
        add_generation_prompt: bool = True,
    ) -> "array[int]":
        arguments = template.get("chat_template_kwargs") or {}
        try:
            text = self.text(messages, tools, arguments, add_generation_prompt)
        except (TemplateError, TypeError, AttributeError, ValueError) as error:
            raise RenderRejected(400, str(error)) from error
        return self.ids(text)

    async def tokenize(self, text: str) -> "array[int]":
        return self.ids(text)

    def ids(self, text: str) -> "array[int]":
        return array("I", self.tokenizer.encode(text, add_special_tokens=False).ids)

    def id_of(self, token: str) -> int:
        """The id of a control token."""
        found = self.tokenizer.token_to_id(token)
        assert found is not None, token
        return found

    def text(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None,
        arguments: dict[str, Any],
        add_generation_prompt: bool = True,
    ) -> str:
        self.n_renders += 1
        return self._compiled.render(
            messages=[self._prepared(message) for message in messages],
            tools=tools,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            bos_token=BOS,
            eos_token=EOS,
            pad_token=PAD,
            **arguments,
        )

    def _prepared(self, message: dict[str, Any]) -> dict[str, Any]:
        out = dict(message)
        if out.get("reasoning") is not None:
            out["reasoning_content"] = out["reasoning"]
        if calls := out.get("tool_calls"):
            out["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": self._arguments(call)}}
                for call in calls
            ]
        if self.template.content_in_parts and isinstance(out.get("content"), str):
            out["content"] = [{"type": "text", "text": out["content"]}]
        return out

    def _arguments(self, call: dict[str, Any]) -> object:
        value = json.loads(call["function"]["arguments"])
        if self.template.arguments_as_text:
            return json.dumps(value, ensure_ascii=False)
        return value
