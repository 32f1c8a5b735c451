"""What the start-up probes say of templates that are known by reading."""

import pytest

from budwood.proxy.lineage.suffix import probe_profile

from .corpus import template, templates
from .jinja_renderer import JinjaRenderer
from .toy_tokenizers import toy_tokenizer


async def profile_of(name: str, **arguments):
    renderer = JinjaRenderer(template(name), toy_tokenizer("metaspace-first"))
    profile = await probe_profile(renderer, {"chat_template_kwargs": arguments})
    assert renderer.n_renders <= 24
    return profile


@pytest.mark.parametrize(
    ("name", "arguments", "reasoning"),
    [
        ("trl/qwen3", {}, "loop_only"),
        ("trl/qwen3_6", {}, "loop_only"),
        ("trl/qwen3_6", {"preserve_thinking": True}, "keeps"),
        ("trl/qwen3_8", {}, "keeps"),
        ("trl/glm4moe", {}, "loop_only"),
        ("trl/qwen2_5", {}, "never"),
        ("trl/gptoss", {}, "never"),
        ("mistral/v13", {}, "keeps"),
    ],
)
async def test_which_reasoning_of_the_history_is_shown(name, arguments, reasoning):
    assert (await profile_of(name, **arguments)).reasoning == reasoning


async def test_a_template_that_keeps_everything_needs_no_warning():
    profile = await profile_of("trl/qwen3_instruct_2507")
    assert profile.shows_tools
    assert profile.shows_tool_calls
    assert profile.shows_tool_results
    assert profile.accepts_parallel_calls
    assert profile.warnings() == []


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("trl/qwen3_5_think", "system messages past the first"),
        ("trl/qwen3_5_think", "developer"),
        ("trl/llama3_1", "several tool calls"),
        ("trl/llama3_1", "drops a reply's text"),
        ("trl/deepseek_r1_distill", "tool calls"),
        ("trl/phi3", "tool list"),
        ("mistral/v7", "moves the tool list"),
        ("mistral/v3tek", "moves the system text"),
    ],
)
async def test_what_a_user_should_know_is_said(name, word):
    assert any(word in line for line in (await profile_of(name)).warnings())


async def test_lost_reasoning_matters_only_where_a_parser_makes_it():
    profile = await profile_of("trl/gptoss")
    assert not any("reasoning" in line for line in profile.warnings())
    assert any("reasoning" in line for line in profile.warnings(reasoning_parser=True))


@pytest.mark.parametrize("name", [found.name for found in templates()][::4])
async def test_every_template_can_be_profiled(name):
    await profile_of(name)
