"""Which processes descend from which, what they hold, and how a whole tree is ended."""

from __future__ import annotations

import contextlib
import os
import signal

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
N_ROUNDS = 1000


def parents() -> dict[int, int]:
    """Return the parent of every process in sight."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # The name of the program stands in brackets and may hold anything.
                found[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
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


def memory_bytes(pid: int) -> int:
    """Return the anonymous memory of a process; what it shares with its parent counts again."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared, *_ = map(int, file.read().split())
    except (OSError, ValueError):
        return 0
    return (resident - shared) * PAGE_BYTES


def own_memory_bytes(pid: int) -> int:
    """Return its share of its anonymous memory; slower, and counts each page once."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
        for line in file:
            if line.startswith(b"Pss_Anon:"):
                return int(line.split()[1]) * 1024
    return memory_bytes(pid)
