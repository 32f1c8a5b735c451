"""A sandbox without isolation: ordinary processes below one that ends them."""

from __future__ import annotations

import os
from pathlib import Path

from ..spec import Spec
from .ground import INSIDE, USER, Ground, Python, base_env


def plain_ground(spec: Spec, folder: Path, control_fd: int) -> Ground:
    """Return what starts the process that all commands are below; paths are the host's own."""
    python = Python.ours()
    for name in ("work", "home", "tmp"):
        (folder / name).mkdir(mode=0o700)
    argv = python.command(python.prefix, str(INSIDE.parent), control_fd)
    env = base_env(spec, str(folder / "home"), str(folder / "tmp"))
    return Ground(argv, str(folder / "work"), env, (USER, os.geteuid()))
