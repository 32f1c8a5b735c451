"""Codex: a private CODEX_HOME; OPENAI_BASE_URL is ignored. Responses only."""

from collections.abc import Mapping
from pathlib import Path

from .adapter import Adapter
from .pointing import Dialect, Endpoint
from .toml import quoted


def files(endpoint: Endpoint, home: Path, cwd: Path) -> Mapping[str, str]:
    """Return config.toml."""
    return {
        "codex/config.toml": f"""\
model = {quoted(endpoint.model)}
model_provider = "budwood"
model_context_window = {endpoint.context_window}
check_for_update_on_startup = false
[analytics]
enabled = false
[features]
plugins = false
[model_providers.budwood]
name = "budwood"
base_url = {quoted(endpoint.v1)}
env_key = "BUDWOOD_ROLLOUT_KEY"
wire_api = "responses"
[projects.{quoted(str(cwd))}]
trust_level = "trusted"
"""
    }


ADAPTER = Adapter(
    name="codex",
    programs=("codex",),
    packages=("@openai/codex",),
    dialect=Dialect.RESPONSES,
    pointed_by="config.toml of a private CODEX_HOME",
    env={
        "CODEX_HOME": "{home}/codex",
        "CODEX_SQLITE_HOME": None,
        "BUDWOOD_ROLLOUT_KEY": "{key}",
    },
    files=files,
    notes=("It never speaks chat completions: wire_api = chat is refused by Codex itself.",),
    tested="0.171.0",
)
