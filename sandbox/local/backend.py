"""The local backends: sandboxes on this machine, without a daemon.

`local` isolates with bubblewrap's namespaces, as root or not. `local-unisolated` runs plain
processes and must be asked for by name.
"""

from __future__ import annotations

import asyncio
import secrets
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from ..capabilities import Capabilities, refuse_what_lacks
from ..errors import Closed, NoCapacity, Refused, StartFailed
from ..interface import Backend, Sandbox, checked_id
from ..limits import Enforcement, Limit
from ..spec import Isolation, Network, SandboxId, Spec
from .bubblewrap import isolated_ground, refused_paths
from .cgroup import Group, Tree, find_trees
from .folders import OwnFolder, default_root
from .ground import Ground, holding
from .host import Host, look
from .plain import plain_ground
from .sandbox import LocalSandbox
from .settings import LocalSettings

OURS = {Limit.TIME: Enforcement.BUDWOOD, Limit.OUTPUT: Enforcement.BUDWOOD}
NO_CGROUP = (
    "no control group can be made here: run as root, or delegate the controllers to this user "
    "(systemd: Delegate=yes)"
)


class _Local(Backend):
    """What both have in common: ids, places, and the task of each sandbox."""

    def __init__(self, settings: LocalSettings | None = None) -> None:
        """Take the settings; the machine is looked at when the backend is opened."""
        self._settings = settings or LocalSettings()
        self._sandboxes: dict[SandboxId, LocalSandbox] = {}
        self._removed: set[SandboxId] = set()
        self._trees: Mapping[Limit, Tree] = {}
        self._stack = AsyncExitStack()
        self._is_open = False

    @abstractmethod
    async def look(self) -> Capabilities:
        """Find out what this machine can; raises StartFailed with what to do where it can't."""

    @abstractmethod
    def _stand(self, spec: Spec, folder: Path, control_fd: int) -> Ground: ...

    @abstractmethod
    def _problems(self, spec: Spec) -> list[str]:
        """Return what of a spec can't be here, beyond its capabilities."""

    async def __aenter__(self) -> Self:
        """Look at the machine, and remove what dead backends left."""
        self.capabilities = await self.look()
        root = self._settings.root or default_root()
        try:
            self._folder = await asyncio.to_thread(OwnFolder, root)
        except OSError as error:
            raise StartFailed(f"no folder for sandboxes: {error}") from error
        self._stack = AsyncExitStack()
        self._stack.callback(self._folder.remove)
        self._tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
        self._is_open = True
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Close all sandboxes."""
        self._is_open = False
        try:
            async with asyncio.TaskGroup() as closing:
                for sandbox in list(self._sandboxes.values()):
                    closing.create_task(sandbox.close())
        finally:
            await self._stack.aclose()

    async def create(self, spec: Spec, sandbox_id: SandboxId | None = None) -> Sandbox:
        """Return the sandbox of that id, started where there is none."""
        name = self.capabilities.backend
        sandbox_id = checked_id(name, sandbox_id or SandboxId(f"sb_{secrets.token_hex(8)}"))
        if not self._is_open:
            raise Closed("the backend is closed")
        known = self._sandboxes.get(sandbox_id)
        if known is not None:
            if known.spec != spec:
                raise Refused(name, (f"id {sandbox_id}: a sandbox with another spec has it",))
            return known
        if sandbox_id in self._removed:
            raise Closed(f"sandbox {sandbox_id} was closed; choose another id")
        refuse_what_lacks(spec, self.capabilities)
        problems = self._problems(spec)
        if problems:
            raise Refused(name, tuple(problems))
        if len(self._sandboxes) >= self._settings.max_sandboxes:
            raise NoCapacity(
                f"{len(self._sandboxes)} local sandboxes are open, as many as max_sandboxes allows",
                self._settings.retry_after_s,
            )
        sandbox = self._sandboxes[sandbox_id] = self._made(spec, sandbox_id)
        self._tasks.create_task(self._host(sandbox))
        return sandbox

    def _made(self, spec: Spec, sandbox_id: SandboxId) -> LocalSandbox:
        held = holding(spec, set(self._trees))
        trees = {limit: self._trees[limit] for limit in held.groups}
        group_name = f"{self._folder.name}-{sandbox_id}"
        self._folder.note_groups(group_name, {tree.folder for tree in trees.values()})
        return LocalSandbox(
            sandbox_id,
            spec,
            folder=self._folder.path / sandbox_id,
            stand=self._stand,
            group=Group(group_name, trees),
            holding=held,
            settings=self._settings,
        )

    async def _host(self, sandbox: LocalSandbox) -> None:
        try:
            await sandbox.live()
        finally:
            self._removed.add(sandbox.id)
            del self._sandboxes[sandbox.id]

    def sandboxes(self) -> list[Sandbox]:
        """Return those that are not closed."""
        return list(self._sandboxes.values())

    async def remove(self, sandbox_id: SandboxId) -> None:
        """Close the sandbox of that id, now or before it is made."""
        self._removed.add(checked_id(self.capabilities.backend, sandbox_id))
        known = self._sandboxes.get(sandbox_id)
        if known is not None:
            await known.close()


class LocalBackend(_Local):
    """Sandboxes in namespaces of their own, by bubblewrap."""

    _host_found: Host

    async def look(self) -> Capabilities:
        """Try the namespaces and control groups that sandboxes need."""
        host = await asyncio.to_thread(look, self._settings.root_runs_as)
        self._host_found = host
        self._trees = host.trees
        limits = {**OURS, Limit.DISK: Enforcement.KERNEL}
        hints: dict[Limit, str] = {}
        limits[Limit.MEMORY] = (
            Enforcement.KERNEL if Limit.MEMORY in host.trees else Enforcement.WATCHED
        )
        if Limit.PIDS in host.trees or host.counts_processes:
            limits[Limit.PIDS] = Enforcement.KERNEL
        else:
            hints[Limit.PIDS] = f"it needs Linux 5.14 or later, or {NO_CGROUP}"
        return Capabilities(
            backend="local",
            isolation=Isolation.NAMESPACES,
            networks=frozenset({Network.NONE, Network.PROXY_ONLY}),
            limits=limits,
            hints=hints,
        )

    def _stand(self, spec: Spec, folder: Path, control_fd: int) -> Ground:
        return isolated_ground(spec, self._host_found, folder, control_fd)

    def _problems(self, spec: Spec) -> list[str]:
        return refused_paths(spec)


class UnisolatedBackend(_Local):
    """Plain processes of this user; nothing keeps them from the host but their own manners."""

    async def look(self) -> Capabilities:
        """Find the control groups that can be had; nothing else is needed."""
        self._trees = await asyncio.to_thread(find_trees)
        limits = {**OURS, Limit.MEMORY: Enforcement.WATCHED}
        limits |= {limit: Enforcement.KERNEL for limit in self._trees}
        return Capabilities(
            backend="local-unisolated",
            isolation=Isolation.NONE,
            networks=frozenset({Network.OPEN}),
            limits=limits,
            hints={
                Limit.PIDS: NO_CGROUP,
                Limit.DISK: "files are on the host's own disk; the backend local can hold it",
            },
            has_binds=False,
            has_own_root=False,
        )

    def _stand(self, spec: Spec, folder: Path, control_fd: int) -> Ground:
        return plain_ground(spec, folder, control_fd)

    def _problems(self, spec: Spec) -> list[str]:
        return []
