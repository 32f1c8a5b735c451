"""The same conversation for templates that refuse system messages past the first.

Harnesses send developer messages, several leading system messages, or system messages in the
middle (vllm#44505, QwenLM/Qwen3.8#186, dynamo#10206). Where a template refuses those, their text
is moved as little as possible: nothing is dropped, and nothing passes an assistant's turn.
"""

from collections.abc import Sequence
from typing import Any

from .parts import text_of


def repaired(
    messages: Sequence[dict[str, Any]], *, leading: bool = True
) -> list[dict[str, Any]] | None:
    """`messages` with one leading system message and none elsewhere; None if there's no need.

    Leading system and developer messages are joined into one system message. A later one is put
    in front of the next user message's text; where an assistant message or the end comes first,
    it becomes a user message in its place. `leading` false: the list continues a conversation.
    """
    n_head = 0
    if leading:
        n_head = next((i for i, m in enumerate(messages) if not _is_system(m)), len(messages))
    head, rest = messages[:n_head], messages[n_head:]
    if not any(map(_is_system, rest)) and (not head or _is_one_system(head)):
        return None
    out: list[dict[str, Any]] = []
    if head:
        out.append({**head[0], "role": "system", "content": _joined(head)})
    pending: list[dict[str, Any]] = []
    for message in rest:
        if _is_system(message):
            pending.append(message)
            continue
        if pending and message["role"] == "user":
            message = {**message, "content": _joined([*pending, message])}
        elif pending and message["role"] == "assistant":
            out.append({"role": "user", "content": _joined(pending)})
        elif pending:
            out.append(message)
            continue
        pending = []
        out.append(message)
    if pending:
        out.append({"role": "user", "content": _joined(pending)})
    return out


def _is_system(message: dict[str, Any]) -> bool:
    return message["role"] in ("system", "developer")


def _is_one_system(head: Sequence[dict[str, Any]]) -> bool:
    return len(head) == 1 and head[0]["role"] == "system"


def _joined(messages: Sequence[dict[str, Any]]) -> str:
    texts = [text_of(message.get("content")) for message in messages]
    return "\n\n".join(text for text in texts if text)
