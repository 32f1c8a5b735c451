"""pi: a private agent directory with one provider of ours as the default, so no flag is needed."""

import json
from collections.abc import Mapping
from pathlib import Path

from .adapter import Adapter
from .pointing import Dialect, Endpoint

PROVIDER = "budwood"
RESERVED_TOKENS = 16_384
KEPT_TOKENS = 20_000
"""pi's own defaults for compaction."""


def files(endpoint: Endpoint, home: Path, cwd: Path) -> Mapping[str, str]:
    """Return models.json and settings.json."""
    where = {"baseUrl": endpoint.v1, "apiKey": endpoint.secret}
    models = {
        "providers": {
            PROVIDER: where
            | {
                "api": "openai-completions",
                "models": [
                    {
                        "id": endpoint.model,
                        "contextWindow": endpoint.context_window,
                        "maxTokens": endpoint.max_output,
                    }
                ],
            },
            # For `--provider openai` and the like: they must not reach their makers unrecorded.
            "openai": where,
            "anthropic": where | {"baseUrl": endpoint.root},
        }
    }
    quarter = endpoint.context_window // 4
    settings = {
        "defaultProvider": PROVIDER,
        "defaultModel": endpoint.model,
        "enableInstallTelemetry": False,
        # pi's defaults would compact a small model's window from the first turn on.
        "compaction": {
            "reserveTokens": min(RESERVED_TOKENS, quarter),
            "keepRecentTokens": min(KEPT_TOKENS, quarter),
        },
    }
    return {
        "pi/models.json": json.dumps(models, indent=1),
        "pi/settings.json": json.dumps(settings, indent=1),
    }


ADAPTER = Adapter(
    name="pi",
    programs=("pi",),
    packages=("@earendil-works/pi-coding-agent", "@mariozechner/pi-coding-agent"),
    dialect=Dialect.CHAT,
    pointed_by="models.json and settings.json of a private PI_CODING_AGENT_DIR",
    env={
        "PI_CODING_AGENT_DIR": "{home}/pi",
        "PI_CODING_AGENT_SESSION_DIR": "{home}/pi/sessions",
        "PI_OFFLINE": "1",
        "PI_TELEMETRY": "0",
    },
    files=files,
    notes=("It may exit 0 although a model call failed: trust the record, not the status.",),
    tested="1.6.0",
)
