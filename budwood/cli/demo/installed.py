"""Where the real harnesses of the demo and of the tests are installed."""

from __future__ import annotations

import shutil
from pathlib import Path

import budwood

from .screen import DemoFailed

CHECKOUT = Path(budwood.__file__).resolve().parent.parent
PROGRAMS = {"mini-swe-agent": "mini", "pi": "pi"}
FOLDERS = {"mini-swe-agent": ".envs/mini-swe-agent/bin", "pi": ".envs/node/bin"}


def folder_of(harness: str) -> Path:
    """Return the folder that holds a harness's program; raises DemoFailed where there is none.

    A checkout's own (`make harnesses`) is taken before one on PATH: its version is pinned.
    """
    program = PROGRAMS[harness]
    pinned = CHECKOUT / FOLDERS[harness]
    if (pinned / program).exists():
        return pinned
    found = shutil.which(program)
    if found:
        return Path(found).parent
    raise DemoFailed(
        f"{harness} is not installed: no {program} in {pinned} nor on PATH. In a checkout, "
        "`make harnesses` installs it; `budwood demo --quick` needs none."
    )
