"""A local sandbox: one task that starts process 1, waits for its end, and removes everything.

    starting ──ready──▶ ready ──close──────▶ Closed
        │                 ├────deadline, ttl─▶ Deadline
        └──StartFailed    └────anything else─▶ Lost

Whatever waits for the sandbox gets that error; the first one stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from ..errors import Closed, Deadline, FileFailed, Lost, Refused, SandboxError, StartFailed, Stuck
from ..files import Stats
from ..interface import Command, Input
from ..limits import Limit
from ..output import Cause, Exit
from ..spec import SandboxId, Spec
from .beside import beside
from .cgroup import Group
from .control import Control
from .execution import LocalExecution, Pipes
from .file_access import FileAccess
from .folders import remove_folder
from .forwarder import forward
from .ground import SEARCH_PATH, Ground, Holding, in_groups
from .inside.wire import Message
from .settings import LocalSettings

Standing = Callable[[Spec, Path, int], Ground]


class LocalSandbox(FileAccess):
    """A sandbox of this machine; its backend runs `live` as a task of its own."""

    def __init__(
        self,
        sandbox_id: SandboxId,
        spec: Spec,
        *,
        folder: Path,
        stand: Standing,
        group: Group,
        holding: Holding,
        settings: LocalSettings,
    ) -> None:
        """Take what the backend decided; nothing is started before `live`."""
        self.id = sandbox_id
        self.spec = spec
        self._folder = folder
        self._stand = stand
        self._group = group
        self._holding = holding
        self._settings = settings
        self._is_ready = asyncio.Event()
        self._is_stopping = asyncio.Event()
        self._is_over = asyncio.Event()
        self._is_gone = asyncio.Event()
        """Process 1 said its last word, or its process ended."""
        self._end: SandboxError | None = None
        self._stuck: Stuck | None = None
        self._control: Control | None = None
        self._executions: dict[int, LocalExecution] = {}
        self._answers: dict[int, asyncio.Future[Message]] = {}
        self._hits_before: dict[int, dict[Limit, int]] = {}
        self._hits_told: dict[Limit, int] = {}
        """As of the last command that ended."""
        self._n_orders = 0
        self._listener: socket.socket | None = None
        self._address = ""
        self._workdir = spec.workdir
        self._env: dict[str, str] = {}
        self._users: tuple[str | int, ...] = ()

    async def live(self) -> None:
        """Be the sandbox, from its start to the removal of its last trace."""
        try:
            await self._run()
        except StartFailed as error:
            self._over(error)
        except OSError as error:
            self._over(StartFailed(f"the sandbox could not be started: {error}"))
        except Exception as error:  # the boundary: a fault of ours ends this sandbox, no other
            self._over(Lost(f"a fault of the backend: {type(error).__name__}: {error}"))
        finally:
            self._over(Closed(f"sandbox {self.id} was closed"))
            if self._control is not None:
                self._control.close()
            if self._listener is not None:
                self._listener.close()
            left = await asyncio.shield(asyncio.to_thread(self._remove))
            if left:
                self._stuck = Stuck(f"sandbox {self.id} is closed but {', '.join(left)} remain")
            self._is_over.set()

    def _remove(self) -> list[str]:
        left = [str(path) for path in self._group.remove()]
        remove_folder(self._folder)
        return left + ([str(self._folder)] if self._folder.exists() else [])

    async def _run(self) -> None:
        self._folder.mkdir(mode=0o711)
        self._group.make(self._holding.groups)
        ours, its = socket.socketpair()
        with its, (self._folder / "start.log").open("wb") as log:
            try:
                ground = self._stand(self.spec, self._folder, its.fileno())
            except BaseException:
                ours.close()
                raise
            self._workdir, self._env = ground.workdir, ground.env
            self._users = ground.users
            self._control = Control(ours, self._hear)
            try:
                process = await asyncio.create_subprocess_exec(
                    *in_groups(ground.argv, self._group.folders),
                    pass_fds=[its.fileno(), *ground.inherited], env={"PATH": SEARCH_PATH}, cwd="/",
                    stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True,
                )  # fmt: skip
            finally:
                for fd in ground.inherited:
                    os.close(fd)
        try:
            async with beside(self._watch(process)):
                await self._begin()
                async with beside(self._forward()):
                    await self._until_over()
        finally:
            self._control.send({"do": "stop"})
            await asyncio.shield(self._end_process(process))

    async def _forward(self) -> None:
        if self._listener is not None and self.spec.proxy is not None:
            await forward(self._listener, self.spec.proxy)

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Wait for the end of bubblewrap, which comes after that of all processes inside."""
        await process.wait()
        self._is_gone.set()

    async def _begin(self) -> None:
        """Say what the sandbox is, and wait for the first answer."""
        assert self._control is not None
        limits = self.spec.limits
        self._control.send(
            {
                "deadline_s": limits.deadline_s,
                "ttl_s": self.spec.ttl_s,
                "port": self.spec.proxy_port if self.spec.proxy is not None else None,
                "each": self._holding.each,
                "watch": self._holding.watch,
                "has_disk_limit": limits.disk_bytes is not None,
            }
        )
        try:
            async with asyncio.timeout(self._settings.start_s):
                await _first(self._is_ready, self._is_gone, self._is_stopping)
        except TimeoutError:
            raise StartFailed(f"no answer within {self._settings.start_s:g} s") from None
        if self._is_gone.is_set() and not self._is_ready.is_set():
            said = (self._folder / "start.log").read_text("utf-8", "replace").strip()
            raise StartFailed(f"the sandbox could not be started: {said or 'no word of why'}")

    async def _until_over(self) -> None:
        await _first(self._is_gone, self._is_stopping)
        if self._is_stopping.is_set():
            return
        if self._group.hits().get(Limit.MEMORY, 0) > self._hits_told.get(Limit.MEMORY, 0):
            why = "its commands took all its memory, and the kernel ended process 1 too"
            self._over(Lost(why, Limit.MEMORY))
        else:
            self._over(Lost("its process 1 ended; something outside killed it, or memory ran out"))

    async def _end_process(self, process: asyncio.subprocess.Process) -> None:
        """See to it that no process is left; the pid namespace ends with its process 1."""
        try:
            async with asyncio.timeout(self._settings.stop_s):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    def _over(self, end: SandboxError) -> None:
        """Take the first reason for the end, and tell it to all that wait."""
        if self._end is None:
            self._end = end
        for execution in list(self._executions.values()):
            execution.finish(self._end)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(self._end)
                answer.exception()
        self._is_stopping.set()

    def _hear(self, message: Message, files: list[int]) -> None:
        """Take in what process 1 says."""
        event = message["event"]
        if event == "ready":
            if files:
                self._listener = socket.socket(fileno=files[0])
                self._listener.setblocking(False)
                self._address = f"127.0.0.1:{message['port']}"
            self._is_ready.set()
        elif event == "refused":
            self._over(StartFailed(f"the sandbox could not be started: {message['message']}"))
        elif event == "deadline":
            self._over(Deadline(f"sandbox {self.id} ran out of its time"))
        elif event == "answer":
            answer = self._answers.get(message["to"])
            if answer is not None and not answer.done():
                answer.set_result(message)
        else:
            self._hear_of(message)

    def _hear_of(self, message: Message) -> None:
        execution = self._executions.get(message["id"])
        if execution is None:
            return
        if message["event"] == "started":
            if not execution.started.done():
                execution.started.set_result(None)
        elif message["event"] == "failed":
            execution.finish(self._no_process(message["errno"]))
        elif message["event"] == "exit":
            execution.finish(self._exit(message))

    def _no_process(self, number: int) -> StartFailed:
        limit = Limit.PIDS if self.spec.limits.pids is not None else None
        return StartFailed(
            f"no process can be made in sandbox {self.id}: {os.strerror(number)}. Its processes "
            f"hold all places (limits.pids = {self.spec.limits.pids}): kill_all, or allow more",
            limit,
        )

    def _exit(self, message: Message) -> Exit:
        before = self._hits_before.pop(message["id"], {})
        self._hits_told = self._group.hits()
        hits = {Limit(name) for name in message["hits"]}
        hits |= {limit for limit, n in self._hits_told.items() if n > before.get(limit, 0)}
        code, number = message["code"], message["signal"]
        cause = Cause.EXITED if number is None else Cause.SIGNALED
        if message["cause"] is not None:
            cause = Cause(message["cause"])
        elif Limit.MEMORY in hits and (number == signal.SIGKILL or code == 128 + signal.SIGKILL):
            cause = Cause.MEMORY
        return Exit(code, number, cause, frozenset(hits))

    async def ready(self, deadline_s: float | None = None) -> None:
        """Wait until commands can run."""
        try:
            async with asyncio.timeout(deadline_s):
                await _first(self._is_ready, self._is_stopping)
        except TimeoutError:
            raise Deadline(f"sandbox {self.id} was not ready within {deadline_s} s") from None
        self._check()

    def _check(self) -> Control:
        if self._end is not None:
            raise self._end
        assert self._control is not None
        return self._control

    @property
    def proxy_address(self) -> str:
        """Where the proxy answers, seen from inside."""
        if not self._address:
            raise ValueError(
                "no proxy inside: the spec names none, or the sandbox is not ready yet"
            )
        return self._address

    @property
    def workdir(self) -> str:
        """Where commands start."""
        return self._workdir

    @asynccontextmanager
    async def exec(
        self,
        command: Command,
        *,
        stdin: Input = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        deadline_s: float | None = None,
        grace_s: float = 2.0,
    ) -> AsyncIterator[LocalExecution]:
        """Run a command; the block holds it."""
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        if not argv or any("\0" in word for word in argv):
            raise ValueError("a command needs at least one word, and no NUL in any")
        await self.ready()
        if user is not None and user not in self._users:
            own = " or ".join(map(repr, self._users))
            raise Refused("local", (f"user {user!r}: all commands run as the one there is, {own}",))
        order = {
            "argv": argv,
            "env": {**self._env, **(env or {})},
            "cwd": os.path.join(self._workdir, cwd or ""),
            "deadline_s": deadline_s,
            "grace_s": grace_s,
        }
        async with self._execute(order, stdin, self.spec.limits.output_bytes) as execution:
            yield execution

    @asynccontextmanager
    async def _call(
        self, name: str, arguments: dict[str, Any], stdin: Input
    ) -> AsyncIterator[LocalExecution]:
        await self.ready()
        path = os.path.join(self._workdir, arguments["path"])
        if "\0" in path:
            raise FileFailed(errno.EINVAL, path, "a path can't hold a NUL")
        order = {
            "argv": [name], "env": {}, "cwd": "/", "grace_s": 0.0,
            "call": name, "arguments": {**arguments, "path": path},
        }  # fmt: skip
        async with self._execute(order, stdin, None) as execution:
            yield execution

    @asynccontextmanager
    async def _execute(
        self, order: Message, stdin: Input, output_bytes: int | None
    ) -> AsyncIterator[LocalExecution]:
        control = self._check()
        self._n_orders += 1
        number = self._n_orders
        try:
            pipes = Pipes.make(has_input=stdin is not None)
        except OSError as error:
            raise StartFailed(f"no pipes for a command: {error.strerror}") from error
        execution = LocalExecution(number, pipes, control.send, output_bytes)
        self._executions[number] = execution
        self._hits_before[number] = self._group.hits()
        try:
            control.send({"do": "exec", "id": number, **order}, list(pipes.its))
            pipes.close(*pipes.its)
            await execution.started
            async with beside(execution.feed(stdin)):
                yield execution
        finally:
            try:
                # Its input stays open until it is dead: half of it must not look like the whole.
                if not execution.ended.is_set():
                    execution.end(Cause.KILLED)
                    await asyncio.shield(execution.ended.wait())
            finally:
                pipes.close()
                self._executions.pop(number, None)
                self._hits_before.pop(number, None)

    async def _ask(self, order: Message) -> Message:
        await self.ready()
        control = self._check()
        self._n_orders += 1
        number = self._n_orders
        self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            control.send({**order, "to": number})
            return await self._answers[number]
        finally:
            del self._answers[number]

    async def kill_all(self) -> None:
        """Kill every process of the sandbox; the files stay."""
        await self._ask({"do": "kill_all"})

    async def stats(self) -> Stats:
        """Return what the sandbox uses now."""
        said = await self._ask({"do": "stats"})
        counted = self._group.memory_bytes()
        memory = said["memory_bytes"] if counted is None else counted
        return Stats(said["n_processes"], memory, said["disk_bytes"])

    async def touch(self, ttl_s: float) -> None:
        """Let the sandbox live for `ttl_s` from now."""
        await self._ask({"do": "touch", "ttl_s": ttl_s})

    async def close(self) -> None:
        """End every process and remove everything."""
        self._over(Closed(f"sandbox {self.id} was closed"))
        await asyncio.shield(self._is_over.wait())
        if self._stuck is not None:
            raise self._stuck


async def _first(*events: asyncio.Event) -> None:
    """Wait until one of them is set."""
    async with AsyncExitStack() as stack:
        waiting = [await stack.enter_async_context(beside(event.wait())) for event in events]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
