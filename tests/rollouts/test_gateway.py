"""A proxy of its own process that goes away and comes back while a rollout is open."""

import socket

import pytest
from pydantic import SecretStr

from budwood.proxy.testing import Reply, ScriptedEngine
from budwood.proxy.testing.running import proxy_for_tests
from budwood.rollouts.gateway import Wanted, given_proxy
from budwood.trajectory_store import FailureClass, Store

SECRET = "a-secret-of-the-admin-plane"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_harness_that_found_no_proxy_is_not_to_blame(tmp_path, is_restarted):
    ports = {"port": free_port(), "admin_port": free_port(), "admin_secret": SecretStr(SECRET)}
    with Store.open(tmp_path / "store.db") as store:
        async with ScriptedEngine([Reply("x")]) as engine:
            wanted = Wanted(
                run=store.open_run("test"), group_id="g", attempt=0, task="t",
                harness="react", harness_version=None,
            )  # fmt: skip
            async with proxy_for_tests(engine.url, store, **ports) as proxy:
                urls = proxy.url, proxy.admin_url
                async with given_proxy(*urls, SECRET, store) as gateway:
                    opened = await gateway.open(wanted)
                    if not is_restarted:
                        assert await gateway.close(opened) == []
                        return
            async with (
                proxy_for_tests(engine.url, store, **ports),
                given_proxy(*urls, SECRET, store) as gateway,
            ):
                (fact,) = await gateway.close(opened)
    assert (fact.failure_class, fact.cause) == (FailureClass.OURS, "proxy_unreachable")
