"""Process 1 of a sandbox: takes orders from a socket, starts commands, reaps, and ends them.

It is single-threaded: one wait for the socket, for ended children, for the keepers' reports and for
the nearest deadline. All clocks of a sandbox are here. When the socket closes, whoever held the
other end is gone: it ends, and with process 1 the kernel ends every process of the namespace.
Without a namespace (`local-unisolated`) it is a subreaper and kills what is below it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from . import keeper, processes, shared_memory, system, watch, wire

WATCH_S = 0.1
LOOK_S = 0.02
"""Between looks whether all that was warned has ended."""
ROOT_MODE = 0o755
GONE_S = 5.0
"""A killed process is gone in no time, unless the kernel holds it (a dead disk)."""


@dataclass
class Running:
    """A command that runs."""

    id: int
    keeper: int
    report: int
    deadline: float | None
    grace_s: float
    command: int | None = None
    text: bytes = b""
    cause: str | None = None
    """Why we are ending it, once we are."""
    is_warned: bool = False
    hits: set[str] = field(default_factory=set)
    doomed: set[int] = field(default_factory=set)
    """Killed with it; it has ended once they have."""


class Init:
    """The state of process 1."""

    def __init__(self, control: socket.socket, begin: wire.Message, wakeup: int) -> None:
        """Take the first message, which says what the sandbox is."""
        self.control = control
        self.begin = begin
        self.wakeup = wakeup
        self.running: dict[int, Running] = {}
        self.adopted: dict[int, Running] = {}
        """Commands whose keeper was killed, by pid: they are our children now."""
        self.leaving: dict[int, int] = {}
        """Keepers that have reported their last, and the commands that they leave to be reaped."""
        self.selector = selectors.PollSelector()
        self.selector.register(control, selectors.EVENT_READ)
        self.selector.register(wakeup, selectors.EVENT_READ)
        limit = begin.get("deadline_s")
        self.end = None if limit is None else time.monotonic() + limit
        self.expiry: float | None = None
        if begin.get("ttl_s") is not None:
            self.expiry = time.monotonic() + begin["ttl_s"]

    def run(self) -> None:
        """Work until told to stop, out of time, or left alone."""
        while True:
            for key, _ in self.selector.select(self._wait_s()):
                if key.fileobj is self.control:
                    received = wire.receive(self.control)
                    if received is None or not self._obey(*received):
                        return
                elif key.fileobj == self.wakeup:
                    os.read(self.wakeup, 4096)
                else:
                    self._hear(key.data)
            self._reap()
            if self._is_over():
                self._say({"event": "deadline"})
                return
            self._check_deadlines()
            self._watch()

    def _wait_s(self) -> float | None:
        nearest = [each.deadline for each in self.running.values() if each.deadline is not None]
        nearest += [end for end in (self.end, self.expiry) if end is not None]
        waits = [max(0.0, min(nearest) - time.monotonic())] if nearest else []
        if self.begin.get("watch"):
            waits.append(WATCH_S)
        if any(one.is_warned for one in self.running.values()):
            waits.append(LOOK_S)
        return min(waits, default=None)

    def _is_over(self) -> bool:
        now = time.monotonic()
        return any(end is not None and now >= end for end in (self.end, self.expiry))

    def _say(self, message: wire.Message, files: list[int] | None = None) -> None:
        # Nobody there to hear: the next look at the socket ends us.
        with contextlib.suppress(OSError):
            wire.send(self.control, message, files)

    def _obey(self, message: wire.Message, files: list[int]) -> bool:
        order = message["do"]
        if order == "stop":
            return False
        if order == "exec":
            self._start(message, files)
        elif order == "signal":
            self._signal(message["id"], message["signal"])
        elif order == "kill":
            self._kill(message["id"], message["cause"])
        elif order == "kill_all":
            self._kill_all("killed")
            self._say({"event": "answer", "to": message["to"]})
        elif order == "touch":
            self.expiry = time.monotonic() + message["ttl_s"]
            self._say({"event": "answer", "to": message["to"]})
        elif order == "stats":
            self._say({"event": "answer", "to": message["to"], **self._stats()})
        return True

    def _start(self, message: wire.Message, files: list[int]) -> None:
        order = keeper.Order(
            message["argv"], message["env"], message["cwd"], message.get("call"),
            message.get("arguments", {}), self.begin.get("each", {}),
        )  # fmt: skip
        leave = [self.control.fileno(), self.wakeup, *(each.report for each in self._all())]
        try:
            pid, report = keeper.start(order, files, leave)
        except OSError as error:
            self._say({"event": "failed", "id": message["id"], "errno": error.errno})
            return
        finally:
            for fd in files:
                os.close(fd)
        limit = message.get("deadline_s")
        deadline = None if limit is None else time.monotonic() + limit
        started = Running(message["id"], pid, report, deadline, message["grace_s"])
        self.running[started.id] = started
        self.selector.register(report, selectors.EVENT_READ, started)

    def _all(self) -> list[Running]:
        return list(self.running.values())

    def _hear_keepers(self) -> None:
        """Take in all that keepers have reported by now."""
        while ready := [key.data for key, _ in self.selector.select(0) if key.data is not None]:
            for one in ready:
                self._hear(one)

    def _hear(self, one: Running) -> None:
        """Take in what a keeper reports; one that ends without a word was killed."""
        if self.running.get(one.id) is not one:
            return
        data = os.read(one.report, 4096)
        one.text += data
        *lines, one.text = one.text.split(b"\n")
        for line in lines:
            word, number = line.split()
            if word == b"started":
                one.command = int(number)
                self._say({"event": "started", "id": one.id})
                if one.cause is not None:
                    self._kill_tree(one)
            elif word == b"failed":
                self._forget(one)
                self._say({"event": "failed", "id": one.id, "errno": int(number)})
            elif word == b"ended":
                self.leaving[one.keeper] = one.command or 0
                self._ended(one, int(number))
        if not data and one.id in self.running:
            self.selector.unregister(one.report)
            if one.command is None:
                self._ended(one, -signal.SIGKILL)
            else:
                self.adopted[one.command] = one

    def _reap(self) -> None:
        self._go_on()
        while (child := _ended_child()) is not None:
            # A command becomes our child after its keeper's report has ended: what we hear now says
            # whether this child is one.
            self._hear_keepers()
            with contextlib.suppress(ChildProcessError):
                _, status = os.waitpid(child, 0)
                self.leaving.pop(child, None)
                if child in self.adopted:
                    self._ended(self.adopted.pop(child), os.waitstatus_to_exitcode(status))

    def _go_on(self) -> None:
        """Continue keepers that a command has stopped."""
        warned = {one.keeper for one in self._all() if one.is_warned and one.deadline is not None}
        keepers = {one.keeper for one in self._all()} - warned | set(self.leaving)
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitid(os.P_ALL, 0, os.WSTOPPED | os.WNOHANG)) is not None:
                if found.si_pid in keepers:
                    os.kill(found.si_pid, signal.SIGCONT)

    def _ended(self, one: Running, code: int) -> None:
        """Say that a command has ended; a code below 0 is a signal."""
        self._forget(one)
        self._wait_for(one.doomed)
        if self._is_disk_full():
            one.hits.add("disk")
        self._say(
            {
                "event": "exit",
                "id": one.id,
                "code": code if code >= 0 else None,
                "signal": -code if code < 0 else None,
                "cause": one.cause,
                "hits": sorted(one.hits),
            }
        )

    def _wait_for(self, doomed: set[int]) -> None:
        """Reap until killed processes are gone; they become our children as their parents die."""
        end = time.monotonic() + GONE_S
        while doomed & set(processes.parents()) and time.monotonic() < end:
            self._reap()
            time.sleep(0.001)

    def _forget(self, one: Running) -> None:
        self.running.pop(one.id, None)
        with contextlib.suppress(KeyError):
            self.selector.unregister(one.report)
        os.close(one.report)

    def _root(self, one: Running) -> int:
        """Return the process below which all that it started is."""
        if one.command is not None and one.command in self.adopted:
            return one.command
        return one.keeper

    def _signal(self, execution: int, number: int) -> None:
        one = self.running.get(execution)
        if one is not None and one.command is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(one.command, number)

    def _kill(self, execution: int, cause: str) -> None:
        one = self.running.get(execution)
        if one is not None:
            one.cause = one.cause or cause
            if one.command is not None:
                self._kill_tree(one)

    def _kill_all(self, cause: str) -> None:
        kill_everything()
        if os.getpid() == 1:
            shared_memory.remove()
            # Commands own it and can close it, and then nothing could be run any more.
            os.chmod("/", ROOT_MODE)
        self._hear_keepers()
        for one in self._all():
            one.cause = one.cause or cause
            self._ended(one, -signal.SIGKILL)
        self.adopted.clear()
        self.leaving.clear()

    def _kill_tree(self, one: Running) -> None:
        root = self._root(one)
        killed = processes.kill_tree(root)
        if killed is None:
            self._kill_all("killed")
            return
        processes.send_signal({one.keeper}, signal.SIGCONT)
        if root == one.command:
            processes.send_signal({root}, signal.SIGKILL)
        one.doomed |= killed

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        for one in self._all():
            if one.deadline is None:
                continue
            if one.is_warned and (now >= one.deadline or self._has_ended(one)):
                one.deadline = None
                self._kill_tree(one)
            elif not one.is_warned and now >= one.deadline:
                one.is_warned = True
                one.cause = one.cause or "deadline"
                one.deadline = now + one.grace_s
                # Stopped, it stays above all of them: those that are not warned for being born just
                # now, and those that don't mind, whatever becomes of the command itself.
                processes.send_signal({one.keeper}, signal.SIGSTOP)
                warned = processes.descendants(self._root(one)) | {one.command or one.keeper}
                processes.send_signal(warned - {one.keeper}, signal.SIGTERM)

    def _has_ended(self, one: Running) -> bool:
        known = processes.descendants(self._root(one))
        return bool(known) and not processes.alive(known)

    def _watch(self) -> None:
        limits: dict[str, int] = self.begin.get("watch") or {}
        if not limits or not (self.running or len(processes.parents()) > 1):
            return
        roots = {self._root(one): one for one in self._all()}
        if "pids" in limits:
            n_pids = sum(len(tree.pids) for tree in watch.trees(list(roots)))
            if n_pids + len(roots) + 1 >= limits["pids"]:
                for one in roots.values():
                    one.hits.add("pids")
        if "memory" in limits:
            found = watch.too_large(list(roots), limits["memory"], self._disk_bytes() or 0)
            if found is not None and found.root in roots:
                one = roots[found.root]
                one.hits.add("memory")
                one.cause = one.cause or "memory"
                self._kill_tree(one)
            elif found is not None:
                processes.send_signal(set(found.pids), signal.SIGKILL)

    def _is_disk_full(self) -> bool:
        if not self.begin.get("has_disk_limit"):
            return False
        about = os.statvfs("/")
        return about.f_bavail * about.f_frsize < 64 * 1024 or about.f_favail < 8

    def _stats(self) -> dict[str, Any]:
        self._reap()
        keepers = [self._root(one) for one in self._all()]
        found = watch.trees([*keepers, *self.leaving], is_exact=True)
        ended = set(self.leaving.values())
        return {
            "n_processes": sum(len(tree.pids - ended) for tree in found),
            "memory_bytes": sum(tree.memory_bytes for tree in found),
            "disk_bytes": self._disk_bytes(),
        }

    def _disk_bytes(self) -> int | None:
        if not self.begin.get("has_disk_limit"):
            return None
        about = os.statvfs("/")
        return (about.f_blocks - about.f_bfree) * about.f_frsize


def _ended_child() -> int | None:
    """Return a child that has ended and is not reaped yet."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if found is None else found.si_pid


