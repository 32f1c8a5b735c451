"""What an engine's refusal teaches about later calls."""

from typing import Any

import pytest

from budwood.proxy.engine.errors import EngineRefused
from budwood.proxy.engine.repair import Repairs
from budwood.proxy.engine.request import EngineCall
from budwood.trajectory_store import CallId, LaneId


def call(**fields: Any) -> EngineCall:
    return EngineCall(CallId("ca_1"), LaneId("la_1"), "m", fields, [], None, False, False, {})


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("Input should be 'low', 'medium' or 'high'", "reasoning_effort"),
        ("Unsupported value: reasoning_effort: 'bogus'", None),
        ("reasoning_effort must be one of low, high", None),
    ],
)
def test_a_wrong_value_of_one_harness_changes_no_later_call(
    message: str, param: str | None
) -> None:
    repairs = Repairs()
    error = EngineRefused(400, message, param=param)
    assert not repairs.learn(call(reasoning_effort="bogus"), error)
    later = call(reasoning_effort="high")
    repairs.apply(later)
    assert later.fields == {"reasoning_effort": "high"}


@pytest.mark.parametrize(
    "message",
    [
        "Unknown parameter: 'reasoning_effort'",
        "reasoning_effort is not supported with this model",
        "this model does not support reasoning_effort",
        "Extra inputs are not permitted: reasoning_effort",
        "Unsupported parameter: reasoning_effort",
        "Unrecognized request argument supplied: reasoning_effort",
    ],
)
def test_a_field_that_the_engine_does_not_know_is_left_out_from_then_on(message: str) -> None:
    repairs = Repairs()
    assert repairs.learn(call(reasoning_effort="high"), EngineRefused(400, message))
    later = call(reasoning_effort="low", model="m")
    repairs.apply(later)
    assert later.fields == {"model": "m"}
