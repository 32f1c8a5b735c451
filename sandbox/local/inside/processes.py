"""Which processes descend from which, what they hold, and how a whole tree is ended."""

from __future__ import annotations

import contextlib
import os
import signal

from . import system

_RSS = (b"Rss", b"Pss")
N_ROUNDS = 1000


def parents() -> dict[int, int]:
    """Return the parent of every process in sight."""
    found = {}
    for name in os.listdir(system.PROC):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"{system.PROC}/{name}/stat", "rb") as file:
                # The name of the program stands in brackets and may hold anything.
                found[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    return found


def alive(pids: set[int]) -> set[int]:
    """Return those that have not ended, be they reaped or not."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError), open(f"{system.PROC}/{pid}/stat", "rb") as file:
            if file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X"):
                found.add(pid)
    return found


def descendants(root: int, known: dict[int, int] | None = None) -> set[int]:
    """Return all processes below one, without it."""
    children: dict[int, list[int]] = {}
    for pid, parent in (known or parents()).items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = [root]
    while waiting:
        for pid in children.get(waiting.pop(), []):
            if pid not in found:
                found.add(pid)
                waiting.append(pid)
    return found


def send_signal(pids: set[int], number: int) -> None:
    """Send a signal to processes, those that are gone aside."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_tree(root: int) -> set[int] | None:
    """Kill all processes below one and return them; None where it did not hold still to be caught.

    They are stopped first: a process with a pending stop makes no children, so a look that finds no
    new one has found all, however fast they were forking.
    """
    stopped: set[int] = set()
    for _ in range(N_ROUNDS):
        new = descendants(root) - stopped
        if not new:
            break
        send_signal(new, signal.SIGSTOP)
        stopped |= new
    else:
        return None
    send_signal(stopped, signal.SIGKILL)
    return stopped


def memory_bytes(pid: int) -> tuple[int, int]:
    """Return a process's anonymous memory, and what it shares that is in no file of the host.

    What it shares with others counts again for each of them.
    """
    return _kilobytes(pid, "status", b"RssAnon:", b"RssShmem:") or (0, 0)


def own_memory_bytes(pid: int) -> tuple[int, int]:
    """Return its share of both; slower, and counts each page once."""
    return _kilobytes(pid, "smaps_rollup", b"Pss_Anon:", b"Pss_Shmem:") or memory_bytes(pid)


def _kilobytes(pid: int, file: str, *names: bytes) -> tuple[int, int] | None:
    try:
        with open(f"{system.PROC}/{pid}/{file}", "rb") as lines:
            found = {line.split()[0]: int(line.split()[1]) for line in lines if line[:3] in _RSS}
    except OSError:
        return None
    first, second = (found.get(name, 0) * 1024 for name in names)
    return first, second
