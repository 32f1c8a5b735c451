"""What went wrong with a call: its class and cause for the ledger, its answer for the client.

An engine's refusal is told in the engine's words, which say what a harness may change. What is
between us and the engine alone (its key, its quota page, our own fault) is not: such a message
may hold a credential, and the harness can't heal it.
"""

import traceback

import structlog

from budwood.trajectory_store import (
    FailureClass,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
)

from ..call import BadRequest, overflow_message
from ..engine import EngineError, EngineRefused, EngineUnreachable
from ..errors import ProxyError
from ..lineage.suffix import RenderRejected

log = structlog.get_logger()


class GenerationFailed(ProxyError):
    """A generation ended without an acknowledged answer.

    `status` and `body` are what a client that has seen nothing yet may be told.
    """

    def __init__(
        self,
        failure_class: FailureClass,
        cause: str,
        status: int,
        message: str,
        *,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        """Name the boundary and cause of the failure, and the answer a client gets."""
        super().__init__(message)
        self.failure_class = failure_class
        self.cause = cause
        self.status = status
        self.message = message
        self.code = code
        self.retry_after_s = retry_after_s


def is_overflow(message: str) -> bool:
    """Whether an engine's refusal says that the prompt is too long."""
    return "maximum context length" in message or "maximum model length" in message


def overflow(n_prompt: int | None, limit: int | None, text: str | None = None) -> GenerationFailed:
    """A prompt that the model has no room for; `text` is what the engine said, if it was asked."""
    return GenerationFailed(
        FailureClass.POLICY,
        "context_overflow",
        400,
        overflow_message(n_prompt, limit, text),
        code="context_length_exceeded",
    )


def engine_failure(error: EngineError) -> GenerationFailed:
    """What a failed engine call means to the ledger and to the client."""
    if not isinstance(error, EngineRefused):
        if isinstance(error, EngineUnreachable):
            # Where the engine stands is not the harness's business.
            log.warning("engine unreachable", error=str(error))
            message = "The engine can't be reached."
            return GenerationFailed(FailureClass.ENGINE, error.cause, 503, message, retry_after_s=2)
        return GenerationFailed(FailureClass.ENGINE, error.cause, 502, str(error))
    if is_overflow(error.message):
        return overflow(None, None, error.message)
    if error.status in (401, 402, 403, 407):
        message = f"The engine does not accept the proxy's own credentials ({error.status})."
        return GenerationFailed(FailureClass.ENGINE, error.cause, 502, message)
    status = error.status if 400 <= error.status < 500 else 502
    return GenerationFailed(
        FailureClass.ENGINE, error.cause, status, error.message, retry_after_s=error.retry_after_s
    )


def refusal(error: Exception, limit: int | None, call_id: str) -> GenerationFailed:
    """A call that could not be prompted; `limit` is the model's length, where it is known."""
    if isinstance(error, GenerationFailed):
        return error
    if isinstance(error, StoreError):
        return store_failure(error)
    if isinstance(error, BadRequest):
        return GenerationFailed(
            FailureClass.HARNESS, "bad_request", error.status, error.message, code=error.code
        )
    if isinstance(error, RenderRejected | EngineRefused) and is_overflow(error.message):
        return overflow(None, limit, error.message)
    if isinstance(error, EngineError):
        return engine_failure(error)
    if isinstance(error, RenderRejected):
        return GenerationFailed(FailureClass.ENGINE, "refused_request", 400, str(error))
    return internal_failure(error, call_id)


def internal_failure(error: Exception, call_id: str) -> GenerationFailed:
    """A fault of our own; it is logged by its kind and place, without the values it was about."""
    log.error("internal error", call_id=call_id, **described(error))
    name = type(error).__name__
    return GenerationFailed(FailureClass.OURS, "internal", 500, f"Internal error ({name}).")


def described(error: BaseException) -> dict[str, object]:
    """The kind of an error and where it was raised: all of it that may be logged.

    Neither its message nor any local variable: they hold prompts and keys.
    """
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{frame.filename.rpartition('budwood/')[2]}:{frame.lineno}" for frame in frames]
    return {"error": type(error).__name__, "where": places[-8:]}


_STORE_CAUSES = (
    (StoreBusy, "store_busy"),
    (StoreFull, "store_full"),
    (StoreCorrupt, "store_corrupt"),
)


def store_cause(error: StoreError) -> str:
    """The cause code of a store error."""
    return next((cause for kind, cause in _STORE_CAUSES if isinstance(error, kind)), "store_error")


def store_failure(error: StoreError) -> GenerationFailed:
    """An answer that could not be made durable, and so is not given."""
    heals = isinstance(error, StoreBusy | StoreFull)
    then = "nothing was lost. Try again." if heals else "the proxy's log says why."
    return GenerationFailed(
        FailureClass.STORE,
        store_cause(error),
        503,
        f"The call could not be recorded; {then}",
        code="store_unavailable",
        retry_after_s=1.0,
    )
