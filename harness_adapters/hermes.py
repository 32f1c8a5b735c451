"""Hermes Agent: a private HERMES_HOME with one provider of ours as the default."""

import json
from collections.abc import Mapping
from pathlib import Path

from .adapter import Adapter
from .pointing import Dialect, Endpoint


def files(endpoint: Endpoint, home: Path, cwd: Path) -> Mapping[str, str]:
    """Return config.yaml (JSON, which is YAML)."""
    provider = {
        "name": "budwood",
        "model": endpoint.model,
        "base_url": endpoint.v1,
        "key_env": "OPENAI_API_KEY",
        "api_mode": "chat_completions",
    }
    config = {
        "model": endpoint.model,
        "provider": "custom:budwood",
        "custom_providers": [provider],
        "memory": {"memory_enabled": False, "user_profile_enabled": False},
        "security": {"allow_lazy_installs": False},
    }
    return {"hermes/config.yaml": json.dumps(config, indent=1)}


ADAPTER = Adapter(
    name="hermes",
    programs=("hermes", "hermes-agent"),
    packages=("hermes-agent",),
    dialect=Dialect.CHAT,
    pointed_by="config.yaml of a private HERMES_HOME",
    env={
        "HERMES_HOME": "{home}/hermes",
        "OPENAI_API_KEY": "{key}",
        # Otherwise it runs an installer at its start, and hangs where there is no network.
        "HERMES_DISABLE_LAZY_INSTALLS": "1",
    },
    files=files,
    notes=("It drops its own reasoning from the history: each such turn starts a branch.",),
    tested="0.19.0",
)
