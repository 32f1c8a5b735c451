"""The proxy on a Unix socket, as sandboxes without a network reach it."""

import socket
import stat

import aiohttp
import pytest

from budwood.proxy import ConfigurationError
from budwood.proxy.testing import Reply, ScriptedEngine
from budwood.proxy.testing.running import proxy_for_tests
from budwood.trajectory_store import CallState, Store

BODY = {"model": "any", "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
async def engine():
    async with ScriptedEngine(lambda _call: Reply(content="fine")) as running:
        yield running


async def ask(path, secret):
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session,
        session.post(f"http://proxy/r/{secret}/v1/chat/completions", json=BODY) as answer,
    ):
        return answer.status, await answer.json()


async def test_a_call_over_the_socket_is_recorded_like_any_other(engine, tmp_path):
    path = tmp_path / "made" / "proxy.sock"
    with Store.open(tmp_path / "store.db") as store:
        async with proxy_for_tests(engine.url, store, socket=path) as proxy:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            rollout = await proxy.open_rollout()
            status, answer = await ask(path, rollout.secret)
            assert (status, answer["choices"][0]["message"]["content"]) == (200, "fine")
            assert (await ask(path, "bw_nobody"))[0] == 401
            await proxy.settled()
            (call,) = store.calls(rollout.id)
            assert call.exact
            assert call.state is CallState.DELIVERED
        assert not path.exists()


async def test_a_socket_left_by_the_dead_is_replaced_and_one_of_the_living_is_not(engine, tmp_path):
    path = tmp_path / "proxy.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with Store.open(tmp_path / "store.db") as store:
        async with proxy_for_tests(engine.url, store, socket=path) as proxy:
            with pytest.raises(ConfigurationError, match="another process listens"):
                async with proxy_for_tests(engine.url, store, socket=path):
                    pass
            rollout = await proxy.open_rollout()
            assert (await ask(path, rollout.secret))[0] == 200


@pytest.mark.parametrize("name", ["a" * 120, "file/proxy.sock"])
async def test_a_path_that_can_be_no_socket_is_refused_by_name(engine, tmp_path, name):
    (tmp_path / "file").write_text("")
    with Store.open(tmp_path / "store.db") as store:
        with pytest.raises(ConfigurationError, match=r"proxy\.socket"):
            async with proxy_for_tests(engine.url, store, socket=tmp_path / name):
                pass


async def test_what_is_no_socket_is_not_replaced(engine, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with Store.open(tmp_path / "store.db") as store:
        with pytest.raises(ConfigurationError, match=r"proxy\.socket"):
            async with proxy_for_tests(engine.url, store, socket=path):
                pass
    assert path.read_text() == "mine"
