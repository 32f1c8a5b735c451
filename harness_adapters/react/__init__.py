"""react: our own small harness, and how it is pointed, launched and read.

`agent.py` is the harness, one file on OpenAI's SDK; this is its adapter, the shortest there is and
so the one to copy. The harness says how it ended in its last event; `account` reads that.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..adapter import Adapter
from ..installation import Installation, PythonProgram
from ..launch import Ended, HarnessResult, Launch, LaunchContext, Status, TurnLimit, Usage
from ..pointing import Dialect
from .agent import VERSION


def arguments(ctx: LaunchContext, installation: Installation) -> tuple[str, ...]:
    """Return its options; the task comes on standard input."""
    return ("--json", "--max-turns", str(ctx.max_turns or 0), "--timeout", f"{ctx.timeout_s:g}")


def stdin(ctx: LaunchContext) -> bytes:
    """Return the task."""
    return ctx.instruction.encode("utf-8")


def account(ended: Ended) -> HarnessResult | None:
    """Return what its last event says."""
    end = last_event(ended.stdout, "end")
    if end is None:
        return None
    counted = end.get("usage") or {}
    usage = Usage(
        n_calls=counted.get("calls"),
        n_prompt_tokens=counted.get("prompt_tokens"),
        n_sampled_tokens=counted.get("completion_tokens"),
    )
    return HarnessResult(Status(end["status"]), end["text"], usage if counted else None, end["why"])


def last_event(stdout: bytes, kind: str) -> dict[str, Any] | None:
    """Return the last whole event of a kind in lines of JSON, None if there is none."""
    for line in reversed(stdout.split(b"\n")):
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("type") == kind:
            return event
    return None


ADAPTER = Adapter(
    name="react",
    programs=("react",),
    packages=("budwood.harness_adapters.react",),
    dialect=Dialect.CHAT,
    streams=False,
    pointed_by="OPENAI_BASE_URL, OPENAI_API_KEY, OPENAI_MODEL",
    env={"OPENAI_BASE_URL": "{v1}", "OPENAI_API_KEY": "{key}", "OPENAI_MODEL": "{model}"},
    notes=("Our own reference harness: a loop around one shell tool.",),
    tested=VERSION,
    launch=Launch(
        program=PythonProgram(
            distribution="openai",
            script=Path(__file__).with_name("agent.py"),
            script_version=VERSION,
        ),
        pinned_version=f"{VERSION}+openai.3.57.0",
        arguments=arguments,
        stdin=stdin,
        turn_limit=TurnLimit.NATIVE,
        account=account,
        tested_versions=(f"{VERSION}+openai.3.57.0",),
    ),
)
