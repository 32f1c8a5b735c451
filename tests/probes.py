"""All probes of local sandboxes on this machine, as a table: `python -m tests.probes [WORD ...]`.

Run by root, they are made as root and once more as a user without any rights. WORDs choose those
whose names hold one. The probes are the tests' own: checks from inside one sandbox, and whole
rollouts whose agent goes wrong. Exit code 1 if any failed; `-` is what this machine can't be asked,
with the reason below the table.
"""

import asyncio
import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import structlog

from budwood.sandbox import LocalSettings, backend_named
from budwood.sandbox.testing import CHECKS, Bench, NotApplicable, local_traces

from .rollouts.limits import PROBES, seen
from .sandbox.inside import python_inside
from .sandbox.unprivileged import run_module

OF_SANDBOXES = ("isolation", "network", "limits")
"""The modules of checks that probe; the others say how sandboxes work."""


def names(words: list[str]) -> Iterator[str]:
    """Yield the probes whose names hold one of the words; all, where there is none."""
    probing = [name for name, check in CHECKS.items() if _room(check) in OF_SANDBOXES]
    for name in [*probing, *PROBES]:
        if not words or any(word in name for word in words):
            yield name


def _room(check: object) -> str:
    return getattr(check, "__module__", "").rpartition(".")[2]


async def result_of(name: str, folder: Path) -> str:
    """Make one probe; return "ok", or why not."""
    try:
        if name in PROBES:
            found = await seen(PROBES[name], folder)
            assert found.outcome == PROBES[name].wanted, f"its outcome is {found.outcome}"
            assert not found.left, f"left behind: {found.left}"
        else:
            root = folder / "sandboxes"
            async with backend_named("local", LocalSettings(root=root)) as backend:
                await CHECKS[name](
                    Bench(backend, python_inside("local"), partial(local_traces, root))
                )
    except NotApplicable as why:
        return f"- {why}"
    except Exception as error:  # the boundary: one probe that fails is a line of the table
        return f"FAILED {type(error).__name__}: {error}".strip()
    return "ok"


def results(words: list[str]) -> dict[str, str]:
    """Make the probes as the user who runs this."""
    found: dict[str, str] = {}
    for name in names(words):
        with tempfile.TemporaryDirectory(prefix="budwood-probe-") as folder:
            found[name] = asyncio.run(result_of(name, Path(folder)))
        print(f"{name}: {found[name]}", file=sys.stderr, flush=True)
    return found


def unprivileged(words: list[str]) -> dict[str, str]:
    """Make the probes as a user without any rights."""
    done = run_module(lambda _: ["tests.probes", "--json", *words])
    if done.returncode:
        raise SystemExit(f"the probes could not be made without root:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main(words: list[str]) -> int:
    """Print the table; return the exit code."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    if "--json" in words:
        print(json.dumps(results([word for word in words if word != "--json"])))
        return 0
    columns = {f"uid {os.geteuid()}": results(words)}
    if os.geteuid() == 0:
        columns["without root"] = unprivileged(words)
    width = max(map(len, names(words)), default=0)
    print(f"{'probe':{width}}  {'  '.join(columns)}")
    for name in names(words):
        said = [found[name].split(maxsplit=1)[0] for found in columns.values()]
        cells = [f"{word:{len(title)}}" for word, title in zip(said, columns, strict=True)]
        print(f"{name:{width}}  {'  '.join(cells)}".rstrip())
    told = {
        f"{name}, {title}: {result}"
        for title, found in columns.items()
        for name, result in found.items()
        if result != "ok"
    }
    print("\n".join(["", *sorted(told)]) if told else "")
    return int(any(": FAILED" in line for line in told))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
