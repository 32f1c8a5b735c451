"""Example trajectories for tests of programs that read a store.

No model made them and nobody recorded them: `record_examples` writes through the `Store` API what
a proxy would have written, with a tokenizer whose ids are bytes, so that every array can be read
back as text (`text_of`).
"""

from .examples import SECRET, Examples, record_examples
from .scribe import END, START, Scribe, text_of

__all__ = ["END", "SECRET", "START", "Examples", "Scribe", "record_examples", "text_of"]
