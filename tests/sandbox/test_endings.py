"""However a sandbox or its holder ends, nothing is left, and it is never the policy's fault."""

import asyncio
import errno
import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from budwood.sandbox import (
    Bind,
    Cause,
    Closed,
    LocalSettings,
    Lost,
    Network,
    NoCapacity,
    SandboxId,
    Spec,
    StartFailed,
    backend_named,
)
from budwood.sandbox.local.beside import beside
from budwood.sandbox.local.forwarder import forward
from budwood.sandbox.testing import MARK, Bench, local_traces, processes_of
from budwood.sandbox.testing.bench import until_it_has

HOLDER = """
import asyncio, pathlib, sys
from budwood.sandbox import LocalSettings, SandboxId, backend_named
from budwood.sandbox.testing import MARK, Bench

HIDE = "(setsid sh -c 'trap \\"\\" TERM HUP; while :; do sleep 1; done' >/dev/null 2>&1 &)"

async def main(name, root, sandbox_id):
    async with backend_named(name, LocalSettings(root=pathlib.Path(root))) as backend:
        spec = Bench(backend).spec(env={MARK: sandbox_id})
        async with await backend.create(spec, SandboxId(sandbox_id)) as sandbox:
            await sandbox.run(HIDE)
            async with sandbox.exec("sleep 1000 & echo up; wait") as execution:
                async for _ in execution:
                    print("up", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


def children():
    tasks = Path("/proc/self/task").glob("*/children")
    return {int(pid) for task in tasks for pid in task.read_text().split()}


def wait_until_gone(sandbox_id, limit_s=20.0):
    end = time.monotonic() + limit_s
    while left := processes_of(sandbox_id):
        assert time.monotonic() < end, left
        time.sleep(0.02)


async def test_a_holder_that_is_killed_takes_its_sandboxes_along(backend_name, root):
    sandbox_id = SandboxId(f"sb_holder_{os.getpid()}")
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, backend_name, str(root), sandbox_id,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"up\n"
    assert len(processes_of(sandbox_id)) >= 4
    holder.kill()
    await holder.wait()
    wait_until_gone(sandbox_id)
    # Its folder and its groups stay until the next backend comes by.
    assert await local_traces(root, sandbox_id)
    async with backend_named(backend_name, LocalSettings(root=root)):
        assert await local_traces(root, sandbox_id) == []
        assert len(list(root.iterdir())) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_sandbox_that_is_killed_from_outside_is_lost(bench, number):
    others = children()
    async with bench.sandbox() as sandbox:
        running = asyncio.ensure_future(sandbox.run("trap '' TERM; sleep 1000"))
        await until_it_has(sandbox, 1)
        for pid in children() - others:
            os.kill(pid, number)
        with pytest.raises(Lost):
            await running
        with pytest.raises(Lost):
            await sandbox.run("true")


async def test_the_end_of_the_backend_closes_its_sandboxes(backend_name, root):
    async with backend_named(backend_name, LocalSettings(root=root)) as backend:
        sandbox = await backend.create(Bench(backend).spec())
        await sandbox.ready()
    with pytest.raises(Closed):
        await sandbox.run("true")
    with pytest.raises(Closed):
        await backend.create(sandbox.spec)
    assert list(root.iterdir()) == []


async def test_an_error_in_the_block_leaves_it_as_it_is(bench):
    with pytest.raises(LookupError):
        async with bench.sandbox():
            raise LookupError
    async with bench.sandbox() as sandbox:
        with pytest.raises(ZeroDivisionError):
            async with sandbox.exec("sleep 1000"):
                raise ZeroDivisionError


async def test_a_cancelled_run_ends_its_command(bench):
    async with bench.sandbox() as sandbox:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await sandbox.run("trap '' TERM; setsid sleep 1000 & sleep 1000")
        assert (await sandbox.stats()).n_processes == 0
        assert (await sandbox.run("true")).is_success


async def test_more_sandboxes_than_there_are_places_get_told_when_to_come_again(backend_name, root):
    settings = LocalSettings(root=root, max_sandboxes=1, retry_after_s=7.0)
    async with backend_named(backend_name, settings) as backend:
        spec = Bench(backend).spec()
        async with await backend.create(spec):
            with pytest.raises(NoCapacity) as caught:
                await backend.create(spec)
            assert caught.value.retry_after_s == 7.0
        async with await backend.create(spec) as sandbox:
            assert (await sandbox.run("true")).exit.cause is Cause.EXITED


async def test_a_start_that_fails_says_why_and_leaves_nothing(bench, root):
    taken = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    async with taken:
        port = taken.sockets[0].getsockname()[1]
        if bench.backend.capabilities.has_own_root:
            # Inside, the port is free: its loopback is its own. A file in a folder's place is not.
            (root / "blocked").touch()
            spec = bench.spec(binds=(Bind(root / "blocked", "/a"), Bind(root / "blocked", "/a/b")))
        else:
            spec = bench.spec(proxy=root / "any.sock", proxy_port=port)
        sandbox_id = bench.new_id()
        sandbox = await bench.backend.create(spec, sandbox_id)
        with pytest.raises(StartFailed, match=r"could not be started: \S+"):
            await sandbox.ready()
        await sandbox.close()
        assert await bench.traces(sandbox_id) == []
        (root / "blocked").unlink(missing_ok=True)


async def test_the_search_for_what_is_left_finds_what_is_there(bench):
    async with bench.sandbox() as sandbox:
        await sandbox.run("sleep 1000 >/dev/null 2>&1 &")
        assert any("sleep 1000" in found for found in processes_of(sandbox.id))
        assert sandbox.spec.env[MARK] == sandbox.id
        assert any(sandbox.id in trace for trace in await bench.traces(sandbox.id))


async def test_a_fault_of_ours_in_one_sandbox_ends_no_other(namespaces, root, monkeypatch):
    async def breaks(listener, _):
        with listener:
            raise RuntimeError("broken")

    monkeypatch.setattr("budwood.sandbox.local.sandbox.forward", breaks)
    proxied = Spec(network=Network.PROXY_ONLY, proxy=root / "proxy.sock")
    async with backend_named("local", LocalSettings(root=root)) as backend:
        async with await backend.create(Spec()) as other:
            broken = await backend.create(proxied)
            await broken.ready()
            await broken.close()
            assert (await other.run("true")).is_success


async def test_a_proxy_s_way_in_outlasts_connections_for_which_there_is_no_file(tmp_path):
    path = tmp_path / "proxy.sock"

    async def answer(reader, writer):
        writer.write(await reader.read(4))
        writer.close()

    class Scarce(socket.socket):
        n_refused = 0

        def accept(self):
            if self.n_refused < 3:
                self.n_refused += 1
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    listener = Scarce()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    listener.setblocking(False)
    async with await asyncio.start_unix_server(answer, path), beside(forward(listener, path)):
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(b"ping")
        async with asyncio.timeout(60):
            assert await reader.read() == b"ping"
        writer.close()
    assert listener.n_refused == 3


async def test_a_command_for_which_there_are_no_pipes_is_named(namespaces, root, monkeypatch):
    def none(**_):
        raise OSError(errno.EMFILE, "Too many open files")

    async with backend_named("local", LocalSettings(root=root)) as backend:
        async with await backend.create(Spec()) as sandbox:
            await sandbox.ready()
            monkeypatch.setattr("budwood.sandbox.local.sandbox.Pipes.make", none)
            with pytest.raises(StartFailed, match="Too many open files"):
                await sandbox.run("true")
            monkeypatch.undo()
            assert (await sandbox.run("true")).is_success
