"""Checks of limits: what grows without end must end inside its limit, with its cause."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable
from typing import Any

from ..errors import Lost
from ..limits import MIB, Enforcement, Limit
from ..output import Cause, Completed, Stream
from .bench import Bench, until_it_has

HOG = """
import sys, time
held = []
for _ in range(int(sys.argv[2])):
    held.append(bytearray(8 << 20))
    for at in range(0, 8 << 20, 4096):
        held[-1][at] = 1
    time.sleep(float(sys.argv[1]))
time.sleep(1000)
"""
"""Takes 8 MiB after each pause (argument 1, seconds), so often (argument 2), and keeps it."""
THREE_HOGS = """
import os, subprocess, sys
hog = [sys.executable, "-I", "-c", sys.argv[1], "0.05", "8"]
hogs = [subprocess.Popen(hog) for _ in range(3)]
os.wait()
for each in hogs:
    each.kill()
    each.poll() is None and each.wait()
"""
SHARED_HOG = """
import mmap, sys, time
held = []
while True:
    held.append(mmap.mmap(-1, 8 << 20))
    for at in range(0, 8 << 20, 4096):
        held[-1][at] = 1
    time.sleep(float(sys.argv[1]))
"""
DETACHED_HOG = """
import ctypes, sys, time
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
while True:
    at = libc.shmat(libc.shmget(0, 8 << 20, 0o1600), None, 0)
    ctypes.memset(at, 1, 8 << 20)
    libc.shmdt(ctypes.c_void_p(at))
    time.sleep(float(sys.argv[1]))
"""
HIDDEN_HOG = """
import os
# The kernel shall not take this process for its first choice.
open("/proc/self/oom_score_adj", "w").write("0")
file = os.memfd_create("hog")
while True:
    os.write(file, bytes(1 << 20))
