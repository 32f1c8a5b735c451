"""OpenClaw: a private state directory and configuration file."""

import json
from collections.abc import Mapping
from pathlib import Path

from .adapter import Adapter
from .pointing import Dialect, Endpoint


def files(endpoint: Endpoint, home: Path, cwd: Path) -> Mapping[str, str]:
    """Return openclaw.json with one provider of ours as the default."""
    config = {
        "models": {
            "providers": {
                "budwood": {
                    "baseUrl": endpoint.v1,
                    "apiKey": endpoint.secret,
                    "api": "openai-completions",
                    "models": [
                        {
                            "id": endpoint.model,
                            "name": endpoint.model,
                            "contextWindow": endpoint.context_window,
                            "maxTokens": endpoint.max_output,
                        }
                    ],
                }
            }
        },
        "agents": {"defaults": {"model": {"primary": f"budwood/{endpoint.model}"}}},
    }
    return {"openclaw/openclaw.json": json.dumps(config, indent=1)}


ADAPTER = Adapter(
    name="openclaw",
    programs=("openclaw",),
    packages=("openclaw",),
    dialect=Dialect.CHAT,
    pointed_by="openclaw.json of a private OPENCLAW_STATE_DIR",
    env={
        "OPENCLAW_STATE_DIR": "{home}/openclaw",
        "OPENCLAW_CONFIG_PATH": "{home}/openclaw/openclaw.json",
    },
    files=files,
    notes=(
        "Each request ends with a message that is gone in the next: its turns are branches, "
        "one sequence each.",
    ),
    tested="2026.9.6",
)
