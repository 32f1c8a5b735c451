"""What this version can't give a task, by name.

A task that asks for it is refused before anything starts: a task run without it would be another
task, and its reward a wrong one.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import Problem, UnsupportedTask
from .config import TaskConfig
from .environment import Environment
from .folder import Task
from .network import Network

_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")


def require_runnable(task: Task, *, has_image: bool = False, as_local: bool = False) -> None:
    """Raise UnsupportedTask if the task asks for anything that can't be given.

    has_image: the sandbox is made from the task's own image.
    as_local: somebody says by name that the host's programs will do instead.
    """
    problems = list(unsupported(task, has_image=has_image, as_local=as_local))
    if problems:
        raise UnsupportedTask(task.name, problems)


def unsupported(
    task: Task, *, has_image: bool = False, as_local: bool = False
) -> Iterator[Problem]:
    """Yield each thing the task asks for that can't be given, under its key."""
    if not has_image and not task.is_local and not as_local:
        yield Problem(
            "environment",
            "wants an image, and there is none here; if the programs of this host are enough, "
            "write `local = true` below [metadata.budwood]",
        )
    for name in _COMPOSE:
        if (task.environment_dir / name).exists():
            yield _not_yet(f"environment/{name}", "several containers")
    if (task.folder / "trajectory.json").exists():
        yield _not_yet("trajectory.json", "a conversation that came before")
    yield from _of_config(task.config)


def _of_config(config: TaskConfig) -> Iterator[Problem]:
    if config.steps:
        yield _not_yet("steps", "tasks of several steps")
    if config.artifacts:
        yield _not_yet("artifacts", "keeping artifacts")
    yield from _of_environment("environment", config.environment)
    yield from _of_network("agent", config.agent)
    yield from _of_network("verifier", config.verifier)
    for table, user in (("agent", config.agent.user), ("verifier", config.verifier.user)):
        if user is not None:
            yield _not_yet(f"{table}.user", "users other than the sandbox's own")
    if config.verifier.is_separate:
        yield _not_yet("verifier.environment", "a verifier in an environment of its own")
    if config.verifier.collect:
        yield _not_yet("verifier.collect", "commands that collect for a separate verifier")


def _of_environment(table: str, environment: Environment) -> Iterator[Problem]:
    yield from _of_network(table, environment)
    if environment.os == "windows":
        yield _not_yet(f"{table}.os", "Windows")
    wanted = {
        "gpus": (environment.gpus, "GPUs in a sandbox"),
        "gpu_types": (environment.gpu_types, "GPUs in a sandbox"),
        "tpu": (environment.tpu, "TPUs in a sandbox"),
        "mcp_servers": (environment.mcp_servers, "MCP servers"),
        "skills_dir": (environment.skills_dir, "skills"),
        "healthcheck": (environment.healthcheck, "health checks"),
    }
    for key, (value, what) in wanted.items():
        if value:
            yield _not_yet(f"{table}.{key}", what)


def _of_network(table: str, network: Network) -> Iterator[Problem]:
    """A sandbox reaches the proxy and nothing else; a task that says nothing gets just that."""
    if network.network_mode in ("public", "allowlist"):
        yield Problem(
            f"{table}.network_mode",
            f'"{network.network_mode}" is not supported yet: a sandbox reaches the model and '
            'nothing else; if that is enough, write "no-network"',
        )


def _not_yet(key: str, what: str) -> Problem:
    return Problem(key, f"{what}: not supported yet; take it out, or leave this task out")