"""
BOMB = """
import os, time
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.01)
"""


async def endless_output_ends(bench: Bench) -> None:
    """The command that writes it is killed; the sandbox goes on."""
    async with bench.sandbox(output_bytes=3 * MIB) as sandbox:
        for command in ("cat /dev/zero", "cat /dev/zero >&2"):
            done = await sandbox.run(command, keep_bytes=1000)
            assert done.exit.cause is Cause.OUTPUT, done.exit
            n_bytes = sum(
                len(each.head) + len(each.tail) + each.n_dropped
                for each in (done.stdout, done.stderr)
            )
            assert n_bytes == 3 * MIB
        assert (await sandbox.run("head -c 2000000 /dev/zero")).is_success
        assert (await sandbox.stats()).n_processes == 0


async def a_process_that_ignores_sigterm_ends(bench: Bench) -> None:
    """With SIGKILL, after the grace."""
    async with bench.sandbox() as sandbox:
        command = "trap '' TERM INT HUP; echo up; while :; do sleep 1000; done"
        done = await sandbox.run(command, deadline_s=0.5, grace_s=0.2)
        assert (done.exit.cause, done.exit.signal) == (Cause.DEADLINE, signal.SIGKILL)
        assert (await sandbox.stats()).n_processes == 0


async def a_hog_of_memory_ends(bench: Bench) -> None:
    """With its cause, and the sandbox goes on."""
    how = bench.limits(Limit.MEMORY)
    # Where we look ten times a second there must be something to look at.
    pause = "0.05" if how is Enforcement.WATCHED else "0"
    async with bench.sandbox(memory_bytes=128 * MIB, **_little_disk(bench)) as sandbox:
        hog = [bench.python, "-I", "-c", HOG, pause, "64"]
        done = await sandbox.run(hog, deadline_s=60.0)
        assert done.exit.cause is Cause.MEMORY, (done.exit, done.stderr.text[-500:])
        assert Limit.MEMORY in done.exit.limits_hit
        assert (await sandbox.run(["true"])).is_success


async def many_small_hogs_end(bench: Bench) -> None:
    """The limit is for all processes together, not for each."""
    how = bench.limits(Limit.MEMORY)
    async with bench.sandbox(memory_bytes=128 * MIB, **_little_disk(bench)) as sandbox:
        done = await sandbox.run([bench.python, "-I", "-c", THREE_HOGS, HOG], deadline_s=60.0)
        assert Limit.MEMORY in done.exit.limits_hit, (done.exit, done.stderr.text)
        wanted = Cause.MEMORY if how is Enforcement.WATCHED else Cause.EXITED
        assert done.exit.cause is wanted
        assert (await sandbox.stats()).n_processes == 0


async def a_hog_of_shared_memory_ends(bench: Bench) -> None:
    """Memory counts that belongs to no process alone, or to none at all any more."""
    how = bench.limits(Limit.MEMORY)
    bench.isolates()
    pause = "0.05" if how is Enforcement.WATCHED else "0"
    for program in (SHARED_HOG, DETACHED_HOG):
        async with bench.sandbox(memory_bytes=128 * MIB, **_little_disk(bench)) as sandbox:
            hog = [bench.python, "-I", "-c", program, pause]
            done = await _end_of(sandbox.run(hog, deadline_s=60.0))
            if isinstance(done, Lost):
                assert done.limit is Limit.MEMORY
                continue
            assert Limit.MEMORY in done.exit.limits_hit, (done.exit, done.stderr.text)
            assert done.exit.cause is Cause.MEMORY
            await sandbox.kill_all()
            assert (await sandbox.stats()).memory_bytes < 64 * MIB


async def memory_that_no_process_shows_is_held_or_refused(bench: Bench) -> None:
    """A file that is nowhere but in memory, written and never mapped."""
    how = bench.limits(Limit.MEMORY)
    bench.isolates()
    async with bench.sandbox(memory_bytes=128 * MIB, **_little_disk(bench)) as sandbox:
        hog = [bench.python, "-I", "-c", HIDDEN_HOG]
        done = await _end_of(sandbox.run(hog, deadline_s=60.0))
        if isinstance(done, Lost):
            assert done.limit is Limit.MEMORY
        elif how is Enforcement.WATCHED:
            assert "Function not implemented" in done.stderr.text
        else:
            assert done.exit.cause is Cause.MEMORY


async def a_fork_bomb_ends(bench: Bench) -> None:
    """It fills its places and no more; its deadline ends it whole, and the sandbox goes on."""
    bench.limits(Limit.PIDS)
    async with bench.sandbox(pids=64) as sandbox:
        async with asyncio.TaskGroup() as tasks:
            bomb = tasks.create_task(
                sandbox.run([bench.python, "-I", "-c", BOMB], deadline_s=3.0, grace_s=0.5)
            )
            await until_it_has(sandbox, 50)
            assert (await sandbox.stats()).n_processes <= 65
        assert bomb.result().exit.cause is Cause.DEADLINE
        assert Limit.PIDS in bomb.result().exit.limits_hit
        assert (await sandbox.stats()).n_processes == 0
        assert (await sandbox.run(["true"])).is_success


async def a_bomb_that_outlives_its_command_ends_with_the_sandbox(bench: Bench) -> None:
    """Orphans in sessions of their own, in full swing."""
    bench.limits(Limit.PIDS)
    async with bench.sandbox(pids=64) as sandbox:
        command = 'setsid "$PYTHON" -I -c "$BOMB" >/dev/null 2>&1 &'
        await sandbox.run(command, env={"BOMB": BOMB, "PYTHON": bench.python})
        await until_it_has(sandbox, 50)


async def a_filler_of_the_disk_ends(bench: Bench) -> None:
    """It is told that there is no room; so is who asks, and what was removed is free again."""
    bench.limits(Limit.DISK)
    async with bench.sandbox(disk_bytes=8 * MIB) as sandbox:
        for place in (sandbox.workdir, "$HOME", "/tmp", "/var/tmp", "/run"):
            done = await sandbox.run(f"cat /dev/zero >{place}/fill")
            assert not done.is_success
            assert "space" in done.stderr.text
            assert Limit.DISK in done.exit.limits_hit
            await sandbox.run(f"rm {place}/fill")
        held = (await sandbox.stats()).disk_bytes
        assert held is not None
        assert held <= 8 * MIB


async def nothing_is_writable_without_a_limit(bench: Bench) -> None:
    """Every file system that can be written to has the size of the limit, or a small one."""
    bench.limits(Limit.DISK)
    program = """
import os
for line in open("/proc/self/mounts"):
    place = line.split()[1]
    if os.path.isdir(place) and os.access(place, os.W_OK):
        about = os.statvfs(place)
        print(place, about.f_blocks * about.f_frsize)
"""
    async with bench.sandbox(disk_bytes=8 * MIB) as sandbox:
        sizes = dict(line.split() for line in (await bench.says(sandbox, program)).splitlines())
        assert sizes
        assert all(int(size) <= 64 * MIB for size in sizes.values()), sizes


async def slow_readers_slow_the_command_and_lose_nothing(bench: Bench) -> None:
    """Nothing is buffered without end between a command and who reads it."""
    async with bench.sandbox() as sandbox:
        async with sandbox.exec("i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i+1)); done") as one:
            said = b""
            async for frame in one:
                assert frame.stream is Stream.STDOUT
                said += frame.data
                await asyncio.sleep(0)
        assert said.split() == [b"%d" % number for number in range(20000)]


async def _end_of(coming: Awaitable[Completed]) -> Completed | Lost:
    """Return how a command ended, or the end of its sandbox: the kernel chooses whom it kills."""
    try:
        return await coming
    except Lost as lost:
        return lost


def _little_disk(bench: Bench) -> dict[str, Any]:
    """Where files are held in memory, their share comes on top of the limit."""
    return {"disk_bytes": 16 * MIB} if Limit.DISK in bench.backend.capabilities.limits else {}
