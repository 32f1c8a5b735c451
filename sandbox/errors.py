"""What can go wrong with a sandbox.

SandboxError
├── Refused       (also a ValueError)   the spec asks for what the backend or this machine lacks
├── NoCapacity                          no place now; `retry_after_s`
├── StartFailed                         the sandbox, or a command in it, did not start
├── Lost                                the sandbox is gone and nobody closed it; `reason`
├── Deadline      (also a TimeoutError) the sandbox, or the wait for it, ran out of time
├── Closed                              used after its close
├── Stuck                               its close left something; the message says what
└── FileFailed    (also an OSError)     a file inside could not be read or written; `errno`

None of them says anything about what the policy did: how a command ended is data (`Exit`). Only
`Lost.limit` does, where commands took so much memory that process 1 went with them.
"""

from __future__ import annotations

import os

from .limits import Limit


class SandboxError(Exception):
    """Base of this room's errors."""


class Refused(SandboxError, ValueError):
    """A spec asks for what there is not; nothing was started."""

    def __init__(self, backend: str, lacks: tuple[str, ...]) -> None:
        """Name the backend, and each thing that it lacks with what to do."""
        super().__init__(f"backend {backend} refuses the spec: {'; '.join(lacks)}")
        self.backend = backend
        self.lacks = lacks

    def __reduce__(self) -> tuple[type, tuple[str, tuple[str, ...]]]:
        """Pickle by what it was made of."""
        return type(self), (self.backend, self.lacks)


class NoCapacity(SandboxError):
    """There is no place for one more sandbox now."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        """Say what is full, and when to ask again."""
        super().__init__(f"{message}; ask again in {retry_after_s:g} s")
        self.message = message
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[type, tuple[str, float]]:
        """Pickle by what it was made of."""
        return type(self), (self.message, self.retry_after_s)


class StartFailed(SandboxError):
    """A sandbox or a command in it could not be started."""

    def __init__(self, message: str, limit: Limit | None = None) -> None:
        """Say why; `limit` names the limit of the spec that was in the way, if one was."""
        super().__init__(message)
        self.message = message
        self.limit = limit

    def __reduce__(self) -> tuple[type, tuple[str, Limit | None]]:
        """Pickle by what it was made of."""
        return type(self), (self.message, self.limit)


class Lost(SandboxError):
    """The sandbox ended and nobody asked for it."""

    def __init__(self, reason: str, limit: Limit | None = None) -> None:
        """Say what is known of why; `limit` names the limit that its commands ran into, if one."""
        super().__init__(f"the sandbox is lost: {reason}")
        self.reason = reason
        self.limit = limit

    def __reduce__(self) -> tuple[type, tuple[str, Limit | None]]:
        """Pickle by what it was made of."""
        return type(self), (self.reason, self.limit)


class Deadline(SandboxError, TimeoutError):
    """The sandbox's own time is over, or it was not ready in the time given."""


class Closed(SandboxError):
    """The sandbox was closed."""


class Stuck(SandboxError):
    """A close did not bring everything to its end."""


class FileFailed(SandboxError, OSError):
    """A file operation inside the sandbox failed."""

    def __init__(self, errno: int, path: str, detail: str | None = None) -> None:
        """Keep the error number as it was inside, and the path asked for."""
        super().__init__(errno, detail or os.strerror(errno), path)
        self.path = path
        self.detail = detail

    def __reduce__(self) -> tuple[type, tuple[int, str, str | None]]:
        """Pickle by what it was made of."""
        return type(self), (self.errno or 0, self.path, self.detail)
