"""Qwen Code: OpenAI's variables, and a private QWEN_HOME that selects them."""

import json
from collections.abc import Mapping
from pathlib import Path

from .adapter import Adapter
from .pointing import Dialect, Endpoint


def files(endpoint: Endpoint, home: Path, cwd: Path) -> Mapping[str, str]:
    """Return settings.json, so that --auth-type is not needed."""
    settings = {
        "security": {"auth": {"selectedType": "openai"}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"disableAutoUpdate": True},
        "model": {"name": endpoint.model},
    }
    return {"qwen/settings.json": json.dumps(settings, indent=1)}


ADAPTER = Adapter(
    name="qwen-code",
    programs=("qwen",),
    packages=("@qwen-code/qwen-code",),
    dialect=Dialect.CHAT,
    pointed_by="OPENAI_BASE_URL and a private QWEN_HOME",
    env={
        "OPENAI_BASE_URL": "{v1}",
        "OPENAI_API_KEY": "{key}",
        "OPENAI_MODEL": "{model}",
        "QWEN_HOME": "{home}/qwen",
        "QWEN_USAGE_STATISTICS_ENABLED": "false",
    },
    files=files,
    tested="0.24.4",
)
