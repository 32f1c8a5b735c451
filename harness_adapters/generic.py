"""Any program that obeys the usual variables: SDKs of OpenAI and Anthropic, LiteLLM, LangChain."""

from .adapter import Adapter

ADAPTER = Adapter(
    name="generic",
    programs=(),
    dialect=None,
    streams=None,
    pointed_by="OPENAI_BASE_URL, OPENAI_API_BASE, ANTHROPIC_BASE_URL and their API keys",
    env={
        "OPENAI_BASE_URL": "{v1}",
        "OPENAI_API_BASE": "{v1}",
        "OPENAI_API_KEY": "{key}",
        "OPENAI_MODEL": "{model}",
        "ANTHROPIC_BASE_URL": "{root}",
        "ANTHROPIC_API_KEY": "{key}",
        "ANTHROPIC_AUTH_TOKEN": None,
        "GOOGLE_GEMINI_BASE_URL": "{root}",
        "GEMINI_API_KEY": "{key}",
        "LLM_BASE_URL": "{v1}",
        "LLM_API_KEY": "{key}",
        "LLM_MODEL": "openai/{model}",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    },
)
