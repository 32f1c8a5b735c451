"""Which fields say how to sample, and which bend it."""

import pytest

from budwood.proxy.call import asked_sampling, constraints


def test_sampling_is_what_the_client_gave_a_value_to():
    fields = {"temperature": 0, "top_p": None, "max_tokens": 5, "stop": [], "user": "u"}
    assert asked_sampling(fields) == {"temperature": 0, "max_tokens": 5, "stop": []}


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, ()),
        ({"tool_choice": "auto", "response_format": {"type": "text"}, "min_tokens": 0}, ()),
        ({"tool_choice": "required"}, ("tool_choice",)),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, ("tool_choice",)),
        ({"response_format": {"type": "json_object"}}, ("response_format",)),
        ({"logit_bias": {"1": 1}, "bad_words": ["x"]}, ("logit_bias", "bad_words")),
    ],
)
def test_constraints_are_named(fields, names):
    assert constraints(fields) == names
