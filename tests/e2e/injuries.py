"""Real harm done to a run while it goes on: to its sandboxes, harnesses, verifiers, servers.

Processes are found by their place below the runner's own:

    budwood run ─▶ bwrap ─▶ process 1 of a sandbox ─▶ keeper of a command ─▶ the command ─▶ ...

where the first command of a sandbox that lasts is the harness.
"""

import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from budwood.rollouts.tasks import Task
from budwood.trajectory_store import FailureClass, Run, Store

WITHIN_S = 300.0
LOOK_EVERY_S = 0.02
HARNESS_DEPTH = 4
KILLS_ITSELF = "#!/bin/sh\nkill -9 $$\n"


def until(is_so: Callable[[], bool], what: str) -> None:
    """Wait for something to be so; raises TimeoutError that says what did not come."""
    deadline = time.monotonic() + WITHIN_S
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {WITHIN_S:g} s")
        time.sleep(LOOK_EVERY_S)


def children() -> dict[int, list[int]]:
    """Process → its children, of this machine."""
    found: dict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            found[int(fields[1])].append(int(folder.name))
    return found


def below(pid: int, depth: int) -> list[int]:
    """The processes that are `depth` generations below one."""
    tree = children()
    found = [pid]
    for _ in range(depth):
        found = [child for each in found for child in tree[each]]
    return found


def all_below(pid: int) -> list[int]:
    """Every process below one."""
    tree = children()
    found, left = [], [pid]
    while left:
        inner = tree[left.pop()]
        found += inner
        left += inner
    return found


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return " (zombie)" not in (Path("/proc") / str(pid) / "status").read_text()
    except OSError:
        return False


def harnesses(runner: int) -> list[int]:
    """The harnesses that run in sandboxes of a runner."""
    found = []
    for pid in below(runner, HARNESS_DEPTH):
        try:
            program = os.readlink(f"/proc/{pid}/exe")
        except OSError:
            continue
        if program.startswith("/opt/harness/"):
            found.append(pid)
    return found


def first_harness(runner: int) -> int:
    """A harness that runs, as soon as there is one."""
    found: list[int] = []

    def is_there() -> bool:
        found.extend(harnesses(runner))
        return bool(found)

    until(is_there, "a harness in a sandbox")
    return found[0]


def kill(pids: Sequence[int]) -> None:
    """SIGKILL each that still is."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def left_of(folder: Path) -> list[str]:
    """Command lines of processes that were started with what is below a folder."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                words = (
                    (process / "cmdline")
                    .read_bytes()
                    .replace(b"\0", b" ")
                    .decode("utf-8", "replace")
                )
                env = (process / "environ").read_bytes()
            except OSError:
                continue
            if str(folder) in words or f"TMPDIR={folder}".encode() in env:
                found.append(f"{process.name}: {words[:200]}")
    return found


def a_call_is_open(store: Store, run: Run) -> bool:
    """Whether a harness of the run waits for its model."""
    return any(
        store.progress(rollout.id)[2]
        for rollout in store.rollouts(run.id)
        if rollout.state == "open"
    )


def kill_a_sandbox(runner: int) -> None:
    """Kill all processes of one sandbox whose harness runs."""
    at_work = first_harness(runner)
    for sandbox in below(runner, 1):
        inner = all_below(sandbox)
        if at_work in inner:
            kill([sandbox, *inner])


def kill_a_harness(runner: int) -> None:
    """Kill a harness and nothing else of its sandbox."""
    kill([first_harness(runner)])


@contextmanager
def broken_verifiers(tasks: Sequence[Task]) -> Iterator[None]:
    """Have every verifier of tasks kill itself, as long as the context is open."""
    scripts = [task.tests_dir / "test.sh" for task in tasks]
    texts = [script.read_text() for script in scripts]
    try:
        for script in scripts:
            _replace(script, KILLS_ITSELF)
        yield
    finally:
        for script, text in zip(scripts, texts, strict=True):
            _replace(script, text)


def _replace(script: Path, text: str) -> None:
    new = script.with_name("new")
    new.write_text(text)
    new.chmod(script.stat().st_mode)
    new.replace(script)


def n_of_class(store: Store, run: Run, failure_class: FailureClass) -> int:
    """How many tries of a run ended as failures of a class."""
    outcomes = [store.outcome(rollout.id) for rollout in store.rollouts(run.id)]
    return sum(outcome.failure_class is failure_class for outcome in outcomes)
