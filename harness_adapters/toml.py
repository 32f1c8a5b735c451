"""TOML, written: the standard library only reads it."""

import json


def quoted(text: str) -> str:
    """Return a TOML basic string; JSON's escapes are TOML's, but for characters beyond U+FFFF."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
