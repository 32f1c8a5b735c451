"""A rollout as lines, messages for reading, and why a call forks."""

import json
from dataclasses import replace

from budwood.trajectory_store import LaneKind
from budwood.trajectory_store.overview import lane_names, shown, tree
from budwood.trajectory_store.testing import Scribe
from budwood.trajectory_store.why import FLAGS, explain


def _lines(store, rollout_id):
    lanes, calls = store.lanes(rollout_id), store.calls(rollout_id)
    return list(tree(lanes, calls)), calls, lanes


def test_every_lane_and_call_stands_in_the_tree_once(recorded_store, recorded):
    lines, calls, lanes = _lines(recorded_store, recorded.tree)
    assert sorted(x.call.id for x in lines if x.call) == sorted(c.id for c in calls)
    assert sorted(x.lane.id for x in lines if x.lane and not x.call) == sorted(
        lane.id for lane in lanes
    )


def test_a_fork_stands_deeper_than_what_continues(recorded_store, recorded):
    lines, _, _ = _lines(recorded_store, recorded.tree)
    depths = {x.call.id: (x.depth, x.is_fork) for x in lines if x.call}
    assert depths[recorded.calls["tree.2"]] == (1, False)
    assert depths[recorded.calls["tree.inexact"]] == (1, False)
    assert depths[recorded.calls["tree.fork"]] == (2, True)
    assert depths[recorded.calls["tree.sub"]] == (2, False)


def test_a_long_chain_stays_at_one_depth(recorded_store, recorded):
    scribe = Scribe(recorded_store, recorded_store.open_rollout(recorded.run_id))
    lane, said, parent = scribe.lane(), [{"role": "user", "content": "go"}], None
    for _ in range(60):
        parent = scribe.call(lane, said, "x", parent=parent)
        said = [*scribe.history[parent], {"role": "user", "content": "on"}]
    lines, _, _ = _lines(recorded_store, scribe.rollout.id)
    assert {x.depth for x in lines if x.call} == {1}
    turns = [x.call.turn_index for x in lines if x.call]
    assert turns == list(range(60))


def test_lanes_of_a_kind_are_numbered(recorded_store, recorded):
    scribe = Scribe(recorded_store, recorded_store.open_rollout(recorded.run_id))
    main = scribe.lane()
    lanes = [
        main,
        scribe.lane(segment=1),
        scribe.lane(LaneKind.SUB_AGENT, parent_lane=main.id),
        scribe.lane(LaneKind.SUB_AGENT, parent_lane=main.id),
    ]
    names = list(lane_names(lanes).values())
    assert names == ["main", "main, segment 1", "sub-agent 1", "sub-agent 2"]


def test_any_shape_of_message_can_be_read():
    assert shown("text").text == "text"
    assert shown([1]).role == "?"
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}, 7]
    assert shown({"role": "user", "content": parts}).text == "a\n[image_url]\n7"
    seen = shown({"role": "assistant", "tool_calls": [{"function": {"name": "f"}}, 3], "x": 0})
    assert [call.name for call in seen.tool_calls] == ["f", "?"]
    assert json.loads(seen.other) == {"x": 0}
    assert shown({"role": "assistant", "content": "a", "refusal": None}).other == ""
    bad = {"role": "assistant", "tool_calls": [{"id": 1, "function": {"arguments": "{bad"}}]}
    assert shown(bad).tool_calls[0].arguments == "{bad"


def test_why_names_codes_states_and_the_first_message_that_differs(recorded_store, recorded):
    why = explain(recorded_store, recorded_store.call(recorded.calls["tree.fork"]), {})
    assert why.reasons == (("reasoning_dropped", ""),)
    assert why.fork is not None
    assert why.fork.against == recorded.calls["tree.2"]
    assert why.fork.n_common == 2
    assert why.fork.difference is not None
    assert why.fork.difference.where == "message 2 (assistant), reasoning"
    failed = explain(recorded_store, recorded_store.call(recorded.calls["tree.failed"]), {})
    assert failed.reasons[0][0] == "cut"
    assert "never trained" in failed.state
    told = replace(recorded_store.call(recorded.calls["tree.1"]), flags=frozenset(FLAGS))
    assert dict(explain(recorded_store, told, {}).reasons) == dict(FLAGS)
    first = explain(recorded_store, recorded_store.call(recorded.calls["tree.1"]), {})
    assert first.fork is None
