"""pi: a private agent directory with one provider of ours as the default, so no flag is needed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .adapter import Adapter
from .installation import Installation, NodeProgram
from .launch import Ended, HarnessResult, Launch, LaunchContext, Status, TurnLimit, Usage
from .pointing import Dialect, Endpoint

PROVIDER = "budwood"
RESERVED_TOKENS = 16_384
KEPT_TOKENS = 20_000
"""pi's own defaults for compaction."""
SESSIONS = "pi/sessions"
ENDS = ("stop", "length")
"""Stop reasons of an answer that is the last; of `length` it says itself that it was cut."""


def files(endpoint: Endpoint, home: Path, cwd: Path) -> Mapping[str, str]:
    """Return models.json and settings.json."""
    where = {"baseUrl": endpoint.v1, "apiKey": endpoint.secret}
    models = {
        "providers": {
            PROVIDER: where
            | {
                "api": "openai-completions",
                "models": [
                    {
                        "id": endpoint.model,
                        "contextWindow": endpoint.context_window,
                        "maxTokens": endpoint.max_output,
                    }
                ],
            },
            # For `--provider openai` and the like: they must not reach their makers unrecorded.
            "openai": where,
            "anthropic": where | {"baseUrl": endpoint.root},
        }
    }
    quarter = endpoint.context_window // 4
    settings = {
        "defaultProvider": PROVIDER,
        "defaultModel": endpoint.model,
        "enableInstallTelemetry": False,
        # pi's defaults would compact a small model's window from the first turn on.
        "compaction": {
            "reserveTokens": min(RESERVED_TOKENS, quarter),
            "keepRecentTokens": min(KEPT_TOKENS, quarter),
        },
    }
    return {
        "pi/models.json": json.dumps(models, indent=1),
        "pi/settings.json": json.dumps(settings, indent=1),
    }


def arguments(ctx: LaunchContext, installation: Installation) -> tuple[str, ...]:
    """Return its options; the task comes on standard input."""
    return ("--print", "--mode", "json")


def launch_files(ctx: LaunchContext) -> Mapping[str, str]:
    """Return settings.json, in which an answer may take as long as the attempt (else 300 s)."""
    name = "pi/settings.json"
    settings = json.loads(files(ctx.endpoint, Path(ctx.home), Path(ctx.workdir))[name])
    settings["httpIdleTimeoutMs"] = int(ctx.timeout_s * 1000)
    return {name: json.dumps(settings, indent=1)}


def stdin(ctx: LaunchContext) -> bytes:
    """Return the task."""
    return ctx.instruction.encode("utf-8")


def account(ended: Ended) -> HarnessResult | None:
    """Return what the last answer in its session says; its exit code says nothing."""
    answers = list(_answers(ended))
    if not answers:
        return None
    last = answers[-1]
    text = "".join(
        part.get("text", "") for part in last.get("content") or () if part.get("type") == "text"
    )
    usage = Usage(
        n_calls=len(answers),
        n_prompt_tokens=sum(_tokens(each, "input", "cacheRead", "cacheWrite") for each in answers),
        n_sampled_tokens=sum(_tokens(each, "output") for each in answers),
    )
    how = str(last.get("stopReason"))
    if how in ENDS:
        return HarnessResult(Status.DONE, text, usage, how)
    why = str(last.get("errorMessage") or "")
    if how == "toolUse":
        why = "it was ended before it had finished"
    return HarnessResult(Status.FAILED, text, usage, " ".join(f"{how}: {why}".split())[:500])


def _answers(ended: Ended) -> Iterator[dict[str, Any]]:
    """Yield the model's messages of its session file, or else of the events it wrote."""
    sessions = sorted(name for name in ended.artifacts if name.startswith(f"{SESSIONS}/"))
    lines = ended.artifacts[sessions[-1]] if sessions else ended.stdout
    wanted = "message" if sessions else "message_end"
    for line in lines.split(b"\n"):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and entry.get("type") == wanted:
            message = entry["message"]
            if message.get("role") == "assistant":
                yield message


def _tokens(message: dict[str, Any], *kinds: str) -> int:
    usage = message.get("usage") or {}
    return sum(int(usage.get(kind) or 0) for kind in kinds)


ADAPTER = Adapter(
    name="pi",
    programs=("pi",),
    packages=("@earendil-works/pi-coding-agent", "@mariozechner/pi-coding-agent"),
    dialect=Dialect.CHAT,
    pointed_by="models.json and settings.json of a private PI_CODING_AGENT_DIR",
    env={
        "PI_CODING_AGENT_DIR": "{home}/pi",
        "PI_CODING_AGENT_SESSION_DIR": "{home}/pi/sessions",
        "PI_OFFLINE": "1",
        "PI_TELEMETRY": "0",
    },
    files=files,
    notes=("It may exit 0 although a model call failed: trust the record, not the status.",),
    tested="1.6.0",
    launch=Launch(
        program=NodeProgram(package="@earendil-works/pi-coding-agent", program="pi"),
        pinned_version="1.6.0",
        arguments=arguments,
        files=launch_files,
        stdin=stdin,
        turn_limit=TurnLimit.PROXY,
        account=account,
        artifacts=(f"{SESSIONS}/*.jsonl",),
        tested_versions=("1.6.0",),
        known_quirks=(
            "It exits with 0 although a model call failed.",
            "A stream without a finish reason is asked for again: two records, one prompt.",
            "White space around the task is taken off.",
            "Its bash tool has no time limit unless the model sets one.",
            "Its process is named pi, whatever started it.",
        ),
    ),
)
