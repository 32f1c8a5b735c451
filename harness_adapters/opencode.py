"""opencode: a private configuration, data and state directory (by the XDG variables)."""

import json
from collections.abc import Mapping
from pathlib import Path

from .adapter import Adapter
from .pointing import Dialect, Endpoint


def files(endpoint: Endpoint, home: Path, cwd: Path) -> Mapping[str, str]:
    """Return opencode.json with one provider of ours as the default."""
    limit = {"context": endpoint.context_window, "output": endpoint.max_output}
    name = f"budwood/{endpoint.model}"
    config = {
        "$schema": "https://opencode.ai/config.json",
        "autoupdate": False,
        "share": "disabled",
        "model": name,
        "small_model": name,
        "provider": {
            "budwood": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "budwood",
                "options": {"baseURL": endpoint.v1, "apiKey": endpoint.secret},
                "models": {endpoint.model: {"name": endpoint.model, "limit": limit}},
            }
        },
    }
    return {"opencode/config/opencode/opencode.json": json.dumps(config, indent=1)}


ADAPTER = Adapter(
    name="opencode",
    programs=("opencode",),
    packages=("opencode-ai",),
    dialect=Dialect.CHAT,
    pointed_by="opencode.json of a private XDG_CONFIG_HOME",
    env={
        "XDG_CONFIG_HOME": "{home}/opencode/config",
        "XDG_DATA_HOME": "{home}/opencode/data",
        "XDG_STATE_HOME": "{home}/opencode/state",
        "OPENCODE_CONFIG": None,
        "OPENCODE_CONFIG_CONTENT": None,
        "OPENCODE_CONFIG_DIR": None,
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    },
    files=files,
    notes=(
        "Its first call writes a title: it is a lane of its own.",
        "At its first start it fetches a package of its own from the npm registry.",
    ),
    tested="1.18.33",
)