def kill_everything() -> None:
    """Kill every process but this one, and reap until none is left."""
    if os.getpid() == 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
    else:
        while processes.kill_tree(os.getpid()) is None:
            pass
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def listen(port: int) -> socket.socket:
    """Return a socket that listens on the loopback of this namespace."""
    listener = socket.create_server(("127.0.0.1", port), backlog=128)
    listener.setblocking(False)
    return listener


def main(control_fd: int) -> None:
    """Serve the control socket that was inherited under this number."""
    # Bubblewrap leaves the host's folders open that it bound.
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != control_fd:
            with contextlib.suppress(OSError):
                os.close(int(name))
    os.chdir("/proc")
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)
    system.prctl(system.PR_SET_DUMPABLE, 0)
    system.prctl(system.PR_SET_NO_NEW_PRIVS, 1)
    if os.getpid() != 1:
        system.prctl(system.PR_SET_CHILD_SUBREAPER, 1)
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # Process 1 gets no signal that it does not handle, and Python handles this one.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    received = wire.receive(control)
    if received is None:
        return
    begin, _ = received
    init = Init(control, begin, reading)
    answer: wire.Message = {"event": "ready"}
    files: list[int] = []
    if begin.get("port") is not None:
        try:
            listener = listen(begin["port"])
        except OSError as error:
            wire.send(control, {"event": "refused", "message": f"port {begin['port']}: {error}"})
            return
        answer["port"] = listener.getsockname()[1]
        files.append(listener.fileno())
        wire.send(control, answer, files)
        listener.close()
    else:
        wire.send(control, answer)
    try:
        init.run()
    finally:
        kill_everything()
