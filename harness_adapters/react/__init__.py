"""react: our own small harness, and how it is pointed.

`agent.py` is the harness, one file on OpenAI's SDK; this is its adapter, the shortest there is and
so the one to copy.
"""

from ..adapter import Adapter
from ..pointing import Dialect
from .agent import VERSION

ADAPTER = Adapter(
    name="react",
    programs=("react",),
    packages=("budwood.harness_adapters.react",),
    dialect=Dialect.CHAT,
    streams=False,
    pointed_by="OPENAI_BASE_URL, OPENAI_API_KEY, OPENAI_MODEL",
    env={"OPENAI_BASE_URL": "{v1}", "OPENAI_API_KEY": "{key}", "OPENAI_MODEL": "{model}"},
    notes=("Our own reference harness: a loop around one shell tool.",),
    tested=VERSION,
)
