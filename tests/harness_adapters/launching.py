"""A harness launched in a real local sandbox, before a real proxy and a scripted engine."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from budwood.harness_adapters import (
    ADAPTERS,
    Ended,
    Endpoint,
    HarnessResult,
    Installation,
    LaunchContext,
    Prepared,
    find_installation,
)
from budwood.proxy.testing import Reply, ScriptedEngine
from budwood.proxy.testing.running import TestProxy, proxy_for_tests
from budwood.sandbox import (
    Completed,
    LocalSettings,
    Network,
    Sandbox,
    Spec,
    backend_named,
    unpack,
)
from budwood.trajectory_store import Store

HOME = "/home/agent/.budwood"
END_OF_MINI = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


@dataclass
class Ran:
    """One launch, ended."""

    result: HarnessResult
    done: Completed
    prepared: Prepared
    artifacts: dict[str, bytes]
    calls: list[Any]
    requests: list[dict[str, Any]]
    secret: str


@dataclass
class Launcher:
    """One harness in one open sandbox."""

    name: str
    sandbox: Sandbox
    installation: Installation
    proxy: TestProxy
    store: Store
    engine: ScriptedEngine
    scratch: Path

    async def __call__(
        self, instruction: str, *, max_turns: int | None = None, timeout_s: float = 240.0,
        **rollout: Any,
    ) -> Ran:  # fmt: skip
        adapter = ADAPTERS[self.name]
        assert adapter.launch is not None
        opened = await self.proxy.open_rollout(harness=self.name, **rollout)
        secret = opened.secret
        base_url = f"http://{self.sandbox.proxy_address}/r/{secret}/v1"
        ctx = LaunchContext(
            instruction=instruction,
            workdir=self.sandbox.workdir,
            home=HOME,
            endpoint=Endpoint(base_url, secret, "scripted", 131_072, 4_096),
            max_turns=max_turns,
            timeout_s=timeout_s,
        )
        prepared = adapter.prepare(ctx, self.installation)
        for name, text in prepared.files.items():
            await self.sandbox.put(f"{HOME}/{name}", text.encode(), mode=0o600)
        done = await self.sandbox.run(
            list(prepared.argv), stdin=prepared.stdin, env=prepared.env, cwd=ctx.workdir,
            deadline_s=timeout_s,
        )  # fmt: skip
        artifacts = await self.artifacts(adapter.launch.artifacts)
        streams = [each.head + each.tail for each in (done.stdout, done.stderr)]
        ended = Ended(
            exit_code=done.exit.code, stdout=streams[0], stderr=streams[1], artifacts=artifacts
        )
        await self.proxy.settled()
        calls = sorted(self.store.calls(opened.id), key=lambda call: call.seq or 0)
        requests = [json.loads(self.store.request_body(call.id)) for call in calls]
        result = adapter.launch.parse(ended)
        return Ran(result, done, prepared, artifacts, calls, requests, secret)

    async def artifacts(self, globs: Sequence[str]) -> dict[str, bytes]:
        kept = self.scratch / "home"
        await self.sandbox.run(["mkdir", "-p", HOME])
        await unpack(self.sandbox.get_tree(HOME), kept)
        files = {str(path.relative_to(kept)): path for path in kept.rglob("*") if path.is_file()}
        return {
            name: path.read_bytes()
            for name, path in files.items()
            if any(fnmatch(name, glob) for glob in globs)
        }


@asynccontextmanager
async def launcher(
    name: str, script: Any, scratch: Path, *, workdir: str = "/work", **settings: Any
) -> AsyncIterator[Launcher]:
    """A sandbox with the harness in it, whose only network is a proxy before `script`."""
    adapter = ADAPTERS[name]
    assert adapter.launch is not None
    installation = find_installation(name, adapter.launch.program)
    with Store.open(scratch / "store.db") as store:
        async with (
            ScriptedEngine(script) as engine,
            proxy_for_tests(engine.url, store, socket=scratch / "proxy.sock", **settings) as proxy,
            backend_named("local", LocalSettings(root=scratch / "sandboxes")) as backend,
        ):
            spec = Spec(
                workdir=workdir,
                network=Network.PROXY_ONLY,
                proxy=scratch / "proxy.sock",
                binds=installation.binds,
            )
            async with await backend.create(spec) as sandbox:
                yield Launcher(name, sandbox, installation, proxy, store, engine, scratch)


def commands(name: str, *lines: str, final: str = "It is done.") -> list[Reply]:
    """Say some shell commands in a harness's own way, one a turn, then that it is done."""
    said = [Reply(reasoning="I go on.", tool_calls=[("bash", {"command": line})]) for line in lines]
    if name == "mini-swe-agent":
        return [*said, Reply(tool_calls=[("bash", {"command": f"{END_OF_MINI}; echo {final}"})])]
    return [*said, Reply(final)]
