"""What people and other programs may read of calls in whose content a secret was found.

Texts are masked by the store's scanner. Token ids of a marked call are withheld, since they spell
the secret as well. Where a call is marked but the scanner at hand finds nothing in it (it was
marked for a configured value that this process was not told), its texts are withheld whole.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .records import Call
from .secrets import FLAG, SecretScanner

WITHHELD = "[withheld: a secret was found here, and this process was not told which]"


class Redaction:
    """One call as it may be shown."""

    def __init__(self, call: Call, scanner: SecretScanner, *, off: bool = False) -> None:
        """Redact what belongs to `call`; `off` shows everything."""
        self._scanner = scanner
        self.is_marked = FLAG in call.flags
        self.is_on = not off
        self._found = False
        self._reply = call.reply

    @property
    def hides_tokens(self) -> bool:
        """True where token ids must not be shown."""
        return self.is_on and self.is_marked

    def body(self, raw: bytes) -> bytes:
        """Return a request body that may be shown."""
        if not self.is_on:
            return raw
        masked = self._masked_json(raw)
        if self.is_marked and masked == raw and not self._reply_is_known():
            return json.dumps(WITHHELD).encode()
        return masked

    def reply(self, request: bytes | None = None) -> dict[str, Any] | None:
        """Return the reply that may be shown; `request` is the raw body, where it is at hand."""
        if not self.is_on or self._reply is None:
            return self._reply
        masked = _masked_reply(self._reply, self._scanner)
        known = masked != self._reply or (request is not None and self._scanner.in_json(request))
        if self.is_marked and not known:
            return {"role": "assistant", "content": WITHHELD, "reasoning": None, "tool_calls": []}
        return masked

    def messages(self, raw: Sequence[bytes]) -> list[Any]:
        """Return request messages, decoded, that may be shown."""
        if self.is_on and self.is_marked and not self._reply_is_known():
            if not any(self._scanner.in_json(message) for message in raw):
                return [WITHHELD]
        return [_decoded(self._masked_json(message) if self.is_on else message) for message in raw]

    def text(self, text: str) -> str:
        """Return a text with known secrets masked."""
        return self._scanner.mask(text) if self.is_on else text

    def _reply_is_known(self) -> bool:
        return self._reply is not None and _masked_reply(self._reply, self._scanner) != self._reply

    def _masked_json(self, raw: bytes) -> bytes:
        if not self._scanner.in_json(raw):
            return raw
        masked = self._scanner.mask(raw.decode("utf-8", "replace")).encode()
        if not self._scanner.in_json(masked):
            return masked
        # Behind escapes: only the decoded text shows it.
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError):
            return json.dumps(WITHHELD).encode()
        value = masked_value(value, self._scanner)
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def masked_value(value: Any, scanner: SecretScanner) -> Any:
    """Return a decoded JSON value with secrets masked, also inside JSON that is a string."""
    if isinstance(value, str):
        masked = scanner.mask(value)
        if value[:1] in ("{", "[") and scanner.in_json(masked.encode("utf-8", "replace")):
            try:
                return json.dumps(masked_value(json.loads(value), scanner), ensure_ascii=False)
            except (ValueError, RecursionError):
                return WITHHELD
        return masked
    if isinstance(value, dict):
        return {scanner.mask(str(k)): masked_value(v, scanner) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [masked_value(item, scanner) for item in value]
    return value


def _masked_reply(reply: dict[str, Any], scanner: SecretScanner) -> dict[str, Any]:
    masked = masked_value(reply, scanner)
    return masked if isinstance(masked, dict) else {}


def _decoded(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return raw.decode("utf-8", "replace")
