"""Checks of commands: what they get, what comes back, and how they end."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from ..errors import Refused
from ..output import Cause, Spool, Stream
from ..spec import Feature
from .bench import Bench, error_of, until

ODD = ["", "a b", "$HOME", "`id`", "line\nbreak", "é", "--", "*", '"quoted"', "\\"]
ALL_BYTES = bytes(range(256))


async def words_reach_a_program_as_they_are(bench: Bench) -> None:
    """No shell touches the words of a list."""
    async with bench.sandbox() as sandbox:
        done = await sandbox.run(["printf", "%s\\0", *ODD])
        assert done.stdout.data == b"".join(word.encode() + b"\0" for word in ODD)


async def a_string_is_run_by_a_shell(bench: Bench) -> None:
    """Pipes and variables work."""
    async with bench.sandbox() as sandbox:
        done = await sandbox.run('X=3; echo "$X" | tr 3 4; echo no >&2; exit $X')
        assert (done.stdout.data, done.stderr.data, done.exit.code) == (b"4\n", b"no\n", 3)


async def bytes_come_back_as_they_were_written(bench: Bench) -> None:
    """Every value, in both streams, kept apart."""
    async with bench.sandbox() as sandbox:
        done = await sandbox.run("cat >both; cat both; cat both both >&2", stdin=ALL_BYTES)
        assert done.stdout.data == ALL_BYTES
        assert done.stderr.data == ALL_BYTES * 2


async def ten_megabytes_come_back_whole(bench: Bench) -> None:
    """A stream far longer than any buffer, in and out."""
    piece = os.urandom(1024 * 64)
    n_pieces = 160
    wanted = hashlib.sha256(piece * n_pieces).hexdigest()

    async def source() -> AsyncIterator[bytes]:
        for _ in range(n_pieces):
            yield piece

    async with bench.sandbox() as sandbox:
        got = hashlib.sha256()
        async with sandbox.exec(["cat"], stdin=source()) as execution:
            async for frame in execution:
                assert frame.stream is Stream.STDOUT
                got.update(frame.data)
        assert execution.exit is not None
        assert execution.exit.is_success
        assert got.hexdigest() == wanted


async def input_may_be_absent_or_unread(bench: Bench) -> None:
    """Without input a command reads an end; one that reads none is no error."""
    async with bench.sandbox() as sandbox:
        assert (await sandbox.run(["cat"])).stdout.data == b""
        assert (await sandbox.run(["true"], stdin=b"x" * 10**6)).is_success


async def a_failing_input_kills_the_command_and_is_raised(bench: Bench) -> None:
    """Half an input must not look like a whole one."""

    async def source() -> AsyncIterator[bytes]:
        yield b"half"
        raise LookupError("the source failed")

    async with bench.sandbox() as sandbox:
        try:
            await sandbox.run("cat >got; touch finished", stdin=source())
        except LookupError:
            pass
        else:
            raise AssertionError("the error of the input was lost")
        assert "finished" not in {entry.name for entry in await sandbox.list(".")}


async def variables_are_the_specs_and_the_commands(bench: Bench) -> None:
    """Nothing is inherited from us."""
    os.environ["BUDWOOD_HOST_ONLY"] = "leaked"
    try:
        async with bench.sandbox(env={"A": "spec", "B": "spec"}) as sandbox:
            done = await sandbox.run(["env"], env={"B": "command"})
    finally:
        del os.environ["BUDWOOD_HOST_ONLY"]
    found = dict(line.split("=", 1) for line in done.stdout.text.splitlines())
    assert (found["A"], found["B"]) == ("spec", "command")
    assert {"PATH", "HOME", "LANG", "TMPDIR"} <= set(found)
    known = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR", "A", "B"}
    assert set(found) - known - {"PWD", "_", "BUDWOOD_CHECK"} == set()


async def commands_start_where_they_are_told(bench: Bench) -> None:
    """The workdir, below it, or anywhere; the home exists and can be written."""
    async with bench.sandbox() as sandbox:
        assert (await sandbox.run(["pwd"])).stdout.text.strip() == sandbox.workdir
        await sandbox.run(["mkdir", "-p", "a/b"])
        below = (await sandbox.run(["pwd"], cwd="a/b")).stdout.text.strip()
        assert below == f"{sandbox.workdir}/a/b"
        assert (await sandbox.run(["pwd"], cwd="/usr")).stdout.text.strip() == "/usr"
        assert (await sandbox.run('touch "$HOME/x" "$TMPDIR/y" z')).is_success
        missing = await sandbox.run(["pwd"], cwd="absent")
        assert missing.exit.code == 126
        assert "absent" in missing.stderr.text


async def a_user_is_obeyed_or_refused(bench: Bench) -> None:
    """Never another one in silence."""
    async with bench.sandbox() as sandbox:
        own = (await sandbox.run(["id", "-u"])).stdout.text.strip()
        assert (await sandbox.run(["id", "-u"], user=int(own))).stdout.text.strip() == own
        other = sandbox.run(["id", "-u"], user=int(own) + 1)
        if Feature.USERS in bench.backend.capabilities.features:
            assert (await other).stdout.text.strip() == str(int(own) + 1)
        else:
            error = await error_of(other)
            assert isinstance(error, Refused)
            assert f"user {int(own) + 1}" in str(error)


async def exit_codes_and_signals_are_told_apart(bench: Bench) -> None:
    """A code is a code, a signal a signal."""
    async with bench.sandbox() as sandbox:
        for code in (0, 1, 3, 255):
            ended = (await sandbox.run(f"exit {code}")).exit
            assert (ended.code, ended.signal, ended.cause) == (code, None, Cause.EXITED)
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV):
            ended = (await sandbox.run(f"kill -{number} $$")).exit
            assert (ended.code, ended.signal, ended.cause) == (None, number, Cause.SIGNALED)


async def a_program_that_cannot_be_run_ends_as_in_a_shell(bench: Bench) -> None:
    """127 where it is not there, 126 where it can't be run, with a word on stderr."""
    async with bench.sandbox() as sandbox:
        await sandbox.put("plain", b"no program", mode=0o644)
        for argv, code in [(["no-such-program"], 127), (["./plain"], 126), (["/usr"], 126)]:
            done = await sandbox.run(argv)
            assert done.exit.code == code, argv
            assert argv[0] in done.stderr.text


