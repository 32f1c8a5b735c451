"""`budwood proxy` as a process: it ends in order, and tells its secrets to nobody."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process

import aiohttp
import pytest

from budwood.proxy.testing import Reply, ScriptedEngine
from budwood.trajectory_store import CallState, Store

ADMIN = "an-admin-secret-for-tests"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@contextlib.asynccontextmanager
async def proxy_process(store, engine, **settings):
    """A proxy process: yields it, its two addresses and a rollout."""
    settings = {"port": 0, "admin_port": 0, "admin_secret": ADMIN, **settings}
    environment = {f"BUDWOOD_PROXY__{k.upper()}": str(v) for k, v in settings.items()}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "budwood", "proxy", "--engine", engine.url, "--store", str(store),
        stdout=PIPE, stderr=PIPE, cwd=store.parent, env={**os.environ, **environment},
    )  # fmt: skip
    try:
        assert process.stderr is not None
        said: dict = {}
        async with asyncio.timeout(60):
            async for line in process.stderr:
                said = json.loads(line)
                if said["event"] == "proxy listening":
                    break
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                f"{said['admin_url']}/admin/rollouts",
                json={},
                headers={"Authorization": f"Bearer {ADMIN}"},
            ) as answer,
        ):
            rollout = await answer.json()
        yield process, said["url"], rollout
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def ask(url: str, secret: str, *, stream: bool) -> tuple[int, bytes]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"{url}/r/{secret}/v1/chat/completions", json={**BODY, "stream": stream}
        ) as answer,
    ):
        return answer.status, await answer.read()


async def in_flight(engine: ScriptedEngine, n_calls: int) -> None:
    async with asyncio.timeout(60):
        while engine.stats.calls < n_calls:  # noqa: ASYNC110  another process: no event
            await asyncio.sleep(0.01)


async def ended(process: Process) -> tuple[int, str]:
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    return process.returncode or 0, (out + err).decode()


def script(call, delay_ms: float = 30.0):
    return (
        Reply("probe")
        if call.body.get("max_tokens") == 1
        else Reply("word " * 20, delay_ms=delay_ms)
    )


async def test_sigterm_lets_calls_end_and_exits_0_and_no_secret_is_told(tmp_path):
    store = tmp_path / "store" / "budwood.db"
    store.parent.mkdir()
    async with ScriptedEngine(script) as engine, proxy_process(store, engine) as running:
        process, url, rollout = running
        n_before = engine.stats.calls
        asked = [
            asyncio.create_task(ask(url, rollout["secret"], stream=stream))
            for stream in (True, False, True, False)
        ]
        await in_flight(engine, n_before + 4)
        process.send_signal(signal.SIGTERM)
        answers = await asyncio.gather(*asked)
        assert [status for status, _ in answers] == [200] * 4
        assert all(body.endswith((b"data: [DONE]\n\n", b"}")) for _, body in answers)
        code, said = await ended(process)
    assert code == 0
    assert all(json.loads(line)["event"] for line in said.splitlines())
    with Store.open(store) as opened:
        calls = opened.calls(rollout["rollout_id"])
        assert [call.state for call in calls] == [CallState.DELIVERED] * 4
    written = b"".join(path.read_bytes() for path in store.parent.iterdir())
    for secret in (rollout["secret"], ADMIN):
        assert secret not in said
        assert secret.encode() not in written


async def test_calls_that_outlast_the_drain_are_recorded_as_cut_by_the_shutdown(tmp_path):
    store = tmp_path / "budwood.db"
    slow = lambda call: script(call, 2000.0)  # noqa: E731
    async with (
        ScriptedEngine(slow) as engine,
        proxy_process(store, engine, drain_s=0.2) as running,
    ):
        process, url, rollout = running
        n_before = engine.stats.calls
        asked = [
            asyncio.create_task(ask(url, rollout["secret"], stream=stream))
            for stream in (True, False)
        ]
        await in_flight(engine, n_before + 2)
        process.send_signal(signal.SIGINT)
        streamed, plain = await asyncio.gather(*asked, return_exceptions=True)
        # Before its first event a stream still has a status, after it only a cut.
        assert isinstance(streamed, aiohttp.ClientError | tuple)
        assert not isinstance(streamed, tuple) or streamed[0] == 503
        assert isinstance(plain, tuple)
        assert plain[0] == 503
        assert (await ended(process))[0] == 0
    with Store.open(store) as opened:
        calls = opened.calls(rollout["rollout_id"])
        assert [(call.state, call.cause) for call in calls] == [(CallState.ABORTED, "shutdown")] * 2
        assert opened.sequences(rollout["rollout_id"]) == []


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_it_at_once_and_the_store_is_right(tmp_path, second):
    store = tmp_path / "budwood.db"
    slow = lambda call: script(call, 2000.0)  # noqa: E731
    async with ScriptedEngine(slow) as engine, proxy_process(store, engine) as running:
        process, url, rollout = running
        n_before = engine.stats.calls
        asked = asyncio.create_task(ask(url, rollout["secret"], stream=True))
        await in_flight(engine, n_before + 1)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        async with asyncio.timeout(60):
            async for line in process.stderr:
                if b"proxy stopping" in line:
                    break
        process.send_signal(second)
        assert (await ended(process))[0] == -second
        with pytest.raises(aiohttp.ClientError):
            await asked
    with Store.open(store) as opened:
        opened.sweep()
        states = {call.state for call in opened.calls(rollout["rollout_id"])}
        assert states <= {CallState.LOST}
