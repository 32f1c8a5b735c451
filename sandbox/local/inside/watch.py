"""Looks at what the kernel does not count for us: all processes of the sandbox together."""

from __future__ import annotations

import os
from dataclasses import dataclass

from .processes import descendants, memory_bytes, own_memory_bytes, parents


@dataclass(frozen=True)
class Tree:
    """What one command and all that it started use."""

    root: int
    pids: frozenset[int]
    memory_bytes: int


def trees(roots: list[int], *, is_exact: bool = False) -> list[Tree]:
    """Return the tree of each keeper, and last what is left running by commands that ended."""
    known = parents()
    measure = own_memory_bytes if is_exact else memory_bytes
    found = []
    everything = descendants(os.getpid(), known) - set(roots)
    for root in roots:
        pids = descendants(root, known)
        everything -= pids
        found.append(Tree(root, frozenset(pids), sum(map(measure, pids))))
    left = Tree(os.getpid(), frozenset(everything), sum(map(measure, everything)))
    return [*found, left]


def too_large(roots: list[int], limit_bytes: int) -> Tree | None:
    """Return the largest tree where all together pass a limit of memory."""
    for is_exact in (False, True):
        found = trees(roots, is_exact=is_exact)
        if sum(tree.memory_bytes for tree in found) <= limit_bytes:
            return None
    return max(found, key=lambda tree: tree.memory_bytes)