async def many_commands_run_at_once(bench: Bench) -> None:
    """Each has its own streams."""
    async with bench.sandbox() as sandbox, asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(sandbox.run(f"cat; echo {number}", stdin=b"%d " % number))
            for number in range(20)
        ]
    assert [each.result().stdout.data for each in running] == [
        b"%d %d\n" % (number, number) for number in range(20)
    ]


async def what_is_left_running_holds_nobody_up(bench: Bench) -> None:
    """A command ends when its own process does, though a child has its output open."""
    async with bench.sandbox() as sandbox:
        done = await sandbox.run("sleep 1000 & echo started $!")
        word, pid = done.stdout.data.split()
        assert word == b"started"
        assert (await sandbox.run(["kill", "-0", pid.decode()])).is_success
        assert (await sandbox.stats()).n_processes == 1
        await sandbox.kill_all()
        assert not (await sandbox.run(["kill", "-0", pid.decode()])).is_success


async def what_is_left_writing_holds_nobody_up(bench: Bench) -> None:
    """Nor is what it writes after the command's end the command's output."""

    async def busy() -> None:
        """Give whoever writes the time to fill its pipe before each look at it."""
        while True:
            time.sleep(0.005)  # noqa: ASYNC251
            await asyncio.sleep(0)

    async with bench.sandbox() as sandbox:
        others = asyncio.ensure_future(busy())
        try:
            done = await sandbox.run("yes & yes >&2 & exit 3", keep_bytes=1000)
            assert (done.exit.code, done.exit.cause) == (3, Cause.EXITED)
            limit = sandbox.spec.limits.output_bytes
            assert limit is not None
            assert done.stdout.n_dropped + done.stderr.n_dropped < limit // 2
        finally:
            others.cancel()
        done = await sandbox.run("(sleep 1000; yes) & head -c 50000 /dev/zero; echo err >&2")
        assert len(done.stdout.data) == 50_000
        assert done.stderr.data == b"err\n"


async def leaving_the_block_kills_the_command(bench: Bench) -> None:
    """With all that it started, in whatever session."""
    async with bench.sandbox() as sandbox:
        async with sandbox.exec("setsid sleep 1000 & sleep 1000 & echo up; wait") as execution:
            async for frame in execution:
                assert frame.data == b"up\n"
                break
        assert execution.exit is None
        assert (await sandbox.stats()).n_processes == 0


async def a_deadline_ends_those_too_that_outlive_the_command(bench: Bench) -> None:
    """The command itself obeys at once; what it started does not."""
    deaf = "(setsid sh -c \"trap '' TERM; echo up; while :; do sleep 1; done\" &)"
    async with bench.sandbox() as sandbox:
        done = await sandbox.run(f"{deaf}; sleep 1000", deadline_s=1.0, grace_s=0.2)
        assert (done.exit.cause, done.exit.signal) == (Cause.DEADLINE, signal.SIGTERM)
        assert (await sandbox.stats()).n_processes == 0


