"""A recorded rollout made again in a fresh sandbox, on its stored answers.

The harness gets what it got then: the task's files, its own version, what it was told of the model,
its limits. The engine is not asked. Whether its requests are those of then says the replay.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from budwood.harness_adapters import Endpoint, Told
from budwood.sandbox import Backend, Completed
from budwood.trajectory_store import Rollout, Run

from .attempt import SLACK_S, Rules
from .errors import RunRefused
from .gateway import bridge
from .harnesses import Harness
from .sandbox_place import SandboxPlace, spec_for
from .tasks import Task, fill, prepare


@dataclass(frozen=True, slots=True)
class Setting:
    """How a rollout of `budwood run` was made."""

    task: Task
    harness: Harness
    told: Told
    rules: Rules


def setting_of(run: Run, rollout: Rollout, task: Task, harness: Harness, rules: Rules) -> Setting:
    """Return how to make a rollout again; raises RunRefused where it would be another one.

    rules: for the variables alone; limits are those of the run.
    """
    plan = run.settings.get("plan")
    if not isinstance(plan, dict):
        raise RunRefused(f"{rollout.id} was not made by `budwood run`: replay it with its command")
    if rollout.labels.get("checksum") != task.checksum:
        raise RunRefused(
            f"{rollout.id} was made with another version of the task {task.name}: its prompt and "
            "files may differ; name the folder of then"
        )
    if rollout.harness_version != harness.installation.version:
        raise RunRefused(
            f"{rollout.id} was made by {rollout.harness} {rollout.harness_version}, and "
            f"{harness.installation.version} is installed: `budwood harness install`"
        )
    told, limits = plan["model"], plan["rules"]
    return Setting(
        task,
        harness,
        Told(told["model"], told["context_window"], told["max_output"]),
        Rules(
            timeout_s=limits["timeout_s"],
            max_turns=limits["max_turns"],
            variables=rules.variables,
        ),
    )


async def replay_in_sandbox(
    setting: Setting, base_url: str, secret: str, backend: Backend, give_up: asyncio.Event
) -> Completed | None:
    """Run the harness against the replay at `base_url`; return how it ended, None if given up.

    base_url: with the secret in its path, without `/v1`. Raises SandboxError, RolloutError.
    """
    task, rules = setting.task, setting.rules
    timeout_s = rules.timeout_of(task)
    with TemporaryDirectory(prefix="budwood-replay-") as folder:
        socket = Path(folder) / "proxy.sock"
        spec = spec_for(
            task,
            socket=socket,
            binds=setting.harness.installation.binds,
            env=fill(task.config.environment.env, rules.variables, table="environment"),
            lives_s=timeout_s + SLACK_S,
        )
        async with bridge(socket, base_url), await backend.create(spec) as sandbox:
            await prepare(task, SandboxPlace(sandbox))
            endpoint = Endpoint(
                base_url=f"http://{sandbox.proxy_address}/r/{secret}/v1",
                secret=secret,
                model=setting.told.model,
                context_window=setting.told.context_window,
                max_output=setting.told.max_output,
            )
            prepared = await setting.harness.lay_out(
                sandbox, task.instruction, endpoint,
                max_turns=rules.max_turns, timeout_s=timeout_s,
            )  # fmt: skip
            async with asyncio.TaskGroup() as group:
                running = group.create_task(
                    sandbox.run(
                        list(prepared.argv), env=prepared.env, cwd=task.workdir,
                        stdin=prepared.stdin, deadline_s=timeout_s,
                    )
                )  # fmt: skip
                giving_up = group.create_task(give_up.wait())
                await asyncio.wait({running, giving_up}, return_when=asyncio.FIRST_COMPLETED)
                giving_up.cancel()
                if not running.done():
                    running.cancel()
                    return None
            return running.result()
