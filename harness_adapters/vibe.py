"""Mistral Vibe: a private VIBE_HOME with one provider of ours as the active one."""

from collections.abc import Mapping
from pathlib import Path

from .adapter import Adapter
from .pointing import Dialect, Endpoint
from .toml import quoted


def files(endpoint: Endpoint, home: Path, cwd: Path) -> Mapping[str, str]:
    """Return config.toml."""
    model = quoted(endpoint.model)
    return {
        "vibe/config.toml": f"""\
active_model = {model}
enable_telemetry = false
enable_update_checks = false
[[providers]]
name = "budwood"
api_base = {quoted(endpoint.v1)}
api_key_env_var = "BUDWOOD_ROLLOUT_KEY"
backend = "generic"
api_style = "openai"
[[models]]
name = {model}
provider = "budwood"
alias = {model}
"""
    }


ADAPTER = Adapter(
    name="vibe",
    programs=("vibe",),
    packages=("mistral-vibe",),
    dialect=Dialect.CHAT,
    pointed_by="config.toml of a private VIBE_HOME",
    env={"VIBE_HOME": "{home}/vibe", "BUDWOOD_ROLLOUT_KEY": "{key}"},
    files=files,
    tested="3.0.2",
)