async def a_deadline_kills_its_own_tree_alone(bench: Bench) -> None:
    """However its processes hide, and whoever else is there."""
    hide = "trap '' TERM HUP; (setsid sh -c \"trap '' TERM; sleep 1000\" &) ; sleep 1000"
    async with bench.sandbox() as sandbox:
        await sandbox.run("sleep 1001 >/dev/null 2>&1 & echo $! >left")
        async with sandbox.exec("read x; echo alive", stdin=_later(done := asyncio.Event())) as one:
            done_with = await sandbox.run(hide, deadline_s=0.5, grace_s=0.2)
            assert done_with.exit.cause is Cause.DEADLINE
            assert done_with.exit.signal == signal.SIGKILL
            found = await sandbox.run("for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; done")
            assert "sleep 1000" not in found.stdout.text
            assert (await sandbox.run('kill -0 "$(cat left)"')).is_success
            done.set()
            assert [frame.data async for frame in one] == [b"alive\n"]


async def a_deadline_lets_a_command_end_in_order(bench: Bench) -> None:
    """SIGTERM comes first, and its own code counts."""
    async with bench.sandbox() as sandbox:
        command = "trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.05; done"
        done = await sandbox.run(command, deadline_s=1.0, grace_s=30.0)
        assert done.stdout.data.endswith(b"bye\n")
        assert (done.exit.code, done.exit.cause) == (7, Cause.DEADLINE)


async def a_signal_reaches_the_command_and_its_group(bench: Bench) -> None:
    """As Ctrl-C at a terminal does."""
    async with bench.sandbox() as sandbox:
        command = "trap 'echo caught; exit 5' INT; echo up; while :; do sleep 0.05; done"
        said = b""
        async with sandbox.exec(command) as execution:
            async for frame in execution:
                said += frame.data
                if said == b"up\n":
                    await execution.signal(signal.SIGINT)
        assert said == b"up\ncaught\n"
        assert execution.exit is not None
        assert execution.exit.code == 5


async def long_output_is_kept_at_both_ends_and_whole_on_disk(bench: Bench) -> None:
    """What was dropped is counted."""
    command = "head -c 300000 /dev/zero | tr '\\0' x; echo END; echo err >&2"
    async with bench.sandbox() as sandbox:
        with tempfile.TemporaryDirectory() as folder:
            spool = Spool(Path(folder), cap_bytes=200_000)
            done = await sandbox.run(command, keep_bytes=1000, spool=spool)
            assert (Path(folder) / "stdout").read_bytes() == b"x" * 200_000
            assert (Path(folder) / "stderr").read_bytes() == b"err\n"
            assert spool.n_dropped == {Stream.STDOUT: 100_004, Stream.STDERR: 0}
        assert (done.stdout.head, done.stdout.tail) == (b"x" * 1000, b"x" * 996 + b"END\n")
        assert done.stdout.n_dropped == 298_004
        assert "298004 bytes left out" in done.stdout.text


async def killing_everything_in_sight_ends_neither_sandbox_nor_truth(bench: Bench) -> None:
    """A command that kills all it can kills the others, and its own exit is still told."""
    # Without isolation these would be the host's processes.
    bench.isolates()
    async with bench.sandbox() as sandbox:
        await sandbox.run("sleep 1000 >/dev/null 2>&1 &")
        done = await sandbox.run("kill -9 1; kill -9 -1; echo still here; exit 4")
        assert (done.stdout.data, done.exit.code) == (b"still here\n", 4)

        async def is_empty() -> bool:
            return (await sandbox.stats()).n_processes == 0

        await until(is_empty)


async def stopping_everything_in_sight_holds_nobody_up(bench: Bench) -> None:
    """A command that stops all it can still ends, with its own exit, and at its deadline."""
    bench.isolates()
    async with bench.sandbox() as sandbox:
        done = await sandbox.run("kill -STOP 1; kill -STOP -1; exit 4")
        assert (done.exit.code, done.exit.cause) == (4, Cause.EXITED)
        command = "kill -STOP -1; kill -STOP $$"
        done = await sandbox.run(command, deadline_s=0.5, grace_s=0.2)
        assert done.exit.cause is Cause.DEADLINE
        assert (await sandbox.stats()).n_processes == 0


async def _later(event: asyncio.Event) -> AsyncIterator[bytes]:
    await event.wait()
    yield b"\n"
