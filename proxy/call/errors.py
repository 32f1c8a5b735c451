"""What a chat client is told when it gets no answer: OpenAI's error shape, plain and in a stream.

Messages are ours or the engine's, never a traceback; `param` is a field's name or a place like
`messages[3].content`, never text that a client sent.
"""

import re

import orjson

from ..errors import ProxyError
from .json_text import mended_value

CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    417: "invalid_request_error",
    422: "invalid_request_error",
    426: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
}
"""The `type` of a status; everything from 500 on is `server_error`."""


class BadRequest(ProxyError, ValueError):
    """The request can't be served as it is; sending it again won't help."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
    ) -> None:
        """Refuse with a message that says what was wanted, and the field that is wrong."""
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status

    def __reduce__(self):
        """Pickle with the keyword arguments."""
        return _bad_request, (self.message, self.param, self.code, self.status)


def _bad_request(message: str, param: str | None, code: str | None, status: int) -> BadRequest:
    return BadRequest(message, param=param, code=code, status=status)


def error_body(
    status: int, message: str, *, code: str | None = None, param: str | None = None
) -> bytes:
    """The JSON body of a refusal with `status`."""
    kind = TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    error = {"message": message, "type": kind, "param": param, "code": code}
    try:
        return orjson.dumps({"error": error})
    except TypeError:  # a lone surrogate in an engine's message, or in a client's name of a field
        return orjson.dumps({"error": mended_value(error)})


def error_event(
    status: int, message: str, code: str | None = None, param: str | None = None
) -> bytes:
    """The same as one event of a stream: clients raise on it, and there is no end after it."""
    return b"data: " + error_body(status, message, code=code, param=param) + b"\n\n"


_LIMIT = re.compile(r"maximum (?:context|model) length (?:is|of) (\d+)")
_ASKED = re.compile(r"(?:at least|resulted in|requested|value=) ?(\d+)")


def overflow_message(
    n_prompt: int | None, limit: int | None, engine_text: str | None = None
) -> str:
    """What a too long prompt is told: OpenAI's and vLLM's wordings, which harnesses look for.

    Lengths are in tokens; those that are None are looked for in the engine's own text.
    """
    if limit is None and engine_text and (found := _LIMIT.search(engine_text)):
        limit = int(found[1])
    if n_prompt is None and engine_text and (found := _ASKED.search(engine_text)):
        n_prompt = int(found[1])
    first = "This model's maximum context length is "
    first += "exceeded." if limit is None else f"{limit} tokens."
    asked = "more" if n_prompt is None else str(n_prompt)
    return (
        f"{first} However, your messages resulted in {asked} tokens: your prompt contains at "
        f"least {asked} input tokens, which exceeds this limit even without any output tokens. "
        "Please reduce the length of the messages (the input prompt)."
    )
