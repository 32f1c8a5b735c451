"""The chat templates of the installed packages, and how an engine would call each.

TRL ships a file a family and a second, patched for training; vLLM ships a few fallbacks;
mistral_common generates one a tokenizer version.
"""

import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

BOS, EOS, PAD = "<|BOS|>", "<|EOS|>", "<|PAD|>"

_MISTRAL = (
    # name, SentencePiece, version, thinking tokens, plain thinking tags
    ("v1", True, "v1", False, False),
    ("v2", True, "v2", False, False),
    ("v3spm", True, "v3", False, False),
    ("v3tek", False, "v3", False, False),
    ("v7", False, "v7", False, False),
    ("v11", False, "v11", False, False),
    ("v11think", False, "v11", False, True),
    ("v13", False, "v13", True, False),
)
_VLLM = ("chatml", "minicpmv45")
_SWITCHES = (
    ("enable_thinking", (True, False)),
    ("preserve_thinking", (True,)),
    ("clear_thinking", (False,)),
    ("truncate_history_thinking", (False,)),
)


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """One template: its source, and the form in which it wants contents and arguments."""

    name: str
    source: str
    arguments_as_text: bool = False
    """Tool arguments are given as JSON text (a template that concatenates them)."""
    content_in_parts: bool = False
    """Contents are given as lists of parts, as vLLM does for templates that loop over them."""

    @property
    def family(self) -> str:
        """The name without the package it came from."""
        return self.name.partition("/")[2]

    @property
    def variants(self) -> list[dict[str, Any]]:
        """The template arguments worth trying: none, and each switch that the source reads."""
        found: list[dict[str, Any]] = [{}]
        for name, values in _SWITCHES:
            if name in self.source:
                found += [{name: value} for value in values]
        return found


@cache
def templates() -> tuple[ChatTemplate, ...]:
    """All text templates that are installed, by name."""
    sources = {f"trl/{path.stem}": path.read_text() for path in _files("trl", "chat_templates")}
    for path in _files("vllm", "transformers_utils", "chat_templates"):
        name = path.stem.removeprefix("template_")
        if name in _VLLM:
            sources[f"vllm/{name}"] = path.read_text()
    sources |= _mistral_sources()
    return tuple(_described(name, source) for name, source in sorted(sources.items()))


def template(name: str) -> ChatTemplate:
    """The installed template of that name."""
    return next(found for found in templates() if found.name == name)


def _described(name: str, source: str) -> ChatTemplate:
    in_parts = name.removesuffix("_training") in ("trl/idefics3", "trl/smolvlm", "trl/llava_next")
    return ChatTemplate(name, source, name == "trl/deepseekv3", in_parts)


def _files(package: str, *folders: str) -> list[Path]:
    spec = importlib.util.find_spec(package)  # importing vLLM for its files would take seconds
    assert spec is not None
    assert spec.origin is not None
    return sorted(Path(spec.origin).parent.joinpath(*folders).glob("*.jinja"))


def _mistral_sources() -> dict[str, str]:
    from mistral_common.integrations.chat_templates.chat_templates import generate_chat_template
    from mistral_common.tokens.tokenizers.base import TokenizerVersion

    return {
        f"mistral/{name}": generate_chat_template(
            spm=sentencepiece,
            tokenizer_version=TokenizerVersion(version),
            image_support=False,
            audio_support=False,
            thinking_support=thinking,
            default_system_prompt=None,
            plain_thinking_support=plain,
            use_special_token_variables=True,
            model_settings_fields=None,
            reasoning_effort_values=None,
            reasoning_effort_default=None,
        )
        for name, sentencepiece, version, thinking, plain in _MISTRAL
    }
