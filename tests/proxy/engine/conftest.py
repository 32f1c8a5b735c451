"""Engines to talk to, and calls as the proxy would make them."""

import json
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from budwood.proxy.call import parse_chat
from budwood.proxy.engine import Engine, EngineSettings, Prompt, build_call
from budwood.proxy.testing import ScriptedEngine
from budwood.trajectory_store import CallId, LaneId, Purpose

FIXTURES = Path(__file__).parents[2] / "fixtures" / "vllm"
BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a shell command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}
USER = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def recorded_json():
    """The recorded exchange of a name: request, status, response."""
    return lambda name: json.loads((FIXTURES / f"{name}.json").read_text())


@pytest.fixture
def recorded_stream():
    """The recorded bytes of a streamed answer."""

    def read(name):
        data = (FIXTURES / f"{name}.sse").read_bytes()
        return data.split(b"\n", 2)[2]

    return read


@pytest.fixture
def chat_request():
    """Parse a chat request as a harness sends it."""

    def make(messages=USER, **fields):
        return parse_chat(json.dumps({"model": "m", "messages": messages, **fields}).encode())

    return make


@pytest.fixture
def engine_call(chat_request):
    """Build a call; ids are rendered by the engine where it can."""

    async def make(engine, messages=USER, *, purpose=Purpose.TRAIN, sampling=None, **fields):
        request = chat_request(messages, **fields)
        prompt = None
        if engine.info.can_render and engine.info.takes_ids:
            prompt = Prompt(await engine.render(messages, request.tools, request.template))
        return build_call(
            engine.info,
            request,
            call_id=CallId("ca_test"),
            lane_id=LaneId("la_test"),
            model=engine.info.served_model,
            purpose=purpose,
            sampling=sampling,
            prompt=prompt,
            messages=messages,
        )

    return make


@pytest.fixture
def scripted():
    """A context manager: a scripted engine and a probed client of it."""

    @asynccontextmanager
    async def start(script=None, *, settings=None, **options):
        async with ScriptedEngine(script, **options) as server:
            values = {"backoff_min_s": 0.0, "backoff_max_s": 0.0, **(settings or {})}
            async with Engine(EngineSettings(urls=(server.url,), **values)) as engine:
                await engine.probe()
                yield server, engine

    return start


async def read(engine, call):
    """Return (deltas, reply) of a call."""
    deltas = []
    async with engine.call(call) as stream:
        async for batch in stream:
            deltas += batch
    return deltas, stream.reply


@pytest.fixture(name="read")
def _read():
    return read


@pytest.fixture
def odd_engine():
    """A context manager: a probed client of a server that answers chats by `answer(request)`."""

    @asynccontextmanager
    async def start(answer):
        is_probed = False

        async def chat(request):
            if is_probed:
                return answer(request)
            message = {"role": "assistant", "content": "Hi"}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return web.json_response({"choices": [choice]})

        async def models(_):
            return web.json_response({"data": [{"id": "m"}]})

        app = web.Application()
        app.router.add_post("/v1/chat/completions", chat)
        app.router.add_get("/v1/models", models)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        settings = EngineSettings(urls=(url,), backoff_min_s=0.0, backoff_max_s=0.0)
        try:
            async with Engine(settings) as engine:
                await engine.probe()
                is_probed = True
                yield engine
        finally:
            await runner.cleanup()

    return start
