"""Claude Code: its own variables, and a private CLAUDE_CONFIG_DIR. Messages only."""

import json
from collections.abc import Mapping
from pathlib import Path

from .adapter import Adapter
from .pointing import Dialect, Endpoint


def files(endpoint: Endpoint, home: Path, cwd: Path) -> Mapping[str, str]:
    """Return the state that a first start would ask for."""
    state = {
        "hasCompletedOnboarding": True,
        "customApiKeyResponses": {"approved": [endpoint.secret[-20:]], "rejected": []},
        "projects": {str(cwd): {"hasTrustDialogAccepted": True}},
    }
    return {"claude/.claude.json": json.dumps(state, indent=1)}


ADAPTER = Adapter(
    name="claude-code",
    programs=("claude",),
    packages=("@anthropic-ai/claude-code",),
    dialect=Dialect.MESSAGES,
    pointed_by="ANTHROPIC_BASE_URL (without /v1) and its model variables",
    env={
        "ANTHROPIC_BASE_URL": "{root}",
        "ANTHROPIC_API_KEY": "{key}",
        "ANTHROPIC_AUTH_TOKEN": None,
        "ANTHROPIC_MODEL": "{model}",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "{model}",
        "ANTHROPIC_DEFAULT_SONNET_MODEL": "{model}",
        "ANTHROPIC_DEFAULT_OPUS_MODEL": "{model}",
        "CLAUDE_CODE_SUBAGENT_MODEL": "{model}",
        "CLAUDE_CONFIG_DIR": "{home}/claude",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_USE_BEDROCK": None,
        "CLAUDE_CODE_USE_VERTEX": None,
    },
    files=files,
    notes=("As root, --dangerously-skip-permissions also needs IS_SANDBOX=1.",),
    tested="2.1.332",
)
