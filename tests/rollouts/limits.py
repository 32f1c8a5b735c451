"""Rollouts whose agent runs into a limit, or leaves something behind so that nobody can grade it.

Each is one whole attempt at a small task. The tests hold them to what is wanted, and
`python -m tests.probes` prints them.
"""

import asyncio
import os
import secrets
from dataclasses import dataclass, replace
from pathlib import Path

from budwood.rollouts.attempt import Rules
from budwood.rollouts.harnesses import Harness, harness_named
from budwood.sandbox import SandboxId
from budwood.sandbox.testing import MARK, processes_of

from .scripted import TEST, Model, running, write, write_task

TIMEOUT_S = 15.0
"""For the agent; enough to start and do its work on a busy machine."""
SMALL_DISK = "[environment]\nstorage_mb = 20\n"
LITTLE_MEMORY = "[environment]\nmemory_mb = 200\n"
AGENT_ENDS = "sys.exit(main())"
RUNS_WORK = "#!/bin/sh\n./work\necho 0 > /logs/verifier/reward.txt\n"
"""A verifier that runs what the agent made."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What an agent does, and the outcome that its rollout must have."""

    commands: tuple[str, ...]
    wanted: tuple[str, str | None, float | None]
    """Class, cause and reward."""
    toml: str = ""
    test: str = TEST
    harness_ends: str = ""
    """What the harness does in place of its end, a line of Python."""


def _after_work(command: str, cause: str, reward: float = 1.0, toml: str = "") -> Probe:
    """The work is done first: it is graded, whatever limit is run into after it."""
    return Probe(commands=(write("right"), command), wanted=("policy", cause, reward), toml=toml)


def _at_the_end(line: str, cause: str, reward: float = 1.0, toml: str = "") -> Probe:
    """The work is done, and then it is the harness that does not end."""
    return Probe(
        commands=(write("right"),), wanted=("policy", cause, reward), toml=toml, harness_ends=line
    )


def _instead_of_work(command: str, test: str = TEST) -> Probe:
    """Nothing is done, and that is what the verifier must find."""
    return Probe(commands=(command,), wanted=("none", None, 0.0), test=test)


def _by_verifier(work: str, cause: str) -> Probe:
    """What the verifier runs goes wrong: nobody has judged."""
    make = f"printf '#!/bin/sh\\n{work}\\n' > work; chmod +x work"
    return Probe(commands=(make,), wanted=("verifier", cause, None), test=RUNS_WORK)


LIMITS = {
    "sleeps": _after_work("sleep 1000", "out_of_time"),
    "ignores SIGTERM": _after_work(
        "trap '' TERM INT HUP; while :; do sleep 1; done", "out_of_time"
    ),
    "prints without end in a command": _after_work("cat /dev/zero >&2 & yes", "out_of_time"),
    "prints without end as the harness": _at_the_end(
        "while True: print('x' * 9999)", "out_of_output"
    ),
    "prints errors without end as the harness": _at_the_end(
        "while True: print('x' * 9999, file=sys.stderr)", "out_of_output"
    ),
    "logs without end as the harness": _at_the_end(
        "log = open('log', 'w')\n    while True: print('x' * 9999, file=log)",
        "out_of_disk", 0.0, SMALL_DISK,
    ),
    "takes memory": _after_work("tail /dev/zero", "out_of_memory", toml=LITTLE_MEMORY),
    "fills the disk": _after_work(
        "cat /dev/zero > f", "out_of_disk", 0.0, SMALL_DISK
    ),
    "fills the disk with a log that it keeps open": _after_work(
        "exec 3> log; rm log; (setsid sh -c 'cat /dev/zero >&3; sleep 1000' &); sleep 2",
        "out_of_disk", 1.0, SMALL_DISK,
    ),
    "forks without end": _after_work("f() { f | f & }; f; sleep 5", "out_of_processes"),
}  # fmt: skip

