"""Probes from inside: nothing of the host and of other sandboxes can be seen or touched.

They apply where the backend isolates; most plant something outside and look for it inside.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ..archive import pack
from ..errors import FileFailed
from ..local.syscalls import MACHINES
from ..spec import Bind
from .bench import Bench, NotApplicable, error_of
from .trees import whole

SEARCH = """
import os, stat, sys
needle, found = sys.argv[1].encode(), []
for folder, names, files in os.walk("/"):
    if folder in ("/proc", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/.budwood"):
        names[:] = []
        continue
    for name in [*names, *files]:
        path = os.path.join(folder, name)
        if needle in os.fsencode(name):
            found.append(path)
        try:
            about = os.lstat(path)
            if stat.S_ISREG(about.st_mode) and about.st_size < 10**6:
                with open(path, "rb") as file:
                    if needle in file.read():
                        found.append(path)
        except OSError:
            pass
print(found)
"""


async def nothing_of_the_user_is_in_sight(bench: Bench) -> None:
    """No home, no temporary files, no other mounts of the host: planted files are found nowhere."""
    bench.isolates()
    needle = f"needle{secrets.token_hex(8)}"
    places = [Path(tempfile.gettempdir()), Path("/var/tmp"), Path("/dev/shm"), Path.home()]
    planted = [place / f"{needle}.txt" for place in places if os.access(place, os.W_OK)]
    assert len(planted) >= 2
    try:
        for file in planted:
            file.write_text(needle)
        async with bench.sandbox() as sandbox:
            # The search finds what is there: it is told the needle, so write one inside first.
            assert await bench.says(sandbox, SEARCH, needle) == "[]"
            await sandbox.put("own", needle.encode())
            assert await bench.says(sandbox, SEARCH, needle) == f"['{sandbox.workdir}/own']"
            listed = await sandbox.run("ls -A /root /home /run /tmp /var/tmp /mnt /srv /media")
            assert set(listed.stdout.text.split()) <= {
                "/root:", "/home:", "agent", "/run:", "/tmp:", "/var/tmp:",
            }, listed.stdout.text  # fmt: skip
    finally:
        for file in planted:
            file.unlink(missing_ok=True)


async def no_other_sandboxs_files_are_in_sight(bench: Bench) -> None:
    """Nor its processes."""
    bench.isolates()
    needle = f"needle{secrets.token_hex(8)}"
    async with bench.sandbox() as one, bench.sandbox() as other:
        for place in ("work", "/tmp/there", "/home/agent/x", "/var/tmp/x"):
            await one.put(place, needle.encode())
        await one.run(f"sh -c 'sleep 1000; : {needle}' >/dev/null 2>&1 &")
        assert await bench.says(other, SEARCH, needle) == "[]"
        seen = await other.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        assert seen.stdout.data
        assert needle not in seen.stdout.text.replace(f": {needle}'", needle)


async def a_link_inside_leads_to_nothing_outside(bench: Bench) -> None:
    """Files are read as the sandbox sees them, whoever asks."""
    bench.isolates()
    with tempfile.NamedTemporaryFile() as secret:
        secret.write(b"secret")
        secret.flush()
        async with bench.sandbox() as sandbox:
            await sandbox.run(["ln", "-s", secret.name, "link"])
            error = await error_of(whole(sandbox, "link"))
            assert isinstance(error, FileFailed)
            assert error.errno == errno.ENOENT


async def only_the_sandboxs_processes_are_in_sight(bench: Bench) -> None:
    """Its own numbers, its own names, and nothing to signal outside."""
    bench.isolates()
    async with bench.sandbox() as sandbox:
        seen = await sandbox.run("cd /proc; echo [0-9]*")
        # Process 1, the keeper of the command, and its shell.
        assert len(seen.stdout.text.split()) <= 4, seen.stdout.text
        assert not (await sandbox.run(["kill", "-0", str(os.getpid())])).is_success
        name = (await sandbox.run("cat /proc/sys/kernel/hostname")).stdout.text.strip()
        assert name != os.uname().nodename


async def process_1_can_be_neither_ended_nor_read(bench: Bench) -> None:
    """It holds the sandbox's way out; no command gets at it."""
    bench.isolates()
    program = """
import os, signal
told = []
for number in range(1, 32):
    try:
        os.kill(1, number)
    except OSError:
        pass
for name in ("mem", "environ", "maps"):
    try:
        open(f"/proc/1/{name}", "rb").read(1)
        told.append(name)
    except OSError:
        pass
for name in ("fd", "root", "cwd"):
    try:
        os.listdir(f"/proc/1/{name}")
        told.append(name)
    except OSError:
        pass
print(told)
"""
    async with bench.sandbox() as sandbox:
        assert await bench.says(sandbox, program) == "[]"
        assert (await sandbox.run(["true"])).is_success


async def a_command_has_no_power_over_the_system(bench: Bench) -> None:
    """No capability, no way to more, no system file to write, no device but the basic ones."""
    bench.isolates()
    program = """
import ctypes, json, os, stat
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
libc = ctypes.CDLL(None, use_errno=True)
writable = []
for path in ("/usr/bin/x", "/bin/x", "/etc/ssl/certs/x", "/.budwood/inside/x", "/dev/x",
             "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/sys/x"):
    try:
        with open(path, "r+" if os.path.exists(path) else "x"):
            writable.append(path)
    except OSError:
        pass
devices = [name for name in os.listdir("/dev")
           if stat.S_ISCHR(os.lstat("/dev/" + name).st_mode) or
              stat.S_ISBLK(os.lstat("/dev/" + name).st_mode)]
print(json.dumps({
    "caps": [int(status[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")],
    "no_new_privs": int(status["NoNewPrivs"]),
    "userns": libc.unshare(0x10000000) == 0,
    "mount": libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0,
    "writable": writable, "devices": devices, "uid": os.getuid(),
    "fds": [os.readlink("/proc/self/fd/" + fd) for fd in ("0", "1", "2")],
    "n_fds": len(os.listdir("/proc/self/fd")),
}))
"""
    async with bench.sandbox() as sandbox:
        found = json.loads(await bench.says(sandbox, program))
    assert found["caps"] == [0, 0, 0, 0]
    assert found["no_new_privs"] == 1
    assert (found["userns"], found["mount"], found["writable"]) == (False, False, [])
    assert set(found["devices"]) <= {
        "null", "zero", "full", "random", "urandom", "tty", "console", "ptmx",
        "stdin", "stdout", "stderr", "fd",
    }  # fmt: skip
    assert found["uid"] != 0
    # stdin, stdout, stderr, and the folder that was just listed.
    assert found["n_fds"] == 4, found


async def no_part_of_the_system_can_be_replaced(bench: Bench) -> None:
    """Programs, libraries and their settings are what they were when the verifier needs them."""
    bench.isolates()
    program = """
import os
told = []
for path in ("/bin", "/sbin", "/lib", "/lib64", "/usr", "/etc", "/proc", "/dev", "/.budwood"):
    for what, *words in ((os.rename, path, path + ".x"), (os.unlink, path), (os.rmdir, path),
                         (os.chmod, path, 0o777), (os.mkdir, path + "/x"),
                         (os.symlink, "/tmp", path + "/y")):
        if os.path.lexists(path):
            try:
                what(*words)
                told.append([what.__name__, path])
            except OSError:
                pass
print(told)
"""
    async with bench.sandbox() as sandbox:
        assert await bench.says(sandbox, program) == "[]"


async def nothing_of_the_kernel_can_be_set(bench: Bench) -> None:
    """Not even what belongs to the sandbox's own namespaces: how many processes there can be."""
    bench.isolates()
    program = """
import os
print([os.path.join(folder, name) for folder, _, names in os.walk("/proc/sys") for name in names
       if os.access(os.path.join(folder, name), os.W_OK)])
"""
    async with bench.sandbox() as sandbox:
        assert await bench.says(sandbox, program) == "[]"


async def what_is_one_for_the_whole_machine_is_out_of_reach(bench: Bench) -> None:
    """Key rings, the kernel's log, its counters and programs, and the way past every filter."""
    bench.isolates()
    program = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
space = ctypes.create_string_buffer(256)
session, size_of_log = -3, 10
calls = {
    "keyctl": (0, session, 0), "add_key": (b"user", b"x", b"x", 1, session),
    "request_key": (b"user", b"x", None, session), "syslog": (size_of_log, None, 0),
    "perf_event_open": (space, 0, -1, -1, 0), "bpf": (0, space, 128), "io_uring_setup": (8, space),
}
numbers = json.loads(sys.argv[1])[os.uname().machine]
print([name for name, words in calls.items()
       if libc.syscall(ctypes.c_long(numbers[name]), *words) >= 0])
"""
    numbers = json.dumps({name: machine.numbers for name, machine in MACHINES.items()})
    async with bench.sandbox() as sandbox:
        assert await bench.says(sandbox, program, numbers) == "[]"


async def who_closes_the_root_closes_it_to_itself(bench: Bench) -> None:
    """Until every process is ended; then all can be run, read and written again."""
    bench.isolates()
    async with bench.sandbox() as sandbox:
        await sandbox.run(["chmod", "0", "/"])
        assert (await sandbox.stats()).n_processes == 0
        await sandbox.kill_all()
        assert (await sandbox.run(["true"])).is_success
        await sandbox.put("/tests/x", b"x")
        assert await whole(sandbox, "/tests/x") == b"x"


async def what_outlives_processes_ends_with_all_of_them(bench: Bench) -> None:
    """Memory, queues and semaphores of System V take nothing from whoever comes next."""
    bench.isolates()
    program = """
import ctypes
libc = ctypes.CDLL(None)
assert min(libc.shmget(0, 4096, 0o1600), libc.msgget(0, 0o1600), libc.semget(0, 1, 0o1600)) >= 0
"""
    count = "cat /proc/sysvipc/shm /proc/sysvipc/msg /proc/sysvipc/sem | wc -l"
    async with bench.sandbox() as sandbox:
        await bench.says(sandbox, program)
        # Three lines are the heads of the lists.
        assert (await sandbox.run(count)).stdout.text.strip() == "6"
        await sandbox.kill_all()
        assert (await sandbox.run(count)).stdout.text.strip() == "3"


async def only_what_is_bound_is_there_and_as_it_was_bound(bench: Bench) -> None:
    """Read-only unless it says otherwise; what is not bound is not there."""
    bench.isolates()
    if not bench.backend.capabilities.has_binds:
        raise NotApplicable("this backend can't bind files of the host, and refuses them")
    async with _host_folders() as (payload, shared, tests):
        (payload / "tool").write_text("#!/bin/sh\necho tool ran\n")
        (payload / "tool").chmod(0o755)
        (tests / "test.sh").write_text("secret")
        binds = (Bind(payload, "/opt/payload"), Bind(shared, "/shared", writable=True))
        async with bench.sandbox(binds=binds) as sandbox:
            assert (await sandbox.run(["/opt/payload/tool"])).stdout.data == b"tool ran\n"
            assert not (await sandbox.run("echo x >/opt/payload/new")).is_success
            assert not (await sandbox.run("rm /opt/payload/tool")).is_success
            done = await sandbox.run("echo out >/shared/file")
            assert done.is_success, done.stderr.text
            assert await bench.says(sandbox, SEARCH, "test.sh") == "[]"
        assert (shared / "file").read_text() == "out\n"
        assert (payload / "tool").exists()


async def what_comes_later_is_not_there_before(bench: Bench) -> None:
    """Tests are in sight once they were put in, and whoever waited for them was killed before."""
    bench.isolates()
    async with _host_folders() as (environment, _, tests):
        (environment / "data.txt").write_text("data")
        (tests / "test.sh").write_text("#!/bin/sh\necho passed")
        (tests / "test.sh").chmod(0o755)
        async with bench.sandbox() as sandbox:
            await sandbox.put_tree(".", pack(environment))
            command = "while :; do ls /tests && cp -r /tests /tmp/stolen && break; done 2>/dev/null"
            await sandbox.run(f"(setsid sh -c '{command}' >/dev/null &)")
            assert await bench.says(sandbox, SEARCH, "test.sh") == "[]"
            await sandbox.kill_all()
            await sandbox.put_tree("/tests", pack(tests))
            assert (await sandbox.run(["/tests/test.sh"])).stdout.data == b"passed\n"
            assert await bench.says(sandbox, SEARCH, "test.sh") == "['/tests/test.sh']"


@asynccontextmanager
async def _host_folders() -> AsyncIterator[tuple[Path, Path, Path]]:
    """Three folders below one that only we can enter, as a home is."""
    with tempfile.TemporaryDirectory() as folder:
        made = [Path(folder, name) for name in ("payload", "shared", "tests")]
        for each in made:
            each.mkdir(mode=0o755)
        made[1].chmod(0o777)
        yield made[0], made[1], made[2]
