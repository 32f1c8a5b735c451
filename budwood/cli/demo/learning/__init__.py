"""The demo's second half: from tasks to a better model, on real sandboxes and real vLLM.

    lazy teacher ─▶ recordings ─▶ SFT ─┬─▶ rollouts ⇄ GRPO ─────────▶ held-out variants
                                       └─▶ the same, advantages shuffled ─▶ held-out variants

The base model copies names (`proxy/testing/copying_model.py`) and knows nothing else. It imitates
recordings of a teacher that is lazy at two tasks of five; SFT stops early, after a fixed number of
steps. What is left to reinforcement learning is to find out that lazy answers earn nothing. It sees
react and pi; mini-swe-agent is only tried afterwards.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..screen import DemoFailed, Place

if TYPE_CHECKING:
    from budwood.trajectory_store import Store

    from .imitation import Imitation
    from .lessons import Lessons
    from .verdict import Verdict

HARNESSES = ("react", "pi", "mini-swe-agent")
MODEL = "budwood-copying"
MAX_MODEL_LEN = 16_384


def check_installed() -> None:
    """Raise DemoFailed where the second half could not be done here: before the first is."""
    from budwood.harness_adapters import HarnessError
    from budwood.rollouts.harnesses import harness_named
    from budwood.sandbox import SandboxError
    from budwood.sandbox.local import LocalBackend

    from .lessons import require_templates

    require_templates()
    try:
        for name in HARNESSES:
            harness_named(name)
        asyncio.run(LocalBackend().look())
    except (HarnessError, SandboxError) as error:
        raise DemoFailed(str(error)) from error


def run(place: Place) -> Verdict:
    """Run it; return the table. Raises DemoFailed."""
    from budwood.harness_adapters import HarnessError
    from budwood.proxy.engine import EngineError
    from budwood.rollouts import RolloutError
    from budwood.sandbox import SandboxError
    from budwood.trainers import TrainerError
    from budwood.trajectory_store import Store, StoreError

    from .imitation import imitation, make_base, record_teacher
    from .lessons import lessons

    clock = place.clock
    clock.say(
        "second half: tasks, rollouts in sandboxes, SFT, GRPO, new weights into running vLLM; "
        "about 15 minutes on 2 idle cores"
    )
    os.environ["OMP_NUM_THREADS"] = "1"  # small matrices lose time to thread hand-offs
    broken = (HarnessError, EngineError, RolloutError, SandboxError, TrainerError, StoreError)
    try:
        found = lessons(place.folder / "tasks")
        with Store.open(place.folder / "learning.db") as store:
            record_teacher(place, store, found)
            clock.say("making a model of 3 layers that copies names and knows nothing else")
            base = place.folder / MODEL
            make_base(store, base)
            with imitation(place, base) as sft:
                return _learn(place, store, found, base, sft)
    except (ExceptionGroup, OSError, *broken) as failed:
        error = failed
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, (OSError, *broken)):
            raise DemoFailed(f"{type(error).__name__}: {error}") from failed
        raise


def _learn(place: Place, store: Store, found: Lessons, base: Path, sft: Imitation) -> Verdict:
    from pydantic import SecretStr

    from budwood.trainers import Served, SyncSettings, WeightSync

    from ..engine import engine_of
    from .lab import MAX_TOKENS, lab
    from .school import School
    from .verdict import BEFORE, CONTROL, RL, SFT

    async def learn(engine: str) -> Verdict:
        async with lab(place, store, engine) as bench:
            settings = SyncSettings(
                engines=(engine,),
                proxies=(bench.gateway.admin_url,),
                admin_secret=SecretStr(bench.gateway.admin_secret),
            )
            async with WeightSync(settings, serving=Served(base, 0, "base")) as sync:
                school = School(place, store, found, bench, sync)
                await school.exam(BEFORE)
                weights, last_step = await sft.ended()
                place.clock.say(f"SFT is done: {last_step}")
                await school.take(weights)
                await school.exam(SFT)
                await school.reinforce(RL)
                await school.exam(RL)
                await school.reinforce(CONTROL)
                await school.exam(CONTROL)
                return school.verdict()

    # A limit for harnesses that set none: what knows nothing would talk to its window's end.
    limit = ("--override-generation-config", f'{{"max_new_tokens": {MAX_TOKENS}}}')
    with engine_of(
        place, base, name=MODEL, max_model_len=MAX_MODEL_LEN, dev_routes=True, extra=limit
    ) as engine:
        return asyncio.run(learn(engine.url))
