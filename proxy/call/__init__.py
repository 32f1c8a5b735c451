"""The canonical call: requests of a chat dialect read into one form, and replies said back.

It may use the wire, and the store's slices of bodies.
It never knows tokens' meaning, lineage, sockets or clocks: all of it is plain values.
"""

from .body import Cut, NotCut, cut
from .chat_reply import (
    DONE,
    KEEP_ALIVE,
    Answer,
    ChatStream,
    finish_reason,
    new_tool_id,
    plain_body,
    shown_logprobs,
    usage_of,
)
from .delta import Delta, ToolDelta
from .errors import (
    CONTEXT_LENGTH_EXCEEDED,
    BadRequest,
    error_body,
    error_event,
    overflow_message,
)
from .json_text import mended
from .message import (
    Media,
    Message,
    ToolCall,
    canonical_message,
    loads_message,
    reply_message,
    reply_thought,
)
from .request import TEMPLATE_FIELDS, ChatRequest, Limits, extend_chain, parse_chat
from .sampling import SAMPLING_FIELDS, asked_sampling, constraints
from .tool_pieces import ToolPieces

__all__ = [
    "CONTEXT_LENGTH_EXCEEDED",
    "DONE",
    "KEEP_ALIVE",
    "SAMPLING_FIELDS",
    "TEMPLATE_FIELDS",
    "Answer",
    "BadRequest",
    "ChatRequest",
    "ChatStream",
    "Cut",
    "Delta",
    "Limits",
    "Media",
    "Message",
    "NotCut",
    "ToolCall",
    "ToolDelta",
    "ToolPieces",
    "asked_sampling",
    "canonical_message",
    "constraints",
    "cut",
    "error_body",
    "error_event",
    "extend_chain",
    "finish_reason",
    "loads_message",
    "mended",
    "new_tool_id",
    "overflow_message",
    "parse_chat",
    "plain_body",
    "reply_message",
    "reply_thought",
    "shown_logprobs",
    "usage_of",
]
