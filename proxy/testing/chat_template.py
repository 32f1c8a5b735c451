"""The chat template of the test models, and its rendering without transformers.

The template, on purpose:
  * marks what the assistant wrote with `{% generation %}`, so that transformers'
    `return_assistant_tokens_mask=True` and TRL's `assistant_only_loss` work;
  * writes Hermes tool calls, `<tool_call>{"name", "arguments"}</tool_call>` (vLLM:
    `--tool-call-parser hermes`), and reasoning as `<think>...</think>` (`qwen3`);
  * strips the newlines that the parser hands back around thought and text before it adds its own,
    so what a harness echoes renders to the text that was generated;
  * never rewrites earlier turns: the rendering of a conversation is a prefix of the rendering of
    its continuation. `DROPS_THINKING` differs in this one point: it leaves out the reasoning of
    every turn before the last user message, as Qwen3's own template does;
  * takes `enable_thinking`: false opens the reply with an empty think block.
"""

import json
from functools import lru_cache
from typing import Any

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

CHAT_TEMPLATE = r"""
{%- macro text(content) -%}
  {%- if content is string -%}{{ content }}
  {%- elif content -%}
    {%- for part in content if part.type == 'text' -%}{{ part.text }}{%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- set first_is_system = messages and messages[0].role in ['system', 'developer'] -%}
{%- if tools or first_is_system -%}
  {{- '<|im_start|>system\n' -}}
  {%- if first_is_system -%}{{- text(messages[0].content) -}}{%- endif -%}
  {%- if tools -%}
    {%- if first_is_system -%}{{- '\n\n' -}}{%- endif -%}
    {{- 'Tools you may call, one JSON schema a line:\n<tools>\n' -}}
    {%- for tool in tools -%}{{- (tool | tojson) + '\n' -}}{%- endfor -%}
    {{- '</tools>\nCall one like this:\n' -}}
    {{- '<tool_call>\n{"name": NAME, "arguments": OBJECT}\n</tool_call>' -}}
  {%- endif -%}
  {{- '<|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
  {%- if loop.first and first_is_system -%}
  {%- elif message.role == 'assistant' -%}
    {{- '<|im_start|>assistant\n' -}}
    {%- generation -%}
      {%- set thought = message.reasoning_content or message.reasoning -%}
      {%- if thought -%}{{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' -}}{%- endif -%}
      {%- set said = text(message.content).strip('\n') -%}
      {{- said -}}
      {%- for call in message.tool_calls or [] -%}
        {%- set function = call.function or call -%}
        {%- if not loop.first or said -%}{{- '\n' -}}{%- endif -%}
        {{- '<tool_call>\n{"name": "' + function.name + '", "arguments": ' -}}
        {%- if function.arguments is string -%}{{- function.arguments -}}
        {%- else -%}{{- function.arguments | tojson -}}{%- endif -%}
        {{- '}\n</tool_call>' -}}
      {%- endfor -%}
      {{- '<|im_end|>' -}}
    {%- endgeneration -%}
    {{- '\n' -}}
  {%- elif message.role == 'tool' -%}
    {%- if loop.first or loop.previtem.role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
    {{- '\n<tool_response>\n' + text(message.content) + '\n</tool_response>' -}}
    {%- if loop.last or loop.nextitem.role != 'tool' -%}{{- '<|im_end|>\n' -}}{%- endif -%}
  {%- else -%}
    {{- '<|im_start|>' + message.role + '\n' + text(message.content) + '<|im_end|>\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\n' -}}
  {%- if enable_thinking is defined and enable_thinking is false -%}
    {{- '<think>\n\n</think>\n\n' -}}
  {%- endif -%}
{%- endif -%}
""".strip()

_KEPT = "{%- set thought = message.reasoning_content or message.reasoning -%}"
_DROPPED = (
    "{%- set thought = (message.reasoning_content or message.reasoning)"
    " if loop.index0 > last_user.index else none -%}"
)
_FIND_LAST_USER = (
    "{%- set last_user = namespace(index=-1) -%}{%- for message in messages -%}"
    "{%- if message.role == 'user' -%}{%- set last_user.index = loop.index0 -%}{%- endif -%}"
    "{%- endfor -%}"
)
DROPS_THINKING = _FIND_LAST_USER + CHAT_TEMPLATE.replace(_KEPT, _DROPPED)


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` renders its body, as transformers' tag does."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


@lru_cache(maxsize=16)
def _compiled(template: str) -> Any:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    return environment.from_string(template)


def render(
    messages: list[dict[str, Any]],
    tools: list[Any] | None = None,
    *,
    template: str = CHAT_TEMPLATE,
    add_generation_prompt: bool = True,
    **arguments: Any,
) -> str:
    """Return the text of a conversation, as vLLM renders it: tool arguments as parsed objects."""
    return _compiled(template).render(
        messages=[_with_object_arguments(message) for message in messages],
        tools=tools or None,
        add_generation_prompt=add_generation_prompt,
        **arguments,
    )


def _with_object_arguments(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not calls:
        return message
    parsed = []
    for call in calls:
        function = dict(call.get("function") or call)
        if isinstance(function.get("arguments"), str):
            try:
                function["arguments"] = json.loads(function["arguments"] or "{}")
            except ValueError as error:
                raise ValueError(f"tool arguments are not JSON: {error}") from error
        parsed.append({**call, "function": function})
    return {**message, "tool_calls": parsed}
