"""aider: LiteLLM inside, no tools, edits as text."""

from .adapter import Adapter
from .pointing import Dialect

ADAPTER = Adapter(
    name="aider",
    programs=("aider",),
    packages=("aider-chat", "aider"),
    dialect=Dialect.CHAT,
    pointed_by="OPENAI_API_BASE, a model named openai/…",
    env={
        "OPENAI_API_BASE": "{v1}",
        "OPENAI_BASE_URL": "{v1}",
        "OPENAI_API_KEY": "{key}",
        "AIDER_OPENAI_API_BASE": "{v1}",
        "AIDER_OPENAI_API_KEY": "{key}",
        "AIDER_MODEL": "openai/{model}",
        "AIDER_ANALYTICS": "false",
        "AIDER_CHECK_UPDATE": "false",
        "AIDER_SHOW_MODEL_WARNINGS": "false",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    },
    notes=("A side call writes the commit message: it is a lane of its own.",),
    tested="0.86.2",
)
