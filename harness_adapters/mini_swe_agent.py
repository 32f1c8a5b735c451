"""mini-swe-agent: LiteLLM inside, one bash tool, not streamed."""

from .adapter import Adapter
from .pointing import Dialect

ADAPTER = Adapter(
    name="mini-swe-agent",
    programs=("mini", "mini-swe-agent"),
    packages=("mini-swe-agent", "minisweagent", "minisweagent.run.mini"),
    dialect=Dialect.CHAT,
    streams=False,
    pointed_by="OPENAI_BASE_URL and OPENAI_API_BASE, a model named openai/…",
    env={
        "OPENAI_BASE_URL": "{v1}",
        "OPENAI_API_BASE": "{v1}",
        "OPENAI_API_KEY": "{key}",
        "MSWEA_MODEL_NAME": "openai/{model}",
        "MSWEA_GLOBAL_CONFIG_DIR": "{home}/mini-swe-agent",
        # Without it the first start asks for a model and a key on the terminal.
        "MSWEA_CONFIGURED": "true",
        # The served model has no price: by default that is an error.
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_SILENT_STARTUP": "1",
        # Otherwise LiteLLM asks a foreign host for prices first, and waits for it.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    },
    notes=("It ends when a command prints COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT.",),
    tested="2.4.6",
)
