"""What a trainer raises.

TrainerError
├── MissingExtra       (also an ImportError) a package is needed that the extra `train` brings
├── ConfigError        (also a ValueError) the configuration cannot be used with these recordings
├── RowsError          (also a ValueError) rows that train a token twice, or without its logprob
├── NothingToTrain     not one row is left; the message counts what was left out, by reason
├── Mismatched         the model is not the one that sampled: training would be on nonsense
├── RunError           the output folder holds another run, or a checkpoint that cannot be read
└── SyncFailed         new weights did not reach the engine; the message says what it serves now
"""

from __future__ import annotations

from collections.abc import Mapping


class TrainerError(Exception):
    """Base of this room's errors."""


class MissingExtra(TrainerError, ImportError):
    """Training needs packages that are not installed; the message names the extra."""


class ConfigError(TrainerError, ValueError):
    """The configuration does not fit what was recorded; the message says which key, and why."""


class RowsError(TrainerError, ValueError):
    """Rows that break a promise: a token trained twice, or without the logprob it needs."""


class NothingToTrain(TrainerError):
    """Nothing recorded may be trained on."""

    def __init__(self, what: str, left_out: Mapping[str, int]) -> None:
        """Say what was looked for and what was left out, by reason."""
        reasons = ", ".join(f"{name} {n}" for name, n in sorted(left_out.items()) if n)
        super().__init__(f"{what}: not one row is left to train on; left out: {reasons or 'none'}")
        self.what = what
        self.left_out = dict(left_out)

    def __reduce__(self) -> tuple[type, tuple[str, dict[str, int]]]:
        """Pickle by what it was made of."""
        return type(self), (self.what, self.left_out)


class Mismatched(TrainerError):
    """Recorded and recomputed logprobs differ by more than the configuration allows."""


class RunError(TrainerError):
    """The output folder cannot be gone on with."""


class SyncFailed(TrainerError):
    """New weights did not reach the engine."""

    def __init__(self, message: str, *, serving: str | None) -> None:
        """`serving` is the version that the engine answers with now, None where that is unknown."""
        super().__init__(message)
        self.serving = serving

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by what it was made of."""
        return _sync_failed, (str(self), self.serving)


def _sync_failed(message: str, serving: str | None) -> SyncFailed:
    return SyncFailed(message, serving=serving)
