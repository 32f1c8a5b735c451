"""What a check works on: an open backend, and specs that fit it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from ..errors import Refused, SandboxError
from ..interface import Backend, Sandbox
from ..limits import Enforcement, Limit, Limits
from ..spec import Isolation, Network, SandboxId, Spec

FIELDS = {
    "time": "deadline_s", "output": "output_bytes", "memory": "memory_bytes", "pids": "pids",
    "disk": "disk_bytes", "cpu": "cpus",
}  # fmt: skip
MARK = "BUDWOOD_CHECK"
"""A variable of every command of a check, by which a process left behind is found."""


async def _no_traces(_: SandboxId) -> list[str]:
    return []


class NotApplicable(Exception):
    """A check has nothing to see on this backend, by what its capabilities say."""


@dataclass(frozen=True)
class Bench:
    """A backend under test."""

    backend: Backend
    python: str = "python3"
    """A Python 3 inside, which the probes run on."""
    traces: Callable[[SandboxId], Awaitable[list[str]]] = _no_traces
    """Return what is left of a sandbox that is closed: processes, folders, mounts, groups."""

    def isolates(self) -> None:
        """Raise NotApplicable where nothing stands between a sandbox and its host."""
        if self.backend.capabilities.isolation is Isolation.NONE:
            raise NotApplicable("this backend does not isolate, and says so")

    def limits(self, limit: Limit) -> Enforcement:
        """Return how a limit is held; raises NotApplicable where it is not."""
        how = self.backend.capabilities.limits.get(limit)
        if how is None:
            raise NotApplicable(f"this backend can't hold the limit {limit}, and refuses it")
        return how

    def offers(self, *networks: Network) -> None:
        """Raise NotApplicable where none of these networks is there."""
        if not set(networks) & self.backend.capabilities.networks:
            raise NotApplicable(f"this backend has no network {' or '.join(networks)}")

    def spec(self, **changes: Any) -> Spec:
        """Return a spec that fits the backend; a limit named in `changes` is kept even if not."""
        has = self.backend.capabilities
        named = {name: changes.pop(name) for name in list(changes) if name in FIELDS.values()}
        lacking = {field: None for limit, field in FIELDS.items() if limit not in has.limits}
        limits = replace(Limits(), **{"deadline_s": 600.0, **lacking, **named})
        network = Network.NONE if Network.NONE in has.networks else Network.OPEN
        return Spec(**{"network": network, "limits": limits, **changes})

    def new_id(self) -> SandboxId:
        """Return an id that no sandbox has."""
        return SandboxId(f"sb_{secrets.token_hex(6)}")

    @asynccontextmanager
    async def sandbox(self, spec: Spec | None = None, **changes: Any) -> AsyncIterator[Sandbox]:
        """Open a sandbox, close it, and see that nothing of it is left."""
        sandbox_id = self.new_id()
        spec = spec or self.spec(**changes)
        spec = replace(spec, env={**spec.env, MARK: sandbox_id})
        try:
            async with await self.backend.create(spec, sandbox_id) as sandbox:
                yield sandbox
        finally:
            left = await self.traces(sandbox_id)
        assert left == [], f"left of {sandbox_id}: {left}"

    async def refuses(self, word: str, **changes: Any) -> None:
        """See that a spec is refused with a word of why, and nothing was started."""
        before = len(self.backend.sandboxes())
        error = await error_of(self.backend.create(self.spec(**changes)))
        assert isinstance(error, Refused), f"{word} was not refused: {changes}"
        assert word in str(error), f"{error} does not name {word}"
        assert len(self.backend.sandboxes()) == before

    async def says(self, sandbox: Sandbox, program: str, *words: str) -> str:
        """Run a Python program inside and return what it printed."""
        done = await sandbox.run([self.python, "-I", "-c", program, *words])
        assert done.is_success, (done.exit, done.stderr.text)
        return done.stdout.text.strip()


Check = Callable[[Bench], Awaitable[None]]


async def error_of(coming: Awaitable[Any]) -> SandboxError | None:
    """Return the error of this room that something ends with."""
    try:
        await coming
    except SandboxError as error:
        return error
    return None


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask again until it holds; for what nobody announces. The test's own limit ends it."""
    while not await condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def until_it_has(sandbox: Sandbox, at_least: int) -> None:
    """Wait until that many processes of commands are in a sandbox."""

    async def has_them() -> bool:
        return (await sandbox.stats()).n_processes >= at_least

    await until(has_them)
