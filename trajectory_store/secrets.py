"""Secrets inside content: found when a call is recorded, masked in what people see.

What is found is kept as it came, because tokens must stay exact; the call is marked, and its
sequences leave no store for training unless asked for. Two kinds are looked for: values that the
configuration names, and tokens that vendors give a recognisable form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

FLAG = "secret"
MASK = "█secret█"
MIN_LENGTH = 8
"""Shorter configured values are refused: they would match everywhere."""

_START = r"(?:(?<![A-Za-z0-9_])|(?<=\\[nrt]))"
"""Not inside a word; the letter of an escape (`\\nsk-...` in raw JSON) is no word."""

PATTERNS = (
    (("sk-",), _START + r"sk-(?:proj-|ant-(?:api\d\d-)?|or-v1-)?[A-Za-z0-9_-]{20,}"),
    (("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), _START + r"gh[pousr]_[A-Za-z0-9]{36,}"),
    (("github_pat_",), r"github_pat_[A-Za-z0-9_]{50,}"),
    (("glpat-",), r"glpat-[A-Za-z0-9_-]{20,}"),
    (("AKIA", "ASIA"), _START + r"A(?:KIA|SIA)[A-Z0-9]{16}(?![A-Z0-9])"),
    (("AIza",), _START + r"AIza[A-Za-z0-9_-]{35}"),
    (("hf_",), _START + r"hf_[A-Za-z0-9]{30,}"),
    (("xox",), _START + r"xox[abposr]-[A-Za-z0-9-]{10,}"),
    (("_live_",), _START + r"[sr]k_live_[A-Za-z0-9]{20,}"),
    (("npm_",), _START + r"npm_[A-Za-z0-9]{36}(?![A-Za-z0-9])"),
    (("pypi-",), _START + r"pypi-[A-Za-z0-9_-]{50,}"),
    (("bw_",), _START + r"bw_[A-Za-z0-9_-]{43}"),
    (("PRIVATE KEY-----",), r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----"),
)
"""Token forms, each with pieces of text one of which it must hold: most text has none of them,
and looking for a piece is a hundred times cheaper than the expression."""


class SecretScanner:
    """Finds configured values and known token forms in raw JSON and in text."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        """Look for these values beside the known forms; raises `ValueError` for a short one."""
        known = sorted(set(values), key=len, reverse=True)
        if any(len(value) < MIN_LENGTH for value in known):
            raise ValueError(f"a secret to look for needs {MIN_LENGTH} characters or more")
        spelled = [form for value in known for form in _spellings(value)]
        self._hints = [*spelled, *(hint for hints, _ in PATTERNS for hint in hints)]
        self._byte_hints = [hint.encode() for hint in self._hints]
        forms = "|".join([*map(re.escape, spelled), *(form for _, form in PATTERNS)])
        self._text = re.compile(forms)
        self._bytes = re.compile(
            b"|".join(
                [
                    *(re.escape(s.encode()) for s in spelled),
                    *(f.encode() for _, f in PATTERNS),
                ]
            )
        )

    def in_json(self, raw: bytes) -> bool:
        """Return whether a raw JSON value holds a secret, as written or behind escapes."""
        for hint in self._byte_hints:
            if hint in raw:
                if self._bytes.search(raw):
                    return True
                break
        return b"\\u" in raw and self.in_value(_decoded(raw))

    def in_value(self, value: Any) -> bool:
        """Return whether any text of a decoded JSON value holds a secret."""
        if isinstance(value, str):
            return self._text_has(value)
        if isinstance(value, dict):
            return any(self.in_value(x) for pair in value.items() for x in pair)
        return isinstance(value, list | tuple) and any(self.in_value(item) for item in value)

    def _text_has(self, text: str) -> bool:
        for hint in self._hints:
            if hint in text:
                return self._text.search(text) is not None
        return False

    def mask(self, text: str) -> str:
        """Return the text with each secret replaced by a mask."""
        return self._text.sub(MASK, text)

    def mask_value(self, value: Any) -> Any:
        """Return a decoded JSON value with the secrets in its texts masked."""
        if isinstance(value, str):
            return self.mask(value)
        if isinstance(value, dict):
            return {self.mask(str(k)): self.mask_value(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self.mask_value(item) for item in value]
        return value


def _spellings(value: str) -> list[str]:
    """Return the value as it stands in text, in JSON, and in JSON inside JSON."""
    found = [value]
    for ascii_only in (False, True):
        once = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
        found += [once, json.dumps(once, ensure_ascii=ascii_only)[1:-1]]
    return sorted({*found, value.replace("/", "\\/")}, key=len, reverse=True)


def _decoded(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return raw.decode("utf-8", "replace")
