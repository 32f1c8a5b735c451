"""What a rollout was worth beside the others of its group.

    GRPO (DeepSeekMath, arXiv 2402.03300)    (r - mean) / (std + eps), std over n - 1
    Dr. GRPO (arXiv 2503.20783)              r - mean                  scale = "none"
    RLOO (arXiv 2402.14740)                  r - mean of the others    baseline = "leave_one_out"

The comparison is over rollouts, whatever rows they have. A rollout with reward none, or of a class
that says nothing about the policy, is in no comparison. Sums are exact (`math.fsum`), so that the
order of the rollouts changes nothing, not even the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class AdvantageSettings(BaseModel):
    """How the rollouts of a group are compared."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    baseline: Literal["mean", "leave_one_out"] = "mean"
    """What a reward is compared with: the mean of the group, or that of the others."""
    scale: Literal["std", "none"] = "std"
    """`std` divides by the group's standard deviation (GRPO), `none` does not (Dr. GRPO)."""
    eps: float = Field(default=1e-4, ge=0)
    """Added to the standard deviation before dividing by it."""
    min_spread: float = Field(default=1e-6, ge=0)
    """A group whose rewards lie no further apart than this says nothing and is left out."""


def advantages(
    rewards_G: Sequence[float], settings: AdvantageSettings | None = None
) -> list[float] | None:
    """Return the advantage of each rollout of a group, parallel to its rewards.

    None where the group says nothing: fewer than two rewards, or all of them equal.
    """
    settings = settings or AdvantageSettings()
    n = len(rewards_G)
    if n < 2 or max(rewards_G) - min(rewards_G) <= settings.min_spread:
        return None
    total = math.fsum(rewards_G)
    mean = total / n
    scale = 1.0
    if settings.scale == "std":
        variance = math.fsum((reward - mean) ** 2 for reward in rewards_G) / (n - 1)
        scale = math.sqrt(variance) + settings.eps
    if settings.baseline == "leave_one_out":
        return [(reward - (total - reward) / (n - 1)) / scale for reward in rewards_G]
    return [(reward - mean) / scale for reward in rewards_G]
