"""The conformance suite: what every backend must do, as checks that need no test framework.

    for name, check in CHECKS.items():
        async with backend_named("local") as backend:
            await check(Bench(backend))

A check that a capability rules out raises NotApplicable; that such a thing is refused by name is a
check of its own. Inside a sandbox they need `sh`, the usual small programs, and a Python 3
(`Bench.python`).
"""

from __future__ import annotations

import inspect
from types import ModuleType

from . import commands, isolation, lifecycle, limits, network, trees
from .bench import MARK, Bench, Check, NotApplicable
from .local_traces import local_traces, processes_of

__all__ = ["CHECKS", "MARK", "Bench", "Check", "NotApplicable", "local_traces", "processes_of"]


def _checks(module: ModuleType) -> dict[str, Check]:
    """Return the public checks of a module: those that take a bench and nothing else."""
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.iscoroutinefunction(value)
        and not name.startswith("_")
        and list(inspect.signature(value).parameters) == ["bench"]
    }


CHECKS: dict[str, Check] = {
    name: check
    for module in (lifecycle, commands, trees, limits, network, isolation)
    for name, check in _checks(module).items()
}
"""Every check by name."""
