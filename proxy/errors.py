"""Errors of the proxy room.

    ProxyError
    ├── NotIdentified      no rollout for this request (401), or its rollout is closed (403)
    ├── Refused            the request is understood and refused, with status and code
    └── ConfigurationError the proxy can't start as configured

What a harness may see of each is made by `call/errors.py`; engine errors are in `engine/errors.py`
and store errors in `budwood.trajectory_store`.
"""


class ProxyError(Exception):
    """Base of everything that the proxy room raises."""


class NotIdentified(ProxyError, PermissionError):
    """No open rollout belongs to the request: status 401 (unknown, expired) or 403 (closed)."""

    def __init__(self, status: int, message: str) -> None:
        """Refuse with `status` and a message that names no secret."""
        super().__init__(message)
        self.status = status
        self.message = message


class Refused(ProxyError):
    """The request is refused before the engine sees it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        """Refuse with an HTTP status, a message that says what to do, and a code."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.retry_after_s = retry_after_s


class ConfigurationError(ProxyError, ValueError):
    """The settings contradict each other or the machine; the message says what to change."""
