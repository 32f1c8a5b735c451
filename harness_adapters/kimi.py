"""Kimi Code: its own variables, and a private KIMI_CODE_HOME."""

from .adapter import Adapter
from .pointing import Dialect

ADAPTER = Adapter(
    name="kimi",
    programs=("kimi",),
    packages=("@moonshot-ai/kimi-code",),
    dialect=Dialect.CHAT,
    pointed_by="KIMI_MODEL_BASE_URL and its siblings",
    env={
        "KIMI_MODEL_NAME": "{model}",
        "KIMI_MODEL_API_KEY": "{key}",
        "KIMI_MODEL_BASE_URL": "{v1}",
        "KIMI_MODEL_PROVIDER_TYPE": "openai",
        "KIMI_MODEL_MAX_CONTEXT_SIZE": "{context_window}",
        "KIMI_MODEL_MAX_OUTPUT_SIZE": "{max_output}",
        "KIMI_CODE_HOME": "{home}/kimi",
        "KIMI_DISABLE_TELEMETRY": "true",
        "KIMI_CODE_NO_AUTO_UPDATE": "true",
    },
    tested="2.1.0",
)
