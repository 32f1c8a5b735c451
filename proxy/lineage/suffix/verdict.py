"""What a template does to a conversation when new messages come: told from ids of small renders.

    prompt   skeleton history, generation prompt    what the sampled reply followed
    bare     skeleton history, no generation prompt
    whole    skeleton history + reply + marker tail, generation prompt
    gap      the same with a tail of bare markers   (the same render, mostly)

The markers of `whole` must be those of `prompt`, then the reply's, then the tail's, each once and
in this order; anything else is an edit of meaning. Where only the template's own text differs, it
matters whether that was written before the generation prompt (early) or is a residue of it.
"""

from array import array
from dataclasses import dataclass
from typing import Literal

from .markers import END, Markers
from .skeleton import Skeleton

Kind = Literal["none", "cosmetic", "early_text", "semantic"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happens to the history, and whether the sampled stop stands after the reply."""

    kind: Kind
    stop_in_gap: bool
    only_reasoning: bool = False
    """The edit of meaning is nothing but dropped reasoning."""


@dataclass(frozen=True, slots=True)
class Renders:
    """The ids of the small renders that the module docstring names."""

    prompt: "array[int]"
    bare: "array[int]"
    whole: "array[int]"
    gap: "array[int]"


def judge(renders: Renders, skeleton: Skeleton, markers: Markers, stop_id: int) -> Verdict:
    """The verdict on one structure for one sampled stop."""
    before = [found.number for found in markers.find(renders.prompt)]
    after = [found.number for found in markers.find(renders.whole)]
    wanted = [*before, *skeleton.reply_markers, *skeleton.tail_markers]
    closed = _stop_in_gap(renders, markers, stop_id)
    if after != wanted:
        thoughts = skeleton.reasoning_markers
        spoken = [number for number in wanted if number not in thoughts]
        lacks_only_thoughts = spoken == [n for n in after if n not in thoughts]
        kept_in_order = _is_subsequence(after, wanted)
        return Verdict("semantic", closed, lacks_only_thoughts and kept_in_order)
    left_at = common_length(renders.whole, renders.prompt)
    if left_at == len(renders.prompt):
        return Verdict("none", closed)
    if left_at < common_length(renders.prompt, renders.bare):
        return Verdict("early_text", closed)
    return Verdict("cosmetic", closed)


def common_length(a: "array[int]", b: "array[int]") -> int:
    """How many leading ids two arrays share."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def _stop_in_gap(renders: Renders, markers: Markers, stop_id: int) -> bool:
    """Whether the template writes the stop between the reply's end and the first new text.

    The close has to be the same in both renders with a tail: a stop that only the new text brings
    along closes nothing.
    """
    close = _close(renders.gap, markers, stop_id)
    return close is not None and close == _close(renders.whole, markers, stop_id)


def _close(ids: "array[int]", markers: Markers, stop_id: int) -> "array[int] | None":
    """The ids from the end marker to the first stop; None if a marker or the end comes first."""
    found = markers.find(ids)
    ends = [marker.end for marker in found if marker.number == END]
    if len(ends) != 1:
        return None
    limit = min((marker.start for marker in found if marker.start >= ends[0]), default=len(ids))
    try:
        return ids[ends[0] : ids.index(stop_id, ends[0], limit) + 1]
    except ValueError:
        return None


def _is_subsequence(part: list[int], whole: list[int]) -> bool:
    rest = iter(whole)
    return all(number in rest for number in part)
