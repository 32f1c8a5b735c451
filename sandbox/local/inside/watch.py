"""Looks at what the kernel does not count for us: all processes of the sandbox together."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from . import shared_memory
from .processes import descendants, memory_bytes, own_memory_bytes, parents


@dataclass(frozen=True)
class Tree:
    """What one command and all that it started use."""

    root: int
    pids: frozenset[int]
    memory_bytes: int
    """Anonymous memory."""
    shared_bytes: int
    """Mapped memory that can be shared; files of the sandbox are in memory too."""


def trees(roots: list[int], *, is_exact: bool = False) -> list[Tree]:
    """Return the tree of each keeper, and last what is left running by commands that ended."""
    known = parents()
    measure = own_memory_bytes if is_exact else memory_bytes
    found = []
    everything = descendants(os.getpid(), known) - set(roots)
    for root in roots:
        pids = descendants(root, known)
        everything -= pids
        found.append(_tree(root, pids, measure))
    return [*found, _tree(os.getpid(), everything, measure)]


def _tree(root: int, pids: set[int], measure: Callable[[int], tuple[int, int]]) -> Tree:
    measured = [measure(pid) for pid in pids]
    return Tree(
        root, frozenset(pids), sum(own for own, _ in measured), sum(each for _, each in measured)
    )


def too_large(roots: list[int], limit_bytes: int, disk_bytes: int) -> Tree | None:
    """Return the largest tree where all together pass a limit of memory.

    disk_bytes: what the sandbox's files hold; where they are mapped they count as disk.
    """
    for is_exact in (False, True):
        found = trees(roots, is_exact=is_exact)
        mapped = sum(tree.shared_bytes for tree in found) - disk_bytes
        shared = max(mapped, shared_memory.held_bytes())
        if sum(tree.memory_bytes for tree in found) + max(shared, 0) <= limit_bytes:
            return None
    return max(found, key=lambda tree: tree.memory_bytes + tree.shared_bytes)
