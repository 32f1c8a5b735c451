"""The adapters there are, and which one a command belongs to.

A command is looked at from the left: its own name decides; launchers (`env`, `npx`, `uv run`,
`python -m`, `node FILE`, ...) are looked through. A shell's `-c` text is never guessed at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

from . import (
    aider,
    claude_code,
    codex,
    gemini_cli,
    generic,
    hermes,
    kimi,
    mini_swe_agent,
    openclaw,
    opencode,
    pi,
    qwen_code,
    react,
    vibe,
    zeroclaw,
)
from .adapter import Adapter
from .errors import NotLaunched, UnknownHarness
from .installation import Installation, find_installation

GENERIC = generic.ADAPTER
ADAPTERS: dict[str, Adapter] = {
    module.ADAPTER.name: module.ADAPTER
    for module in (
        mini_swe_agent,
        pi,
        react,
        codex,
        claude_code,
        openclaw,
        zeroclaw,
        gemini_cli,
        qwen_code,
        kimi,
        hermes,
        aider,
        opencode,
        vibe,
        generic,
    )
}
"""Name → adapter, in the order of the manual's table."""
LAUNCHED: tuple[str, ...] = tuple(name for name, each in ADAPTERS.items() if each.launch)
"""Names of those that can be launched in a sandbox."""

LAUNCHERS = frozenset(
    "env nice nohup time timeout stdbuf npx bunx uvx pipx uv pnpm yarn npm node bun deno python"
    " python3 poetry exec run dlx x tool".split()
)
"""Programs and their verbs that only start another program."""
_VERSIONED = re.compile(r"^(python|node)[0-9.]*$")
_SUFFIX = re.compile(r"\.(exe|cmd|bat|ps1|[cm]?js|py)$", re.IGNORECASE)


def adapter_named(name: str) -> Adapter:
    """Return an adapter by its name or one of its programs' names; raises UnknownHarness."""
    wanted = name.lower().replace("_", "-")
    for adapter in ADAPTERS.values():
        if wanted == adapter.name or wanted in adapter.programs:
            return adapter
    raise UnknownHarness(name, list(ADAPTERS))


def installation_of(name: str, folder: Path | None = None) -> Installation:
    """Return where a harness is: in `folder`, else in the checkout, else where the user has it.

    Raises UnknownHarness, NotLaunched for one that can only be pointed, and NotInstalled.
    """
    adapter = adapter_named(name)
    if adapter.launch is None:
        raise NotLaunched(adapter.name)
    return find_installation(adapter.name, adapter.launch.program, folder)


def adapter_of(argv: Sequence[str]) -> Adapter:
    """Return the adapter a command belongs to; the generic one where none is known."""
    for candidate in _candidates(argv):
        for adapter in ADAPTERS.values():
            if _belongs(candidate, adapter):
                return adapter
    return GENERIC


def _candidates(argv: Sequence[str]) -> Iterator[str]:
    """Yield what may name the harness: the program, and past launchers what they start."""
    for word in argv:
        if word.startswith("-") or "=" in word or word.replace(".", "").isdigit():
            # Of options only python's -m and uvx's --from name what is started; both are followed
            # by it, so skipping the option itself is enough. `-c` is a text to run.
            if word == "-c":
                return
            continue
        yield word
        name = _program(word)
        if name not in LAUNCHERS and not _VERSIONED.match(name):
            return


def _program(word: str) -> str:
    return _SUFFIX.sub("", PurePath(word.replace("\\", "/")).name.lower())


def _belongs(word: str, adapter: Adapter) -> bool:
    if _program(word) in adapter.programs:
        return True
    path = word.replace("\\", "/")
    return any(
        word == package
        or word.startswith((f"{package}@", f"{package}==", f"{package}."))
        or f"/node_modules/{package}/" in path
        for package in adapter.packages
    )
