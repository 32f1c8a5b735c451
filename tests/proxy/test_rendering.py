"""What the engine is asked to render, and what is still known."""

from array import array

import pytest

from budwood.proxy.engine import EngineRefused, RenderRefused
from budwood.proxy.lineage.suffix import RenderRejected
from budwood.proxy.recording import rendering
from budwood.proxy.recording.rendering import REMEMBERED_S, EngineRenderer

HELLO = [{"role": "user", "content": "Hello"}]


class CountingEngine:
    """Renders to the number of the question; refuses as it is told."""

    n_asked = 0
    error: EngineRefused | None = None

    async def render(self, messages, tools, template, add_generation_prompt):
        self.n_asked += 1
        if self.error is not None:
            raise self.error
        return array("I", [self.n_asked] * 4)


@pytest.fixture
def engine():
    return CountingEngine()


async def test_what_many_attempts_begin_with_is_rendered_once(engine):
    renderer = EngineRenderer(engine)
    first = await renderer.render(HELLO, None, {})
    assert await renderer.render([dict(message) for message in HELLO], None, {}) == first
    assert engine.n_asked == 1


async def test_any_difference_is_another_question(engine):
    renderer = EngineRenderer(engine)
    tools = [{"type": "function", "function": {"name": "bash"}}]
    seen = [
        await renderer.render(HELLO, None, {}),
        await renderer.render([{"role": "user", "content": "Hello "}], None, {}),
        await renderer.render(HELLO, tools, {}),
        await renderer.render(HELLO, None, {"chat_template_kwargs": {"x": 1}}),
        await renderer.render(HELLO, None, {}, add_generation_prompt=False),
    ]
    assert len({ids[0] for ids in seen}) == engine.n_asked == len(seen)


async def test_a_template_that_tells_the_date_is_asked_again(engine, monkeypatch):
    renderer = EngineRenderer(engine)
    before = await renderer.render(HELLO, None, {})
    now = rendering.time.monotonic()
    monkeypatch.setattr(rendering.time, "monotonic", lambda: now + REMEMBERED_S + 1)
    assert await renderer.render(HELLO, None, {}) != before


async def test_what_is_remembered_has_a_bound(engine, monkeypatch):
    monkeypatch.setattr(rendering, "MAX_REMEMBERED_TOKENS", 8)
    renderer = EngineRenderer(engine)
    words = ["one", "two", "three"]
    for word in words:
        await renderer.render([{"role": "user", "content": word}], None, {})
    await renderer.render([{"role": "user", "content": words[-1]}], None, {})
    assert engine.n_asked == 3
    await renderer.render([{"role": "user", "content": words[0]}], None, {})
    assert engine.n_asked == 4


@pytest.mark.parametrize(("status", "error"), [(400, RenderRejected), (503, RenderRefused)])
async def test_a_refusal_is_not_remembered(engine, status, error):
    renderer = EngineRenderer(engine)
    engine.error = RenderRefused(status, "no")
    with pytest.raises(error):
        await renderer.render(HELLO, None, {})
    engine.error = None
    assert len(await renderer.render(HELLO, None, {})) == 4
