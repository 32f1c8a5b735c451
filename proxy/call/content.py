"""The content of a message: texts, thoughts and media, in whatever form a client writes them."""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

from .bounds import is_wide
from .errors import BadRequest
from .json_text import canonical, mended, mended_value

ContentForm = Literal["absent", "null", "empty", "text", "parts"]

VOLATILE = ("x-anthropic-billing-header",)
"""Starts of lines at the head of system text that no model is meant to read.

* Claude Code's billing header: a version and a hash that differs in every request; vLLM drops it
  too (0.32, vllm/renderers/chat_utils.py, `_strip_claude_code_billing_header`).
"""

_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_THINKING_PARTS = {"thinking": "thinking", "reasoning": "text"}
_MEDIA_KINDS = {
    "image_url": "image",
    "input_image": "image",
    "image": "image",
    "input_audio": "audio",
    "audio_url": "audio",
    "video_url": "video",
    "file": "file",
}


@dataclass(frozen=True, slots=True)
class Media:
    """An image, a sound, a video or a file in a message, by its reference."""

    kind: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class MediaPart:
    """A part that is no text, and the part as an engine gets it."""

    media: Media
    part: dict[str, Any]


@dataclass(slots=True)
class Content:
    """What the content of a message holds, in order."""

    form: ContentForm
    pieces: list[str | MediaPart]
    thoughts: list[str]

    @property
    def text(self) -> str:
        """All texts, joined by LF as vLLM joins parts."""
        return "\n".join(piece for piece in self.pieces if isinstance(piece, str))


def read_content(role: str, obj: dict[str, Any], flags: set[str], place: str) -> Content:
    """Return what a message's content holds; adds to `flags`, raises `BadRequest`."""
    found = obj.get("content")
    content = Content("text", [], [])
    if found is None:
        content.form = "null" if "content" in obj else "absent"
    elif isinstance(found, str):
        content.form = "text" if found else "empty"
        content.pieces.append(mended_into(found, flags))
    elif isinstance(found, list):
        content.form = "parts" if found else "empty"
        for index, part in enumerate(found):
            _part(role, part, content, flags, f"{place}.content[{index}]")
    else:
        raise BadRequest("Content must be a text or a list of parts.", param=f"{place}.content")
    refusal = obj.get("refusal")
    if isinstance(refusal, str) and refusal and not content.text:
        content.pieces.append(mended_into(refusal, flags))
    if role in ("system", "developer"):
        content.pieces = [_without_volatile(piece, flags) for piece in content.pieces]
    content.pieces = [piece for piece in content.pieces if piece]
    return content


def _part(role: str, part: Any, content: Content, flags: set[str], place: str) -> None:
    if isinstance(part, str):
        content.pieces.append(mended_into(part, flags))
        return
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise BadRequest("A content part must be an object with a type.", param=place)
    kind = part["type"]
    if kind in _THINKING_PARTS and role == "assistant":
        content.thoughts.append(mended_into(_thought(part.get(_THINKING_PARTS[kind])), flags))
    elif kind in _TEXT_PARTS or kind in _THINKING_PARTS:
        text = part.get(_TEXT_PARTS.get(kind) or _THINKING_PARTS[kind])
        if text is not None and not isinstance(text, str):
            raise BadRequest("The text of a part must be a text.", param=place)
        content.pieces.append(mended_into(text or "", flags))
    else:
        if is_wide(part):
            raise BadRequest("A part has a number that is too large.", param=place)
        kept = mended_value({key: value for key, value in part.items() if key != "cache_control"})
        digest = blake2b(canonical(kept).encode(), digest_size=16).digest()
        media = Media(_MEDIA_KINDS.get(kind) or mended(kind), digest)
        content.pieces.append(MediaPart(media, kept))


def _thought(found: Any) -> str:
    """Return the text of a thinking part, which some put into parts of its own."""
    if isinstance(found, list):
        texts = (inner.get("text") for inner in found if isinstance(inner, dict))
        return "".join(text for text in texts if isinstance(text, str))
    return found if isinstance(found, str) else ""


def _without_volatile(piece: Any, flags: set[str]) -> Any:
    if not isinstance(piece, str) or not piece.startswith(VOLATILE):
        return piece
    flags.add("volatile")
    return piece.partition("\n")[2]


def joined(pieces: list[str | MediaPart]) -> list[str | MediaPart]:
    """Return the pieces with neighbouring texts joined by LF, as vLLM joins them."""
    if len(pieces) < 2:
        return pieces
    joined: list[str | MediaPart] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if isinstance(piece, str) and isinstance(last, str):
            joined[-1] = f"{last}\n{piece}"
        else:
            joined.append(piece)
    return joined


def mended_into(text: str, flags: set[str]) -> str:
    """Return the text mended, and flag it `surrogate` if that changed it."""
    found = mended(text)
    if found is not text:
        flags.add("surrogate")
    return found
