"""The interface of every backend: `Backend` makes a `Sandbox`, which runs an `Execution`.

The contract, held by `budwood.sandbox.testing` on every backend:

- `Backend.create` is idempotent by id. It returns at once; `Sandbox.ready` waits.
- A spec that asks for what the backend lacks is refused by name before anything starts.
- All commands of a sandbox share its files, processes and loopback. What a command leaves running
  lives on after it, until `kill_all` or the end of the sandbox; nothing outlives the sandbox, nor
  the process that holds its backend.
- How a command ended is data (`Exit`). That the sandbox itself is gone is an error: `Closed`,
  `Deadline` or `Lost`, raised by whatever was waiting for it.
- What comes out of a sandbox was written by the policy. Paths are resolved inside it, so that no
  link leads to a file of the host.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Self

from .capabilities import Capabilities
from .errors import Refused
from .files import Entry, Stats
from .output import Capture, Completed, Exit, Frame, Spool, Stream
from .spec import SandboxId, Spec

Command = str | Sequence[str]
"""A list of words runs that program; one string runs `/bin/sh -c`."""
Input = bytes | AsyncIterable[bytes] | None
KEEP_BYTES = 1024**2


class Execution(ABC):
    """A command that runs: iterate its frames to the end, then look at `exit`.

    Only what is iterated is read, so a slow reader slows the command. Leaving the block before the
    end kills the command and all that it started.
    """

    exit: Exit | None = None
    """How it ended; None while it runs or has frames left."""

    @abstractmethod
    def __aiter__(self) -> AsyncIterator[Frame]:
        """Yield frames until the command has ended and all it wrote was read."""

    @abstractmethod
    async def signal(self, number: int) -> None:
        """Send a signal to the command's process group; nothing happens where it has ended."""

    @abstractmethod
    async def kill(self) -> None:
        """Kill the command and all that it started, whatever sessions and groups they moved to."""

    async def wait(self) -> Exit:
        """Read what is left, drop it, and return how the command ended."""
        async for _ in self:
            pass
        assert self.exit is not None
        return self.exit


