"""Checks of the network: the proxy's address, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from ..spec import Network
from .bench import Bench

FETCH = """
import sys, urllib.request, hashlib
body = sys.argv[2].encode() if len(sys.argv) > 2 else None
with urllib.request.urlopen(sys.argv[1], body, timeout=30) as answer:
    data = answer.read()
print(answer.status, len(data), hashlib.sha256(data).hexdigest())
"""
REACH = """
import json, socket, sys
found = {}
for kind, address in json.loads(sys.argv[1]):
    family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
    if kind == "tcp6":
        family = socket.AF_INET6
    place = address if kind == "unix" else tuple(address)
    try:
        with socket.socket(family, socket.SOCK_STREAM) as one:
            one.settimeout(3)
            one.connect(place)
        found[str(address)] = "reached"
    except OSError as error:
        found[str(address)] = type(error).__name__
try:
    socket.getaddrinfo("example.com", 80)
    found["names"] = "reached"
except OSError:
    pass
found["interfaces"] = [name for _, name in socket.if_nameindex()]
print(json.dumps(found))
"""
LARGE = hashlib.sha256(b"large").digest() * 160_000


async def the_proxy_answers_at_its_address(bench: Bench) -> None:
    """A real HTTP server on a Unix socket outside, real HTTP inside."""
    _offers_a_proxy(bench)
    async with server() as (path, asked), bench.sandbox(**_with(bench, path)) as sandbox:
        base = f"http://{sandbox.proxy_address}"
        assert base.startswith("http://127.0.0.1:")
        status, size, digest = (await bench.says(sandbox, FETCH, f"{base}/large")).split()
        assert (status, int(size)) == ("200", len(LARGE))
        assert digest == hashlib.sha256(LARGE).hexdigest()
        body = "x" * 100_000
        said = (await bench.says(sandbox, FETCH, f"{base}/echo", body)).split()
        assert said[2] == hashlib.sha256(body.encode()).hexdigest()
        async with asyncio.TaskGroup() as tasks:
            for number in range(12):
                tasks.create_task(bench.says(sandbox, FETCH, f"{base}/echo", str(number)))
        assert len(asked) == 14


async def the_proxy_may_come_late_and_come_back(bench: Bench) -> None:
    """Its socket is looked up for each connection; while it is not there nothing hangs."""
    _offers_a_proxy(bench)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "proxy.sock")
        async with bench.sandbox(**_with(bench, path)) as sandbox:
            url = f"http://{sandbox.proxy_address}/echo"
            for _ in range(2):
                failed = await sandbox.run([bench.python, "-I", "-c", FETCH, url])
                assert not failed.is_success
                async with server(path):
                    assert (await bench.says(sandbox, FETCH, url, "x")).startswith("200 1 ")


async def a_command_cannot_cut_the_way_to_the_proxy(bench: Bench) -> None:
    """Killing all that it can kill leaves the way open."""
    bench.isolates()
    _offers_a_proxy(bench)
    async with server() as (path, _), bench.sandbox(**_with(bench, path)) as sandbox:
        await sandbox.run("kill -9 -1")
        url = f"http://{sandbox.proxy_address}/echo"
        assert (await bench.says(sandbox, FETCH, url, "x")).startswith("200 1 ")


async def nothing_else_can_be_reached(bench: Bench) -> None:
    """No address of the host or the world, no socket of the host by path or name, no DNS."""
    bench.offers(Network.PROXY_ONLY)
    host = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    port = host.sockets[0].getsockname()[1]
    name = f"\0budwood-{os.urandom(6).hex()}"
    abstract = await asyncio.start_unix_server(lambda r, w: w.close(), name)
    async with host, abstract, server() as (path, _):
        async with bench.sandbox(**_with(bench, path)) as sandbox:
            proxy_port = int(sandbox.proxy_address.rpartition(":")[2])
            places = [
                ["tcp", ["127.0.0.1", port]], ["tcp", ["127.0.0.1", 22]],
                ["tcp", ["1.1.1.1", 53]], ["tcp", ["169.254.169.254", 80]],
                *[["tcp", [address, port]] for address in _own_addresses()],
                ["tcp6", ["::1", port]], ["unix", name], ["unix", str(path)],
                ["unix", "/run/docker.sock"], ["unix", "/run/dbus/system_bus_socket"],
                ["tcp", ["127.0.0.1", proxy_port]],
            ]  # fmt: skip
            found = json.loads(await bench.says(sandbox, REACH, json.dumps(places)))
    reached = [address for address, told in found.items() if told == "reached"]
    assert reached == [f"['127.0.0.1', {proxy_port}]"]
    assert found["interfaces"] == ["lo"]


async def no_datagram_gets_out(bench: Bench) -> None:
    """Whether or not anybody would answer: nothing arrives where the host listens."""
    bench.offers(Network.PROXY_ONLY)
    program = """
