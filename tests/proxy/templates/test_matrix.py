"""Installed templates x conversations: suffixes right in ids, edits of meaning told, all of them.

A part of `python -m tests.proxy.templates.matrix` that takes a minute: one kind of tokenizer a
template in rotation, a few random conversations.
"""

from dataclasses import replace

import pytest

from budwood.proxy.lineage.suffix import Suffix, SuffixFinder
from budwood.proxy.lineage.suffix.verdict import Verdict

from .conversations import fixtures
from .corpus import template, templates
from .jinja_renderer import JinjaRenderer
from .matrix import check_template, fuzz
from .toy_tokenizers import KINDS

NAMES = [found.name for found in templates()]


@pytest.mark.parametrize("name", NAMES)
async def test_every_suffix_is_right_and_every_edit_is_told(name):
    place = NAMES.index(name)
    talks = [*fixtures(), *fuzz(seed=place, n=2)]
    tally = await check_template(template(name), KINDS[place % len(KINDS)], talks)
    assert tally.faults == []
    assert tally.n_rows >= 5


@pytest.mark.parametrize("name", NAMES[::5])
async def test_the_same_holds_where_nothing_is_remembered(name):
    kind = KINDS[(NAMES.index(name) // 5) % len(KINDS)]
    tally = await check_template(template(name), kind, fixtures(), use_cache=False)
    assert tally.faults == []
    assert tally.finder["probes"] >= tally.n_rows - tally.ends["right_refused_edit"]


def test_the_corpus_is_what_the_packages_ship():
    assert len(NAMES) >= 75
    assert {name.partition("/")[0] for name in NAMES} == {"trl", "vllm", "mistral"}
    assert len(fixtures()) == 26


class AlwaysSplices(SuffixFinder):
    """Believes that no template ever edits."""

    def refuses(self, verdict: Verdict, *, keep_reasoning: bool) -> str | None:
        return None if verdict.stop_in_gap else "stop_not_in_gap"


class NeverSplices(SuffixFinder):
    """Renders whole, always."""

    def refuses(self, verdict: Verdict, *, keep_reasoning: bool) -> str | None:
        return "template_edits"


class TokenizesTheSuffixAlone(SuffixFinder):
    """Makes the suffix's ids from its text."""

    async def find(self, *question, **options) -> Suffix:
        found = await super().find(*question, **options)
        if found.ids is None:
            return found
        renderer = self._renderer
        assert isinstance(renderer, JinjaRenderer)
        text = renderer.tokenizer.decode(found.ids, skip_special_tokens=False)
        return replace(found, ids=await renderer.tokenize(text))


@pytest.mark.parametrize(
    ("make_finder", "fault"),
    [
        (AlwaysSplices, "missed"),
        (NeverSplices, "false_alarm"),
        (TokenizesTheSuffixAlone, "wrong"),
    ],
)
async def test_the_oracle_finds_out_a_finder_that(make_finder, fault):
    found = template("trl/qwen3")
    tally = await check_template(found, "metaspace-first", fixtures(), make_finder=make_finder)
    assert tally.ends[fault] > 0
