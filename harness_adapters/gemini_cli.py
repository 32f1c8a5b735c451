"""Gemini CLI: its own variables, and a private GEMINI_CLI_HOME. generateContent only."""

import json
from collections.abc import Mapping
from pathlib import Path

from .adapter import Adapter
from .pointing import Dialect, Endpoint


def files(endpoint: Endpoint, home: Path, cwd: Path) -> Mapping[str, str]:
    """Return settings.json: the kind of key must be pinned, or it asks."""
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"disableAutoUpdate": True},
    }
    return {"gemini/.gemini/settings.json": json.dumps(settings, indent=1)}


ADAPTER = Adapter(
    name="gemini-cli",
    programs=("gemini",),
    packages=("@google/gemini-cli",),
    dialect=Dialect.GEMINI,
    pointed_by="GOOGLE_GEMINI_BASE_URL, GEMINI_API_KEY and a private GEMINI_CLI_HOME",
    env={
        "GOOGLE_GEMINI_BASE_URL": "{root}",
        "GEMINI_API_KEY": "{key}",
        "GEMINI_MODEL": "{model}",
        "GEMINI_CLI_HOME": "{home}/gemini",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
        "GEMINI_TELEMETRY_ENABLED": "false",
    },
    files=files,
    tested="0.61.0",
)
