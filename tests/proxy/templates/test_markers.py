"""Markers are found in ids wherever they stand, in each kind of tokenizer."""

from array import array

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from budwood.proxy.lineage.suffix.markers import Markers, MarkersUnstable, marker_text
from budwood.proxy.testing.toy_tokenizer import ToyTokenizer

from .corpus import template
from .jinja_renderer import JinjaRenderer
from .toy_tokenizers import KINDS, control_tokens, toy_tokenizer

SURROUNDINGS = st.text(alphabet="aZ9 \n\t.,<>{}\"'\u00e9\u4e16", max_size=12) | st.sampled_from(
    control_tokens()
)


@pytest.fixture(params=[*KINDS, "toy-engine"])
def tokenizer(request):
    if request.param == "toy-engine":
        return ToyTokenizer().encode
    return JinjaRenderer(template("trl/qwen3"), toy_tokenizer(request.param)).ids


@pytest.fixture
async def markers(tokenizer):
    async def tokenize(text: str) -> array:
        return array("I", tokenizer(text))

    return await Markers.learn(tokenize)


@given(
    numbers=st.lists(st.integers(0, 4095), max_size=5),
    between=st.lists(SURROUNDINGS, min_size=6, max_size=6),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_markers_are_found_in_order_in_any_surroundings(markers, tokenizer, numbers, between):
    text = between[-1] + "".join(
        marker_text(number) + after for number, after in zip(numbers, between, strict=False)
    )
    ids = array("I", tokenizer(text))
    assert [found.number for found in markers.find(ids)] == numbers
    assert markers.touch(ids) == bool(numbers)


def test_a_broken_marker_is_no_marker_but_is_noticed(markers, tokenizer):
    text = "so " + " ".join(marker_text(5).split()[:4]) + " and nothing more"
    ids = array("I", tokenizer(text))
    assert markers.find(ids) == []
    assert markers.touch(ids)


def test_there_is_an_end_of_numbers():
    with pytest.raises(ValueError, match="4096"):
        marker_text(4096)


async def test_a_tokenizer_that_gives_words_other_ids_each_time_has_no_markers():
    calls = 0

    async def tokenize(text: str) -> array:
        nonlocal calls
        calls += 1
        return array("I", [calls * 1000 + ord(char) for char in text])

    with pytest.raises(MarkersUnstable):
        await Markers.learn(tokenize)
