"""Which agent a lane belongs to, told from facts alone.

A rollout has one main lane; a sub-agent, a title generator or the same agent after compaction
opens others. No client field is trusted for this: a lane is a root of the forest, and what it is
follows from when it was used, whether it offers tools, and its system text (`proxy.md` 6). Kinds
are a pure function of the lanes' facts, so they may change when a later call shows more: the
lane of a title call that came first stops being main once a lane with tools appears.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from budwood.trajectory_store import LaneId, LaneKind


@dataclass(slots=True)
class LaneFacts:
    """What is known of one lane. `first` and `last` order calls within the rollout."""

    id: LaneId
    offers_tools: bool
    agent_key: bytes
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class LaneLabel:
    """What a lane is: its kind, the n-th segment of its agent (from 0), and the lane it follows."""

    kind: LaneKind
    segment: int
    parent_lane: LaneId | None


def label_lanes(lanes: Iterable[LaneFacts]) -> dict[LaneId, LaneLabel]:
    """Kind and segment of each lane of one rollout; pure, in order of each lane's first call.

    The main lane is the first that offers tools, else the first. A later lane with the same
    system text and tools that starts after the main lane's last call is its next segment (the
    agent went on after compacting its context). A lane without tools, where others have them,
    is a side call; everything else is a sub-agent.
    """
    ordered = sorted(lanes, key=lambda lane: lane.first)
    if not ordered:
        return {}
    with_tools = [lane for lane in ordered if lane.offers_tools]
    main = with_tools[0] if with_tools else ordered[0]
    labels = {main.id: LaneLabel(LaneKind.MAIN, 0, None)}
    current, segment = main, 0
    for lane in ordered:
        if lane is main:
            continue
        if lane.agent_key == main.agent_key and lane.first > current.last:
            segment += 1
            labels[lane.id] = LaneLabel(LaneKind.MAIN, segment, current.id)
            current = lane
        elif with_tools and not lane.offers_tools:
            labels[lane.id] = LaneLabel(LaneKind.SIDE, 0, None)
        else:
            labels[lane.id] = LaneLabel(LaneKind.SUB_AGENT, 0, _spawner(lane, ordered))
    return labels


def _spawner(lane: LaneFacts, ordered: list[LaneFacts]) -> LaneId | None:
    """The lane whose use encloses the start of this one, if just one does."""
    enclosing = [other.id for other in ordered if other.first < lane.first < other.last]
    return enclosing[0] if len(enclosing) == 1 else None
