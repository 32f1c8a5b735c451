"""The finder on vLLM's render route; `python -m tests.proxy.templates.vllm_render` does more."""

import pytest

from .conversations import fixtures
from .corpus import template
from .matrix import fuzz
from .vllm_render import FAMILIES, check_through_vllm


@pytest.mark.slow
async def test_suffixes_are_right_as_vllm_renders_them(tmp_path):
    name, kind = FAMILIES[0]
    talks = [*fixtures(), *fuzz(seed=1, n=1)]
    tally = await check_through_vllm(template(name), kind, talks, tmp_path)
    assert tally.faults == []
    assert tally.ends["right"] > 40