class Sandbox(ABC):
    """One isolated place; made by `Backend.create`, ended by `close` or by leaving its block."""

    id: SandboxId
    spec: Spec

    @abstractmethod
    async def ready(self, deadline_s: float | None = None) -> None:
        """Wait until commands can run.

        Raises StartFailed with the reason, or Deadline where `deadline_s` passes first (the sandbox
        goes on starting).
        """

    @property
    @abstractmethod
    def workdir(self) -> str:
        """The absolute path inside where commands start; known once it is ready."""

    @property
    @abstractmethod
    def proxy_address(self) -> str:
        """`127.0.0.1:PORT`, as seen inside, where `Spec.proxy` answers; known once it is ready."""

    @abstractmethod
    def exec(
        self,
        command: Command,
        *,
        stdin: Input = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        deadline_s: float | None = None,
        grace_s: float = 2.0,
    ) -> AbstractAsyncContextManager[Execution]:
        """Run a command; the block holds it.

        Without `stdin` it reads an empty input. `env` comes on top of the spec's. `cwd` is absolute
        or relative to the workdir. `user` is a name or uid inside; None is the sandbox's own, and
        any other is refused where there is none (`Feature.USERS`). After `deadline_s` the command
        and all it started get SIGTERM, and SIGKILL `grace_s` later; without one only the sandbox's
        deadline holds. A program that
        can't be run ends with code 127 (not there) or 126, and says so on stderr, as in a shell.
        Raises StartFailed where no process can be made, and Refused for a user that can't be.
        """

    async def run(
        self,
        command: Command,
        *,
        stdin: Input = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        deadline_s: float | None = None,
        grace_s: float = 2.0,
        keep_bytes: int = KEEP_BYTES,
        spool: Spool | None = None,
    ) -> Completed:
        """Run a command to its end and keep the first and last `keep_bytes` of each stream.

        `spool` gets the whole output.
        """
        kept = {stream: Capture(keep_bytes) for stream in Stream}
        running = self.exec(
            command, stdin=stdin, env=env, cwd=cwd, user=user, deadline_s=deadline_s,
            grace_s=grace_s,
        )  # fmt: skip
        with spool or nullcontext():
            async with running as execution:
                async for frame in execution:
                    kept[frame.stream].add(frame.data)
                    if spool:
                        spool.add(frame)
        assert execution.exit is not None
        return Completed(
            execution.exit, kept[Stream.STDOUT].captured(), kept[Stream.STDERR].captured()
        )

    @abstractmethod
    async def put(
        self, path: str, data: bytes | AsyncIterable[bytes], *, mode: int = 0o644
    ) -> None:
        """Write a file whole or not at all, with its parents; raises FileFailed.

        A path that is there is replaced, a link too (not what it leads to). Paths of all file
        operations are absolute or relative to the workdir.
        """

    @abstractmethod
    def get(self, path: str) -> AsyncGenerator[bytes]:
        """Yield the bytes of a file; raises FileFailed. Only regular files are read.

        Who leaves before the end closes it (`contextlib.aclosing`): the policy decides how much
        comes, and a file may be longer than any disk.
        """

    @abstractmethod
    async def put_tree(self, path: str, tar: AsyncIterable[bytes]) -> None:
        """Unpack an uncompressed tar into a folder, made if need be; raises FileFailed.

        Members that are absolute, lead outside the folder, or are no file, folder or link are
        refused.
        """

    @abstractmethod
    def get_tree(self, path: str) -> AsyncGenerator[bytes]:
        """Yield a file or folder as a tar, names relative to it.

        The policy wrote it: unpack it with `archive.unpack`, which lets nothing out of its folder.
        """

    @abstractmethod
    async def list(self, path: str) -> list[Entry]:
        """Return what a folder holds, by name; raises FileFailed, also where it is too much."""

    @abstractmethod
    async def stat(self, path: str) -> Entry:
        """Return what is said of a path; raises FileFailed."""

    @abstractmethod
    async def kill_all(self) -> None:
        """Kill every process of the sandbox and return when none is left; the files stay."""

    @abstractmethod
    async def stats(self) -> Stats:
        """Return what the sandbox uses now."""

    @abstractmethod
    async def touch(self, ttl_s: float) -> None:
        """Let the sandbox live for `ttl_s` from now, though never past its deadline."""

    @abstractmethod
    async def close(self) -> None:
        """End every process, remove everything, and return when it is done; again does nothing.

        Raises Stuck where something could not be ended or removed.
        """

    async def __aenter__(self) -> Self:
        """Wait until it is ready."""
        try:
            await self.ready()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Backend(ABC):
    """Makes sandboxes; open it with `async with`, its end closes all of them."""

    capabilities: Capabilities

    @abstractmethod
    async def create(self, spec: Spec, sandbox_id: SandboxId | None = None) -> Sandbox:
        """Return the sandbox of that id, and start it where there is none; returns at once.

        Raises Refused where the spec asks for what is not there, or the id has another spec; Closed
        where the id was closed or removed before; NoCapacity where the backend is full.
        """

    @abstractmethod
    def sandboxes(self) -> list[Sandbox]:
        """Return the sandboxes that are not closed."""

    @abstractmethod
    async def remove(self, sandbox_id: SandboxId) -> None:
        """Close the sandbox of that id; where there is none yet, none can be made any more."""

    @abstractmethod
    async def __aenter__(self) -> Self:
        """Find out what this machine can; raises StartFailed with what to do where it can't."""

    @abstractmethod
    async def __aexit__(self, *_: object) -> None: ...


def checked_id(backend: str, sandbox_id: SandboxId) -> SandboxId:
    """Return an id that names a folder, a pod and a cgroup; raises Refused for one that can't."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", sandbox_id):
        wanted = "1 to 63 letters, digits, '-' and '_', the first a letter or digit"
        raise Refused(backend, (f"id {sandbox_id!r}: must be {wanted}",))
    return sandbox_id
