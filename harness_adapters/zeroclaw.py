"""ZeroClaw: a private configuration directory; OPENAI_BASE_URL is ignored."""

from collections.abc import Mapping
from pathlib import Path

from .adapter import Adapter
from .pointing import Dialect, Endpoint
from .toml import quoted


def files(endpoint: Endpoint, home: Path, cwd: Path) -> Mapping[str, str]:
    """Return config.toml: ZeroClaw does nothing without one, and reads only this one.

    Permissions are the user's to widen; what is set beside the endpoint only keeps the harness
    from cutting a long answer (120 s by default) or rewriting its own history (loop detection).
    """
    return {
        "zeroclaw/config.toml": f"""\
schema_version = 3
[secrets]
encrypt = false
[providers.models.custom.budwood]
uri = {quoted(endpoint.v1)}
api_key = {quoted(endpoint.secret)}
model = {quoted(endpoint.model)}
native_tools = true
context_window = {endpoint.context_window}
timeout_secs = 3600
[pacing]
loop_detection_enabled = false
[risk_profiles.main]
level = "full"
[runtime_profiles.main]
agentic = true
max_tool_iterations = 50
max_actions_per_hour = 4294967295
max_context_tokens = 0
[agents.main]
model_provider = "custom.budwood"
risk_profile = "main"
runtime_profile = "main"
[agents.main.workspace]
path = {quoted(str(cwd))}
[agents.main.memory]
backend = "none"
"""
    }


ADAPTER = Adapter(
    name="zeroclaw",
    programs=("zeroclaw",),
    dialect=Dialect.CHAT,
    streams=None,
    pointed_by="config.toml of a private ZEROCLAW_CONFIG_DIR",
    env={"ZEROCLAW_CONFIG_DIR": "{home}/zeroclaw"},
    files=files,
    notes=("The agent is named main: zeroclaw agent -a main -m TASK.",),
    tested="0.8.7",
)
