"""Harnesses at work: interleaved conversations as plans that hypothesis draws and shrinks.

An `Episode` says what several agents of one rollout do in turn; `lineage_check.py` plays it.
"""

from dataclasses import dataclass
from enum import StrEnum

from hypothesis import strategies as st

from .harness_edits import COSMETIC, MEANINGFUL


class Start(StrEnum):
    """How a lane that is not open yet begins."""

    MAIN = "main"
    SAME_SYSTEM = "same system text and tools"
    SUB_AGENT = "a system text of its own"
    SIDE = "no tools"
    TWIN = "the very prompt of the main lane"


class End(StrEnum):
    """What becomes of a call."""

    DELIVERED = "delivered"
    CUT_BY_LENGTH = "cut by length"
    ECHOED = "complete, its client gone, the answer used all the same"
    ANSWERED_LATER = "complete, its client gone, asked again and answered from the record"
    ABORTED = "aborted by its client, who asks again"
    RESAMPLED = "delivered, asked again, sampled anew"


@dataclass(frozen=True, slots=True)
class Step:
    """One call of one lane."""

    lane: int
    start: Start
    edits: tuple[str, ...]
    """Names of edits made before this call; the first of meaning, or any number of cosmetic."""
    reasons: bool
    says: bool
    n_calls: int
    user_follows: bool
    """A user message after the tool results."""
    end: End
    overlaps: bool
    """The call is committed only after the next step's call was planned."""
    seed: int


@dataclass(frozen=True, slots=True)
class Episode:
    """One rollout."""

    keeps_reasoning: bool
    """History policy: dropped reasoning is put back."""
    drops_thinking: bool
    """The template drops reasoning of earlier turns once a new user message comes."""
    steps: tuple[Step, ...]


_edits = st.one_of(
    st.just(()),
    st.lists(st.sampled_from(sorted(COSMETIC)), min_size=1, max_size=3).map(tuple),
    st.sampled_from(sorted(MEANINGFUL)).map(lambda name: (name,)),
)

steps = st.builds(
    Step,
    lane=st.sampled_from([0, 0, 0, 1, 1, 2]),
    start=st.sampled_from(Start),
    edits=_edits,
    reasons=st.booleans(),
    says=st.booleans(),
    n_calls=st.sampled_from([0, 1, 1, 1, 2]),
    user_follows=st.sampled_from([False, False, False, True]),
    end=st.sampled_from([End.DELIVERED] * 9 + [end for end in End if end != End.DELIVERED]),
    overlaps=st.sampled_from([False, False, True]),
    seed=st.integers(0, 2**32 - 1),
)

episodes = st.builds(
    Episode,
    keeps_reasoning=st.sampled_from([False, False, False, True]),
    drops_thinking=st.sampled_from([False, False, True]),
    steps=st.lists(steps, min_size=2, max_size=8).map(tuple),
)
