"""Messages whose text comes in several parts.

An engine renders such parts as the template does that reads them: one behind the other, or joined
by LF where the template knows texts only. So they stay parts in all that is rendered as it came.
What is only outlined or rearranged is one text.
"""

from collections.abc import Sequence
from typing import Any


def text_of(content: Any) -> str | None:
    """The text of a message's content; parts are joined by LF. None where it is no text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = [part.get("text") for part in content if part.get("type") == "text"]
    return "\n".join(texts) if len(texts) == len(content) else None


def as_texts(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with one text each for parts of text."""
    return [
        {**message, "content": text_of(message["content"])}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ]
