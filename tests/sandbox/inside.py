"""Where checks find a Python 3 inside a sandbox."""

import sys
from pathlib import Path

from budwood.sandbox.local.ground import Python


def python_inside(name: str) -> str:
    """Return the interpreter that process 1 runs on, for a backend of that name."""
    if name == "local-unisolated":
        return sys.executable
    python = Python.ours()
    if python.is_systems:
        return str(python.program)
    return str(Path("/.budwood/python") / python.program.relative_to(python.prefix))