import json, socket, sys
for family, *place in json.loads(sys.argv[1]):
    with socket.socket(family, socket.SOCK_DGRAM) as one:
        try:
            one.sendto(b"out", tuple(place))
        except OSError:
            pass
"""
    with ExitStack() as stack:
        heard: list[socket.socket] = []
        for family, address in _loopbacks():
            one = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
            one.bind((address, 0))
            one.setblocking(False)
            heard.append(one)
        places = [[each.family, *each.getsockname()[:2]] for each in heard]
        async with server() as (path, _), bench.sandbox(**_with(bench, path)) as sandbox:
            await bench.says(sandbox, program, json.dumps(places))
        for one in heard:
            try:
                arrived = one.recv(10)
            except BlockingIOError:
                continue
            raise AssertionError(f"{arrived!r} came out to {one.getsockname()}")


async def there_is_no_socket_but_those_of_its_own_network(bench: Bench) -> None:
    """None to the machine below, none that reads the wire, none that crafts packets."""
    bench.isolates()
    program = """
import socket
inet = {socket.AF_INET, socket.AF_INET6}
held, told = {socket.AF_UNSPEC, socket.AF_UNIX, socket.AF_NETLINK, *inet}, []
for number in range(64):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        try:
            socket.socket(number, kind).close()
        except OSError:
            continue
        if number not in held or kind == socket.SOCK_RAW and number in inet:
            told.append((number, kind.name))
print(told)
"""
    async with bench.sandbox() as sandbox:
        assert await bench.says(sandbox, program) == "[]"


async def another_sandboxs_way_to_the_proxy_is_its_own(bench: Bench) -> None:
    """What listens inside one is not there inside another."""
    bench.isolates()
    bench.offers(Network.PROXY_ONLY)
    async with server() as (path, _):
        async with (
            bench.sandbox(**_with(bench, path), proxy_port=20_001) as one,
            bench.sandbox(**_with(bench, path), proxy_port=20_002) as other,
        ):
            for sandbox, theirs in ((one, 20_002), (other, 20_001)):
                places = json.dumps([["tcp", ["127.0.0.1", theirs]]])
                found = json.loads(await bench.says(sandbox, REACH, places))
                assert found[f"['127.0.0.1', {theirs}]"] == "ConnectionRefusedError"


async def without_a_network_there_is_only_an_empty_loopback(bench: Bench) -> None:
    """Commands of one sandbox can talk to each other, and to nobody else."""
    bench.offers(Network.NONE)
    program = """
import socket
with socket.create_server(("127.0.0.1", 0)) as inner:
    socket.create_connection(inner.getsockname()).close()
print([name for _, name in socket.if_nameindex()])
"""
    async with bench.sandbox(network=Network.NONE) as sandbox:
        assert await bench.says(sandbox, program) == "['lo']"
        try:
            _ = sandbox.proxy_address
        except ValueError:
            return
    raise AssertionError("a sandbox without a proxy has an address of one")


@asynccontextmanager
async def server(path: Path | None = None) -> AsyncIterator[tuple[Path, list[str]]]:
    """Serve HTTP on a Unix socket; give its path, and what was asked."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(body=LARGE if request.path == "/large" else await request.read())

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    with tempfile.TemporaryDirectory() as folder:
        where = path or Path(folder, "proxy.sock")
        try:
            await web.UnixSite(runner, str(where)).start()
            yield where, asked
        finally:
            await runner.cleanup()


def _offers_a_proxy(bench: Bench) -> None:
    bench.offers(Network.PROXY_ONLY, Network.OPEN)


def _with(bench: Bench, path: Path) -> dict[str, Any]:
    only = Network.PROXY_ONLY in bench.backend.capabilities.networks
    return {"network": Network.PROXY_ONLY if only else Network.OPEN, "proxy": path}


def _loopbacks() -> list[tuple[socket.AddressFamily, str]]:
    """Return where the host can listen: its loopbacks and its address."""
    found = [(socket.AF_INET, address) for address in ("127.0.0.1", *_own_addresses())]
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as one:
        one.bind(("::1", 0))
        found.append((socket.AF_INET6, "::1"))
    return found


def _own_addresses() -> list[str]:
    """Return the addresses of this machine, as the kernel would choose them to go out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(("192.0.2.1", 9))
        except OSError:
            return []
        return [one.getsockname()[0]]
