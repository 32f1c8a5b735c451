"""The alarm: does the model give the recorded tokens the probabilities they were sampled with?

Where it does not, every importance ratio is wrong, and training would be on nonsense. The recorded
logprobs are those of the distribution that sampled (vLLM's `processed_logprobs`): of the logits
divided by the temperature. They are recomputed in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import Mismatched
from .rows import Row
from .settings import MismatchSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CAUSES = """likely causes, the most frequent first:
  - the model is not the one that sampled: other weights, an adapter missing, an older checkpoint
  - the engine gave raw logprobs: start it with --logprobs-mode processed_logprobs
  - another temperature than the one recorded
  - the engine served old weights or an old cache after a sync (tied heads in vLLM's CPU build)
  - lower precision on one side: raise mismatch.max_mean and mismatch.max_single knowingly"""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """How recorded and recomputed logprobs differ, in nats, over the tokens that have loss."""

    n_tokens: int
    mean: float
    """Of the absolute differences."""
    largest: float
    """The largest absolute difference."""
    bias: float
    """The mean of recomputed - recorded: below 0, the model finds the tokens less likely."""
    worst: str
    """Where the largest is."""


def compare(rows: Sequence[Row], recomputed: Sequence[NDArray[np.float32]]) -> Mismatch:
    """Return how the recorded logprobs differ from those that were recomputed, parallel to rows."""
    import numpy as np

    mean, bias, largest, worst, n = 0.0, 0.0, 0.0, "nowhere", 0
    for row, now_T in zip(rows, recomputed, strict=True):
        places = np.flatnonzero(row.loss_mask)
        difference = now_T[places].astype(np.float64) - row.old_logprobs[places]
        difference = np.nan_to_num(difference, nan=math.inf)
        size = np.abs(difference)
        mean, bias, n = mean + float(size.sum()), bias + float(difference.sum()), n + len(places)
        if len(size) and float(size.max()) >= largest:
            largest = float(size.max())
            place = int(places[int(size.argmax())])
            worst = (
                f"rollout {row.rollout_id}, lane {row.lane}, row {row.branch}, token {place}: "
                f"recorded {row.old_logprobs[place]:.4f}, recomputed {now_T[place]:.4f}"
            )
    return Mismatch(n, mean / max(n, 1), largest, bias / max(n, 1), worst)


def check(found: Mismatch, settings: MismatchSettings) -> None:
    """Raise `Mismatched` where the differences are over the limits."""
    if found.mean <= settings.max_mean and found.largest <= settings.max_single:
        return
    raise Mismatched(
        f"recorded and recomputed logprobs of {found.n_tokens} tokens differ by {found.mean:.4g} "
        f"on average (limit {settings.max_mean:g}) and by {found.largest:.4g} at most (limit "
        f"{settings.max_single:g}); the mean of recomputed - recorded is {found.bias:+.4g}\n"
        f"the largest: {found.worst}\n{CAUSES}"
    )
