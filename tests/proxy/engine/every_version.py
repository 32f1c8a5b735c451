"""`make test-engines`: each vLLM that we claim, every way in on each, and what the probe chooses.

Not named as a test, so that `make test` leaves it out: it starts two servers of two environments.
"""

import sys
from pathlib import Path

import pytest

from budwood.proxy.engine import Engine, EngineSettings, exactness
from budwood.proxy.engine.checks import State, check_engine
from budwood.proxy.testing.real_engine import tiny_engine

ROOT = Path(__file__).parents[3]
PYTHONS = {
    "0.32.0": Path(sys.executable),
    "0.31.0": ROOT / ".envs" / "vllm-0.31" / "bin" / "python",
}
WAYS = ["chat_prompt_token_ids", "kv_transfer", "generate", "text"]
MESSAGES = [
    {"role": "system", "content": "You are a helpful agent."},
    {"role": "user", "content": "List files."},
]
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module", params=PYTHONS)
def server(request):
    """A real server of one version."""
    terminal = request.config.get_terminal_writer()

    def say(text):
        terminal.line(f"  vllm {request.param}: {text}")

    with tiny_engine(ROOT / ".cache", python=PYTHONS[request.param], say=say) as engine:
        yield request.param, engine, say


def _settings(engine, **more):
    return EngineSettings(urls=(engine.url,), **more)


async def test_the_probe_chooses_a_way_that_is_exact(server):
    version, engine, say = server
    async with Engine(_settings(engine)) as client:
        info = await client.probe()
    say(f"the probe chose {info.way_in}; renders by {info.render_route}; {info.problems}")
    assert info.version == version
    assert info.way_in != "text"
    assert info.problems == ()


async def test_doctor_finds_nothing_wrong(server):
    _, engine, _ = server
    assert {found.state for found in await check_engine(_settings(engine))} == {State.OK}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("way", WAYS)
async def test_every_way_is_exact_or_known_to_be_ignored(server, way, stream, engine_call, read):
    _, engine, say = server
    async with Engine(_settings(engine, way=way)) as client:
        info = await client.probe()
        call = await engine_call(
            client, MESSAGES, tools=engine.conversations[0]["tools"], stream=stream,
            sampling={"temperature": 0.01},
        )  # fmt: skip
        deltas, reply = await read(client, call)
    reasons = exactness(reply, call.prompt.ids if call.prompt else None, info)
    say(
        f"{way}, {'streamed' if stream else 'plain'}: {len(reply.out_ids or ())} tokens in"
        f" {len(deltas)} deltas, {', '.join(reasons) or 'exact'}"
        + (f", {', '.join(reply.flags)}" if reply.flags else "")
    )
    if way == "chat_prompt_token_ids":
        # Neither version honours it; the probe passes it over, and a call would be found out.
        assert reasons == ["engine_ignored_ids"]
        return
    assert reasons == []
    assert reply.message["tool_calls"][0]["arguments"] == '{"command": "ls"}'
    assert reply.finish == "tool_calls"