LEFT_BEHIND = {
    "closes every folder": _instead_of_work(
        "mkdir /tests; chmod 0 /tests /logs/verifier /logs /app /home/agent; chmod 0 /"
    ),
    "lays what can't be removed where the tests go": _instead_of_work(
        "for x in /tests/a /logs/verifier/reward.txt /logs/verifier/ctrf.json; do"
        " mkdir -p $x/b; touch $x/b/c; chmod 0 $x/b $x; done"
    ),
    "lays a link where the tests go": _instead_of_work(
        "mkdir x; ln -s /app/x /tests; rm -r /logs; ln -s /app/x /logs"
    ),
    "leaves a reward": _instead_of_work("echo 1 > /logs/verifier/reward.txt"),
    "leaves a process that waits for the tests": _instead_of_work(
        "(setsid sh -c 'while [ ! -e /tests/test.sh ]; do :; done; echo right > /app/out.txt' &)"
    ),
    "leaves too little room for the tests": Probe(
        commands=("cat /dev/zero > f; truncate -s -20480 f",),
        wanted=("policy", "out_of_disk", 0.0),
        toml=SMALL_DISK,
        test=TEST + "# 0123456789\n" * 10_000,
    ),
}  # fmt: skip

BY_VERIFIER = {
    "work that prints without end": _by_verifier("yes", "verifier_killed"),
    "work that prints errors without end": _by_verifier("cat /dev/zero >&2", "verifier_killed"),
    "work that leaves a reward of any size": Probe(
        commands=("printf '#!/bin/sh\\ntruncate -s 1T $1\\n' > work; chmod +x work",),
        wanted=("verifier", "reward_unreadable", None),
        test="#!/bin/sh\n./work /logs/verifier/reward.txt\n",
    ),
}  # fmt: skip

PROBES = {**LIMITS, **LEFT_BEHIND, **BY_VERIFIER}


@dataclass(frozen=True)
class Seen:
    """What came of a probe."""

    outcome: tuple[str, str | None, float | None]
    """As it is in the store: class, cause and reward."""
    left: list[str]
    """Processes, folders and control groups that are still there."""


async def seen(probe: Probe, folder: Path) -> Seen:
    """Make the attempt and return its outcome, and what it left on this machine."""
    mark = SandboxId(f"sb_{secrets.token_hex(6)}")
    toml = f'{probe.toml}[environment.env]\n{MARK} = "{mark}"\n'
    task = write_task(folder / "tasks" / "right", test=probe.test, toml=toml)
    async with running(folder, Model({"right": probe.commands})) as go:
        done = await go(
            [task], retries=0, rules=Rules(timeout_s=TIMEOUT_S), harness=_react(probe, folder)
        )
        (rollout,) = go.store.rollouts(done.run.id)
        found = go.store.outcome(rollout.id)
        left = [*map(str, go.backend.sandboxes()), *processes_of(mark)]
        left += await asyncio.to_thread(_traces, folder / "sandboxes")
    return Seen((found.failure_class.value, found.cause, found.reward), left)


def _react(probe: Probe, folder: Path) -> Harness:
    """Return react, with another end where the probe has one."""
    react = harness_named("react")
    if not probe.harness_ends:
        return react
    [agent] = [bind.source for bind in react.installation.binds if bind.source.name == "agent.py"]
    changed = folder / "agent.py"
    text = agent.read_text()
    assert text.count(AGENT_ENDS) == 1
    changed.write_text(text.replace(AGENT_ENDS, f"main()\n    {probe.harness_ends}"))
    binds = [
        replace(bind, source=changed) if bind.source == agent else bind
        for bind in react.installation.binds
    ]
    return replace(react, installation=replace(react.installation, binds=tuple(binds)))


def _traces(root: Path) -> list[str]:
    """Return folders of sandboxes, and control groups, of the backends below a root."""
    backends = [folder.name for folder in root.glob("be_*")]
    groups = [
        folder
        for folder, _, _ in os.walk("/sys/fs/cgroup")
        if os.path.basename(folder).startswith(tuple(backends))
    ]
    return [*map(str, root.glob("be_*/sb_*")), *groups]
