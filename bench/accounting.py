"""What a process tree has used: CPU seconds and proportional memory, read from /proc (Linux)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Used:
    """CPU seconds since start, and memory now."""

    cpu_s: float
    memory_mib: float


def tree(pid: int) -> list[int]:
    """Return `pid` and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields:
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    out: list[int] = []
    todo = [pid]
    while todo:
        current = todo.pop()
        out.append(current)
        todo += children.get(current, ())
    return out


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


def own_cpu_s(pid: int) -> float:
    """Return the CPU seconds of one process without its children.

    From nanosecond counters where the kernel has them: ticks of 10 ms are coarse for short runs.
    """
    total = 0
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        total = 0
    fields = _stat(pid)
    in_ticks = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S if fields else 0.0
    return max(total / 1e9, in_ticks)  # ticks also hold the threads that have ended


def _memory_mib(pid: int) -> float:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    fields = _stat(pid)
    return int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 2**20 if fields else 0.0


def used(pids: Iterable[int]) -> Used:
    """Return what the trees of `pids` have used."""
    all_pids = {each for root in pids for each in tree(root)}
    return Used(
        sum(own_cpu_s(pid) for pid in all_pids),
        sum(_memory_mib(pid) for pid in all_pids),
    )


def cpu_s(pids: Iterable[int]) -> float:
    """Return the CPU seconds of the trees of `pids`."""
    return sum(own_cpu_s(each) for root in pids for each in tree(root))


def quantile(values: Iterable[float], share: float) -> float | None:
    """Return the value below which `share` of them lie; None of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
