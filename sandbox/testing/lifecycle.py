"""Checks of how sandboxes begin and end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import Closed, Deadline, Refused, SandboxError
from ..limits import Limit
from ..output import Cause
from ..spec import Bind, Feature, Network, SandboxId
from .bench import Bench, error_of, until_it_has

SLEEP = ["sleep", "1000"]


async def create_is_idempotent_by_id(bench: Bench) -> None:
    """One id is one sandbox, with one spec."""
    spec, sandbox_id = bench.spec(), bench.new_id()
    first = await bench.backend.create(spec, sandbox_id)
    assert await bench.backend.create(spec, sandbox_id) is first
    error = await error_of(bench.backend.create(replace(spec, env={"A": "b"}), sandbox_id))
    assert isinstance(error, Refused)
    assert "another spec" in str(error)
    await first.ready()
    assert first in bench.backend.sandboxes()
    await first.close()
    assert first not in bench.backend.sandboxes()
    assert await _ends_with(bench.backend.create(spec, sandbox_id), Closed)


async def an_id_removed_before_it_is_made_is_never_made(bench: Bench) -> None:
    """A delete that overtakes its create wins."""
    sandbox_id = bench.new_id()
    await bench.backend.remove(sandbox_id)
    assert await _ends_with(bench.backend.create(bench.spec(), sandbox_id), Closed)


async def a_close_before_it_is_ready_leaves_nothing(bench: Bench) -> None:
    """Whoever waits for it learns that it was closed."""
    sandbox_id = bench.new_id()
    sandbox = await bench.backend.create(bench.spec(), sandbox_id)
    waiting = asyncio.gather(sandbox.ready(), return_exceptions=True)
    await sandbox.close()
    [told] = await waiting
    assert told is None or isinstance(told, Closed)
    assert await bench.traces(sandbox_id) == []


async def what_the_backend_lacks_is_refused_by_name(bench: Bench) -> None:
    """Nothing is started for a spec that can't be kept whole."""
    has = bench.backend.capabilities
    for feature in set(Feature) - has.features:
        await bench.refuses(feature, needs=frozenset({feature}))
    for network in set(Network) - has.networks:
        await bench.refuses(network, network=network)
    if not has.has_images:
        await bench.refuses("image", image="debian:bookworm")
    if not has.has_binds:
        await bench.refuses("bind", binds=(Bind(Path("/"), "/x"),))
    fields = {Limit.CPU: {"cpus": 1.0}, Limit.DISK: {"disk_bytes": 2**20}}
    fields |= {Limit.MEMORY: {"memory_bytes": 2**28}, Limit.PIDS: {"pids": 64}}
    for limit, asked in fields.items():
        if limit not in has.limits:
            await bench.refuses(f"limit {limit}", **asked)


async def nonsense_is_refused(bench: Bench) -> None:
    """Each problem of a spec is named."""
    await bench.refuses("pids", pids=0)
    await bench.refuses("workdir", workdir="work")
    await bench.refuses("home", home="/home/../etc")
    await bench.refuses("ttl_s", ttl_s=-1.0)
    await bench.refuses("variable", env={"A=B": "c"})
    for name in ("", "../x", "a/b", ".", "a" * 64):
        coming = bench.backend.create(bench.spec(), SandboxId(name) if name else SandboxId(" "))
        assert await _ends_with(coming, Refused)


async def a_closed_sandbox_does_nothing_any_more(bench: Bench) -> None:
    """Everything says that it is closed, and a second close is none."""
    async with bench.sandbox() as sandbox:
        await sandbox.run(["true"])
    assert await _ends_with(sandbox.run(["true"]), Closed)
    assert await _ends_with(sandbox.put("x", b""), Closed)
    assert await _ends_with(sandbox.stats(), Closed)
    assert await _ends_with(sandbox.ready(), Closed)
    await sandbox.close()


async def a_close_ends_what_runs(bench: Bench) -> None:
    """The one who waits for a command learns why it has no exit."""
    async with bench.sandbox() as sandbox:
        async with asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(error_of(sandbox.run(SLEEP)))
            blocked = tasks.create_task(error_of(sandbox.run(["cat"], stdin=_endless())))
            await until_it_has(sandbox, 2)
            await sandbox.close()
        assert isinstance(telling.result(), Closed)
        assert isinstance(blocked.result(), Closed)


async def the_deadline_ends_the_sandbox(bench: Bench) -> None:
    """A sandbox whose time is over says so, and leaves nothing."""
    async with bench.sandbox(deadline_s=1.0) as sandbox:
        assert isinstance(await error_of(sandbox.run(SLEEP)), Deadline)
        assert await _ends_with(sandbox.run(["true"]), Deadline)


async def the_time_to_live_ends_it_unless_touched(bench: Bench) -> None:
    """`touch` sets the end anew."""
    async with bench.sandbox(ttl_s=600.0) as sandbox:
        await sandbox.touch(0.2)
        assert isinstance(await error_of(sandbox.run(SLEEP)), Deadline)
    async with bench.sandbox(ttl_s=5.0) as sandbox:
        await sandbox.touch(600.0)
        ended = await sandbox.run(["sleep", "6"])
        assert ended.is_success


async def kill_all_ends_all_processes_and_keeps_the_files(bench: Bench) -> None:
    """What was started before is gone; the sandbox is as usable as before."""
    async with bench.sandbox() as sandbox:
        await sandbox.put("kept", b"yes")
        await sandbox.run("(trap '' TERM HUP; sleep 1000) >/dev/null 2>&1 & sleep 1001 &")
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(sandbox.run("trap '' TERM; sleep 1002"))
            await until_it_has(sandbox, 4)
            await sandbox.kill_all()
        assert running.result().exit.cause is Cause.KILLED
        assert running.result().exit.signal == signal.SIGKILL
        assert (await sandbox.stats()).n_processes == 0
        assert (await sandbox.run(["cat", "kept"])).stdout.data == b"yes"


async def many_sandboxes_live_side_by_side(bench: Bench) -> None:
    """Each has its own files, and its own end."""
    n_sandboxes = 8

    async def one(number: int) -> bytes:
        async with bench.sandbox() as sandbox:
            await sandbox.put("mine", str(number).encode())
            return (await sandbox.run("cat mine; echo; ls | wc -l")).stdout.data

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(one(number)) for number in range(n_sandboxes)]
    said = [each.result().split() for each in running]
    assert said == [[str(number).encode(), b"1"] for number in range(n_sandboxes)]


async def _ends_with(coming: Awaitable[Any], kind: type[SandboxError]) -> bool:
    return isinstance(await error_of(coming), kind)


async def _endless() -> AsyncIterator[bytes]:
    yield b"x"
    await asyncio.Event().wait()
