"""Memory that outlives its processes: what System V keeps until somebody removes it.

Only where it is the sandbox's own, in an IPC namespace.
"""

from __future__ import annotations

import contextlib

from . import system

LISTS = {"shm": "shmid", "msg": "msqid", "sem": "semid"}


def held_bytes() -> int:
    """Return what all segments hold, those too that no process has mapped."""
    return sum(each["rss"] for each in _listed("shm"))


def remove() -> None:
    """Remove every segment, queue and set of semaphores."""
    for kind, number in LISTS.items():
        for each in _listed(kind):
            system.remove_ipc(kind, each[number])


def _listed(kind: str) -> list[dict[str, int]]:
    with contextlib.suppress(FileNotFoundError), open(f"{system.PROC}/sysvipc/{kind}") as file:
        names = file.readline().split()
        return [dict(zip(names, map(int, line.split()), strict=True)) for line in file]
    return []
