"""A prompt's ids and JSON text stay the same thing however it grows."""

import json
from array import array

from hypothesis import given
from hypothesis import strategies as st

from budwood.proxy.engine import Prompt

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=30)


@given(IDS, st.lists(IDS, max_size=4))
def test_extending_gives_ids_and_text_of_the_whole(first, more):
    prompt = Prompt(array("I", first))
    assert prompt.json == json.dumps(first, separators=(",", ":")).encode()
    whole = list(first)
    for ids in more:
        prompt = prompt.extended(ids)
        whole += ids
    assert list(prompt) == whole
    assert json.loads(prompt.json) == whole
    assert prompt == Prompt(whole)


def test_extending_leaves_the_first_prompt_alone():
    first = Prompt([1, 2])
    assert first.json == b"[1,2]"
    assert first.extended([3]).json == b"[1,2,3]"
    assert list(first) == [1, 2]


def test_a_prompt_does_not_show_its_ids():
    assert "77" not in repr(Prompt([77]))
