"""Errors of the engine layer.

    EngineError
    ├── EngineUnreachable   no answer at all: connection refused, reset or closed before a status
    │   └── EngineChanged   what answers now is another engine than the call was prepared for
    ├── EngineRefused       an HTTP status other than 200, with the engine's own words
    │   └── RenderRefused   the same, on a render or tokenize route
    └── EngineBroken        an answer is not whole, or never came; `cause` says how

Each has a `cause` code of `budwood.trajectory_store` (class `engine`) and, where some of an answer
came, `partial`: an EngineReply of what came, never to be trained.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .reply import EngineReply


class EngineError(Exception):
    """Base of everything that the engine layer raises."""

    cause = "server_error"
    partial: "EngineReply | None" = None


class EngineUnreachable(EngineError, ConnectionError):
    """No replica gave an answer."""

    cause = "unreachable"


class EngineChanged(EngineUnreachable):
    """The engine went and came back with another model, version, tokenizer or template.

    The call was prepared for the one that is gone: it has to be prepared anew.
    """


class EngineRefused(EngineError):
    """The engine answered with a status that is no success; `message` is what it said."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        body: bytes = b"",
    ) -> None:
        super().__init__(f"the engine answered {status}: {message}")
        self.status = status
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.body = body

    def __reduce__(self) -> tuple:
        """Survive pickling with all fields."""
        return _refused, (
            type(self), self.status, self.message, self.param, self.retry_after_s, self.body,
        )  # fmt: skip

    @property
    def cause(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The cause code of this status."""
        if self.status == 429:
            return "rate_limited"
        if self.status < 400:  # a redirection, or a success without an answer
            return "bad_event"
        return "server_error" if self.status >= 500 else "refused_request"


class RenderRefused(EngineRefused):
    """The engine's template or tokenizer refuses these messages."""


class EngineBroken(EngineError):
    """An answer that is not whole: it is never relayed as a clean end, nor asked for again.

    Causes: cut, stall, bad_event, missing_done, missing_finish, missing_usage, missing_ids,
    count_mismatch, server_error (an error event in the stream).
    """

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause
        self.message = message

    def __reduce__(self) -> tuple:
        """Survive pickling with all fields."""
        return type(self), (self.cause, self.message)


def _refused(
    kind: type[EngineRefused], status: int, message: str, param: str | None, after: float | None,
    body: bytes,
) -> EngineRefused:  # fmt: skip
    return kind(status, message, param=param, retry_after_s=after, body=body)
