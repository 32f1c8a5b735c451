"""Where the demo's rollouts are made: one proxy, real sandboxes, and runs of some tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from budwood.proxy import ProxySettings
from budwood.proxy.engine import EngineSettings
from budwood.proxy.settings import SamplingPolicy
from budwood.rollouts.attempt import Rules
from budwood.rollouts.gateway import OwnProxy, own_proxy
from budwood.rollouts.harnesses import harness_named
from budwood.rollouts.run import Plan, carry_out
from budwood.rollouts.tasks import Task
from budwood.sandbox import Backend, LocalSettings, backend_named
from budwood.trajectory_store import Purpose, Run, Store

from ..screen import DemoFailed, Place

CONCURRENCY = 6
"""More than there are cores: vLLM answers many at the price of one."""
MAX_TURNS = 3
MAX_TOKENS = 96
"""Of one answer while training; the longest right one has some 60."""
TEMPERATURE = 1.0


@dataclass(frozen=True)
class Lab:
    """Makes rollouts and reports on them."""

    place: Place
    store: Store
    backend: Backend
    gateway: OwnProxy

    async def rollouts(
        self,
        name: str,
        tasks: Sequence[Task],
        harnesses: Sequence[str],
        *,
        attempts: int = 1,
        purpose: Purpose = Purpose.EVAL,
    ) -> Run:
        """Make a run of attempts; raises DemoFailed where one has no outcome that counts."""
        plan = Plan(
            name=name,
            tasks=tasks,
            harnesses=[harness_named(each) for each in harnesses],
            attempts=attempts,
            purpose=purpose,
            rules=Rules(max_turns=MAX_TURNS),
        )
        done = await carry_out(
            plan, self.store, self.backend, self.gateway, self.place.folder / "runs",
            concurrency=CONCURRENCY,
        )  # fmt: skip
        lost = [tried for tried in done.tried if not tried.judged.counts]
        if lost:
            why = "; ".join(f"{one.judged.failure_class.value}: {one.judged.why}" for one in lost)
            raise DemoFailed(f"{len(lost)} rollouts of {name} have no outcome: {why[:1000]}")
        return done.run


@asynccontextmanager
async def lab(place: Place, store: Store, engine: str) -> AsyncIterator[Lab]:
    """Open a proxy before an engine, and the sandboxes, as long as the context is open."""
    settings = ProxySettings.model_validate(
        {
            "engine": EngineSettings(urls=(engine,)),
            "sampling": SamplingPolicy(temperature=TEMPERATURE, max_tokens=MAX_TOKENS),
        }
    )
    async with (
        backend_named("local", LocalSettings(max_sandboxes=64)) as backend,
        own_proxy(settings, store) as gateway,
    ):
        yield Lab(place, store, backend, gateway)
