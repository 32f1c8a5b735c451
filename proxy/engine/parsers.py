"""Which of vLLM's parsers a model needs, guessed from its own files.

The template's markup decides where it can be read, for parsers follow markup; else the name of the
model's type. A guess is only a default: `budwood engine --tool-parser --reasoning-parser` override
it, and vLLM itself refuses a name that it does not know.
"""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Parsers:
    """Names as `--tool-call-parser` and `--reasoning-parser` take them; None: no such parser."""

    tool: str | None
    reasoning: str | None


_BY_MARKUP: tuple[tuple[str, str], ...] = (
    ("<function=", "qwen3_coder"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("<minimax:tool_call>", "minimax_m2"),
    ("tool▁calls▁begin", "deepseek_v31"),
    ("<arg_key>", "glm45"),
    ("[TOOL_CALLS]", "mistral"),
    ("<seed:tool_call>", "seed_oss"),
    ("<|tool_call>", "gemma4"),
    ("<|channel|>", "openai"),
    ("<tool_call>", "hermes"),
    ("<|python_tag|>", "llama3_json"),
)
"""The first markup that a template holds → its tool parser."""

_BY_TYPE: tuple[tuple[str, str | None, str | None], ...] = (
    ("qwen3_coder", "qwen3_coder", None),
    ("qwen3-coder", "qwen3_coder", None),
    ("qwen3_5", "qwen3_coder", "qwen3"),
    ("qwen3", "hermes", "qwen3"),
    ("qwen2", "hermes", None),
    ("qwq", "hermes", "deepseek_r1"),
    ("deepseek-r1", "deepseek_v3", "deepseek_r1"),
    ("deepseek_v32", "deepseek_v32", "deepseek_v3"),
    ("deepseek_v3", "deepseek_v31", "deepseek_v3"),
    ("deepseek", "deepseek_v3", "deepseek_r1"),
    ("glm4", "glm45", "glm45"),
    ("kimi", "kimi_k2", "kimi_k2"),
    ("gpt_oss", "openai", "openai_gptoss"),
    ("gpt-oss", "openai", "openai_gptoss"),
    ("minimax", "minimax_m2", "minimax_m2"),
    ("mistral", "mistral", None),
    ("ministral", "mistral", None),
    ("devstral", "mistral", None),
    ("magistral", "mistral", "mistral"),
    ("seed_oss", "seed_oss", "seed_oss"),
    ("granitemoehybrid", "granite4", None),
    ("granite", "granite", "granite"),
    ("nemotron", "qwen3_coder", "nemotron_v3"),
    ("ernie4_5", "ernie45", "ernie45"),
    ("hunyuan", "hunyuan_a13b", "hunyuan_a13b"),
    ("olmo3", "olmo3", "olmo3"),
    ("gemma4", "gemma4", "gemma4"),
    ("functiongemma", "functiongemma", None),
    ("phi4", "phi4_mini_json", None),
    ("phi3", "phi4_mini_json", None),
    ("llama4", "llama4_pythonic", None),
    ("llama-4", "llama4_pythonic", None),
    ("llama", "llama3_json", None),
    ("smollm3", "hermes", "qwen3"),
    ("hermes", "hermes", None),
    ("step3", "step3", "step3"),
)
"""A part of the model's type or name → tool parser, reasoning parser."""


def guess_parsers(model: str) -> Parsers:
    """Return the likely parsers of a model: a folder, or a name whose files are elsewhere."""
    folder = Path(model)
    config = _read_json(folder / "config.json")
    template = _template(folder)
    names = " ".join((str(config.get("model_type", "")), folder.name, model)).lower()
    tool, reasoning = None, None
    for part, its_tool, its_reasoning in _BY_TYPE:
        if part in names:
            tool, reasoning = its_tool, its_reasoning
            break
    if template is not None:
        found = next((name for markup, name in _BY_MARKUP if markup in template), None)
        tool = found if "tools" in template or "tool_call" in template else None
        if "<think>" not in template and reasoning not in ("openai_gptoss", "gemma4", "granite"):
            reasoning = None
        elif "<think>" in template and reasoning is None:
            reasoning = "qwen3" if "enable_thinking" in template else "deepseek_r1"
    return Parsers(tool, reasoning)


def _read_json(path: Path) -> dict:
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _template(folder: Path) -> str | None:
    try:
        return (folder / "chat_template.jinja").read_text("utf-8")
    except OSError:
        pass
    template = _read_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):  # several by name; the default one comes without or as `default`
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default") or next(iter(named.values()), None)
    return template if isinstance(template, str) else None
