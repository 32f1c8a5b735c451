"""One command and the process that keeps it: the keeper.

Orphans of the command become children of its keeper (a subreaper), so that everything the command
started is below the keeper and can be ended as a whole, whatever sessions and groups it moved to.
Once the command has ended the keeper goes too, and what is left running belongs to process 1.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import sys
from dataclasses import dataclass, field
from typing import Any, NoReturn

from . import system

NOT_FOUND, NOT_RUNNABLE = 127, 126
OOM_SCORE = "500"
"""Where the kernel must kill for memory, a command goes before us."""


@dataclass(frozen=True)
class Order:
    """A command as it was ordered."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    call: str | None = None
    """Name of a file operation to run in place of a program."""
    arguments: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    """What the kernel holds each process to: `nproc`, `data`."""


def start(order: Order, stdio: list[int], leave: list[int]) -> tuple[int, int]:
    """Start a keeper; return its pid, and the pipe on which its command's pid and end are reported.

    `leave` are open files of ours that neither may have. Raises OSError where no process can be
    made.
    """
    reading, writing = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        raise
    if pid == 0:
        _as_child(_keep, order, stdio, [*leave, reading], writing)
    os.close(writing)
    return pid, reading


def _as_child(what: Any, *arguments: Any) -> NoReturn:
    """Run something and leave, whatever happens: never return into the program that forked."""
    code = NOT_RUNNABLE
    try:
        code = what(*arguments)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(2, f"budwood: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def _keep(order: Order, stdio: list[int], leave: list[int], report: int) -> int:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for fd in leave:
        os.close(fd)
    os.setsid()
    system.prctl(system.PR_SET_CHILD_SUBREAPER, 1)
    try:
        command = os.fork()
    except OSError as error:
        os.write(report, f"failed {error.errno}\n".encode())
        return 0
    if command == 0:
        _as_child(_become, order, stdio, report)
    for fd in stdio:
        os.close(fd)
    while True:
        # The command may kill us at any time. It is left for process 1 to reap, so that its end is
        # known even where we can't report it.
        child = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        assert child is not None
        if child.si_pid == command:
            code = child.si_status if child.si_code == os.CLD_EXITED else -child.si_status
            os.write(report, f"ended {code}\n".encode())
            return 0
        os.waitpid(child.si_pid, 0)


def _become(order: Order, stdio: list[int], report: int) -> int:
    """Become the command, in a session of its own; say so first, as nobody may after that."""
    os.setsid()
    os.write(report, f"started {os.getpid()}\n".encode())
    os.close(report)
    for number, fd in enumerate(stdio):
        os.dup2(fd, number)
    os.closerange(3, 256)
    system.prctl(system.PR_SET_DUMPABLE, 1)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(OOM_SCORE)
    for name, value in order.limits.items():
        kind = {"nproc": resource.RLIMIT_NPROC, "data": resource.RLIMIT_DATA}[name]
        resource.setrlimit(kind, (value, value))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.chdir(order.cwd)
        if order.call is not None:
            return _call(order)
        os.execvpe(order.argv[0], order.argv, order.env)
    except OSError as error:
        what = error.filename or order.argv[0]
        sys.stderr.write(f"budwood: can't run {order.argv[0]!r} in {order.cwd}: {what}: ")
        sys.stderr.write(f"{error.strerror}\n")
        sys.stderr.flush()
        is_absent = error.errno == errno.ENOENT and os.path.isdir(order.cwd)
        return NOT_FOUND if is_absent else NOT_RUNNABLE


def _call(order: Order) -> int:
    from . import file_calls  # tarfile, which a command does not need

    assert order.call is not None
    return file_calls.run(order.call, order.arguments)
