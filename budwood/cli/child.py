"""A command that runs as if Budwood were not there: same terminal, same signals, its own status.

On POSIX the command gets a process group of its own, which is given the terminal, as a shell
does it: Ctrl-C and the window's size reach the harness and not us, Ctrl-Z stops both. SIGTERM,
SIGHUP, SIGINT and SIGQUIT sent to us are passed on to the group; a second SIGTERM or SIGHUP kills
it. When the command has ended, what it left running in its group is ended too.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

GRACE_S = 2.0
"""How long what the command left behind has to end by itself."""
GIVE_UP_S = 5.0
"""How long a command that has nothing left to do here may go on."""
NOT_FOUND = 127
NOT_EXECUTABLE = 126
IS_POSIX = os.name == "posix"


class CannotStart(Exception):
    """The command cannot be started; `status` is what a shell would say."""

    def __init__(self, program: str, error: OSError) -> None:
        """Say which program, and why."""
        super().__init__(f"{program} cannot be started: {error.strerror or error}")
        self.status = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


def check_program(program: str, cwd: Path, environment: Mapping[str, str] | None = None) -> None:
    """Raise CannotStart where there is no such program, before anything is opened for it."""
    path = (os.environ if environment is None else environment).get("PATH")
    found = cwd / program if os.path.dirname(program) else shutil.which(program, path=path)
    if found is None or not os.path.exists(found):
        missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        raise CannotStart(program, missing)


async def run_child(
    argv: Sequence[str],
    environment: Mapping[str, str],
    cwd: Path | None = None,
    *,
    give_up: asyncio.Event | None = None,
) -> int:
    """Run a command to its end and return its status, 128 + N where signal N ended it.

    Once `give_up` is set the command is ended, if it does not end by itself. Raises CannotStart.
    """
    try:
        child = subprocess.Popen(  # noqa: ASYNC220 - a fork, and nothing may happen before it
            list(argv),
            env=dict(environment),
            cwd=cwd,
            process_group=0 if IS_POSIX else None,
        )
    except OSError as error:
        raise CannotStart(argv[0], error) from error
    if not IS_POSIX:
        return await asyncio.to_thread(child.wait)
    terminal = Terminal.of_this_process()
    with _passing_on(child.pid):
        try:
            if terminal is not None:
                terminal.give(child.pid)
            async with asyncio.TaskGroup() as tasks:
                giver = tasks.create_task(_give_up(give_up, child.pid))
                status = await asyncio.to_thread(_wait, child, terminal)
                giver.cancel()
        finally:
            if terminal is not None:
                terminal.take_back()
            await _end_group(child.pid)
    return status


async def _give_up(when: asyncio.Event | None, group: int) -> None:
    if when is None:
        return
    await when.wait()
    await asyncio.sleep(GIVE_UP_S)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, number)
        await asyncio.sleep(GRACE_S)


def without_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which 127.0.0.1 is reached directly."""
    result = dict(environment)
    for name in ("NO_PROXY", "no_proxy"):
        hosts = [host for host in result.get(name, "").split(",") if host.strip()]
        result[name] = ",".join(dict.fromkeys([*hosts, "127.0.0.1", "localhost"]))
    return result


class Terminal:
    """The controlling terminal, while we are in its foreground."""

    def __init__(self, descriptor: int) -> None:
        """Use an open terminal; `of_this_process` finds it."""
        self._descriptor = descriptor
        self._own_group = os.getpgrp()

    @classmethod
    def of_this_process(cls) -> Terminal | None:
        """Return the terminal of stdin if it is ours to give away, else None."""
        try:
            descriptor = sys.stdin.fileno()
            is_ours = os.isatty(descriptor) and os.tcgetpgrp(descriptor) == os.getpgrp()
        except (OSError, ValueError, AttributeError):
            return None
        return cls(descriptor) if is_ours else None

    def give(self, group: int) -> None:
        """Make `group` the foreground; it is continued, since it may have stopped at a read."""
        self._set(group)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGCONT)

    def take_back(self) -> None:
        """Make our own group the foreground again."""
        self._set(self._own_group)

    def _set(self, group: int) -> None:
        # A background group that sets the foreground is stopped by SIGTTOU; blocked in this
        # thread, the call succeeds instead.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            with contextlib.suppress(OSError):
                os.tcsetpgrp(self._descriptor, group)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTTOU})


def _wait(child: subprocess.Popen[bytes], terminal: Terminal | None) -> int:
    """Wait for the end; where the child is stopped by its terminal, stop with it."""
    while True:
        _, raw = os.waitpid(child.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(raw):
            break
        if terminal is not None:
            terminal.take_back()
            os.killpg(0, signal.SIGTSTP)
            terminal.give(child.pid)
    status = os.waitstatus_to_exitcode(raw)
    child.returncode = status
    return 128 - status if status < 0 else status


@contextlib.contextmanager
def _passing_on(group: int) -> Iterator[None]:
    """Pass signals that would end us on to the group."""
    loop = asyncio.get_running_loop()
    asked: set[int] = set()

    def pass_on(number: int) -> None:
        is_second = number in asked and number in (signal.SIGTERM, signal.SIGHUP)
        asked.add(number)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL if is_second else number)

    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
    for number in numbers:
        loop.add_signal_handler(number, pass_on, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def _end_group(group: int) -> None:
    """End what the command left running in its group."""
    loop = asyncio.get_running_loop()
    end = loop.time() + GRACE_S
    number = signal.SIGTERM
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        while loop.time() < end:
            os.killpg(group, 0)
            await asyncio.sleep(0.02)
        os.killpg(group, signal.SIGKILL)
