"""What a lane is follows from facts about its use alone."""

from budwood.proxy.lineage.lane import LaneFacts, label_lanes
from budwood.trajectory_store import LaneId, LaneKind


def lane(name: str, first: int, last: int, *, tools: bool = True, agent: bytes = b"a") -> LaneFacts:
    return LaneFacts(LaneId(name), tools, agent, first, last)


def kinds(*lanes: LaneFacts) -> dict[str, tuple[LaneKind, int]]:
    return {name: (label.kind, label.segment) for name, label in label_lanes(lanes).items()}


def test_no_lanes_have_no_labels() -> None:
    assert label_lanes([]) == {}


def test_the_first_lane_with_tools_is_main_even_after_a_title_call() -> None:
    found = kinds(lane("title", 1, 1, tools=False, agent=b"t"), lane("agent", 2, 9))
    assert found == {"title": (LaneKind.SIDE, 0), "agent": (LaneKind.MAIN, 0)}


def test_without_any_tools_the_first_lane_is_main() -> None:
    found = kinds(lane("one", 1, 4, tools=False), lane("two", 2, 3, tools=False, agent=b"b"))
    assert found == {"one": (LaneKind.MAIN, 0), "two": (LaneKind.SUB_AGENT, 0)}


def test_the_same_agent_starting_after_the_end_of_main_is_its_next_segment() -> None:
    labels = label_lanes([lane("a", 1, 5), lane("b", 6, 8), lane("c", 9, 9)])
    assert [(label.kind, label.segment) for label in labels.values()] == [
        (LaneKind.MAIN, 0),
        (LaneKind.MAIN, 1),
        (LaneKind.MAIN, 2),
    ]
    assert labels[LaneId("c")].parent_lane == "b"


def test_the_same_agent_starting_while_main_goes_on_is_a_sub_agent_of_it() -> None:
    labels = label_lanes([lane("main", 1, 9), lane("helper", 4, 6)])
    assert labels[LaneId("helper")].kind is LaneKind.SUB_AGENT
    assert labels[LaneId("helper")].parent_lane == "main"


def test_another_system_text_after_the_end_of_main_is_no_segment() -> None:
    assert kinds(lane("main", 1, 2), lane("other", 3, 4, agent=b"b"))["other"] == (
        LaneKind.SUB_AGENT,
        0,
    )
