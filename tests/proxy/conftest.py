"""A running proxy before a scripted engine."""

from contextlib import asynccontextmanager

import pytest

from budwood.proxy.testing import ScriptedEngine
from budwood.proxy.testing.running import proxy_for_tests
from budwood.trajectory_store import Store


@pytest.fixture
def proxied(tmp_path):
    """A context manager: `async with proxied(script, **settings) as (proxy, engine)`.

    `engine.calls` and `engine.stats.calls` start after the probe.
    """

    @asynccontextmanager
    async def start(script, *, engine_options=None, observer=None, **settings):
        with Store.open(tmp_path / "store.db") as opened:
            async with ScriptedEngine(script, **(engine_options or {})) as engine:
                async with proxy_for_tests(
                    engine.url, opened, observer=observer, **settings
                ) as proxy:
                    engine.calls.clear()
                    engine.stats.calls = 0
                    yield proxy, engine

    return start
