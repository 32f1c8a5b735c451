"""A sandbox as the place where a task is done, graded and checked.

Limits that the task names are the sandbox's. Its other limits, and no network, are the sandbox
room's defaults: a verifier of a local task needs none.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

from budwood.sandbox import (
    MIB,
    Backend,
    Bind,
    Cause,
    FileFailed,
    Limit,
    Limits,
    Network,
    Refused,
    Sandbox,
    SandboxError,
    Spec,
    pack,
)

from .errors import NoRoom, PlaceFailed, Problem, UnsupportedTask
from .tasks.checking import OpenPlace
from .tasks.folder import Task
from .tasks.place import ExecResult, Place

_NO_FILE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL}
"""Nothing there, or something that is no regular file."""

MAX_READ_BYTES = 16 * MIB
"""A file may say that it holds more than there is memory, without taking any room on disk."""

_FULL = {errno.ENOSPC, errno.EDQUOT}


class SandboxPlace:
    """One sandbox; whoever opened it closes it."""

    def __init__(self, sandbox: Sandbox) -> None:
        """Use a sandbox that is ready."""
        self._sandbox = sandbox

    async def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        timeout_s: float,
    ) -> ExecResult:
        """Run a command to its end; when its time is up, end it with all that it started."""
        with _as_place():
            done = await self._sandbox.run(list(argv), env=env, cwd=cwd, deadline_s=timeout_s)
        timed_out = done.exit.cause is Cause.DEADLINE
        return ExecResult(
            exit_code=None if timed_out else done.exit.code,
            signal=None if timed_out else done.exit.signal,
            timed_out=timed_out,
            stdout=done.stdout.head + done.stdout.tail,
            stderr=done.stderr.head + done.stderr.tail,
            is_full=Limit.DISK in done.exit.limits_hit,
        )

    async def kill_all(self) -> None:
        """End every process that was started in it, and return when none is left."""
        with _as_place():
            await self._sandbox.kill_all()

    async def put_tree(self, local: Path, remote: str) -> None:
        """Copy what is in a folder into one inside, made if need be; mode bits and links stay."""
        with _as_place():
            await self._sandbox.put_tree(remote, pack(local))

    async def read(self, path: str) -> bytes | None:
        """Return the content of a regular file inside, its first 16 MiB; None if there is none."""
        content = bytearray()
        with _as_place():
            try:
                async with aclosing(self._sandbox.get(path)) as pieces:
                    async for piece in pieces:
                        content += piece
                        if len(content) >= MAX_READ_BYTES:
                            break
            except FileFailed as error:
                if error.errno in _NO_FILE:
                    return None
                raise
        return bytes(content[:MAX_READ_BYTES])


def places_of(backend: Backend) -> OpenPlace:
    """Return what opens a fresh sandbox of an open backend as the place of a task.

    Raises PlaceFailed for a backend whose sandboxes share the host's root: tests and rewards would
    be laid into the host.
    """
    if not backend.capabilities.has_own_root:
        raise PlaceFailed(
            f"the sandboxes of {backend.capabilities.backend} share this machine's root: a task's "
            "/tests and /logs would be laid into it"
        )

    @asynccontextmanager
    async def open_place(task: Task) -> AsyncIterator[Place]:
        try:
            with _as_place():
                sandbox = await backend.create(Spec(workdir=task.workdir, limits=limits_of(task)))
        except Refused as error:
            raise UnsupportedTask(task.name, [Problem("", text) for text in error.lacks]) from error
        try:
            yield SandboxPlace(sandbox)
        finally:
            with _as_place():
                await sandbox.close()

    return open_place


def spec_for(
    task: Task, *, socket: Path, binds: tuple[Bind, ...], env: Mapping[str, str], lives_s: float
) -> Spec:
    """Return the sandbox in which a harness works on a task, with a proxy's socket its only way."""
    return Spec(
        network=Network.PROXY_ONLY,
        proxy=socket,
        env=env,
        workdir=task.workdir,
        binds=binds,
        limits=replace(limits_of(task), deadline_s=lives_s),
    )


def limits_of(task: Task) -> Limits:
    """Return the sandbox's own limits, with those that the task names."""
    asked = task.config.environment
    limits = Limits(cpus=asked.cpus)
    if asked.memory_mb is not None:
        limits = replace(limits, memory_bytes=asked.memory_mb * MIB)
    if asked.storage_mb is not None:
        limits = replace(limits, disk_bytes=asked.storage_mb * MIB)
    return limits


@contextmanager
def _as_place() -> Iterator[None]:
    """Name a sandbox's failures as a place's; a refused spec stays what it is."""
    try:
        yield
    except Refused:
        raise
    except SandboxError as error:
        is_full = isinstance(error, FileFailed) and error.errno in _FULL
        raise (NoRoom if is_full else PlaceFailed)(str(error)) from error
