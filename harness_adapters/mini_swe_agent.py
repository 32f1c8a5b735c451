"""mini-swe-agent: LiteLLM inside, one bash tool, not streamed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from .adapter import Adapter
from .installation import Installation, PythonProgram
from .launch import Ended, HarnessResult, Launch, LaunchContext, Status, TurnLimit, Usage
from .pointing import Dialect

CONFIG = "mini-swe-agent/launch.yaml"
TRAJECTORY = "mini-swe-agent/trajectory.json"
SUBMITTED = "Submitted"
LIMITS = ("LimitsExceeded", "TimeExceeded")
GAVE_UP = "RepeatedFormatError"
"""The model did not call the tool, three times in a row: the policy's doing, not a failure."""
_NOT_YAML = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)


def arguments(ctx: LaunchContext, installation: Installation) -> tuple[str, ...]:
    """Return its options: its own default configuration, and ours over it.

    The first by its path, because a file `mini.yaml` in the working directory would be taken
    for it.
    """
    return (
        "--yolo",
        "--exit-immediately",
        "--config",
        f"{installation.packages}/minisweagent/config/mini.yaml",
        "--config",
        f"{ctx.home}/{CONFIG}",
        "--output",
        f"{ctx.home}/{TRAJECTORY}",
    )


def files(ctx: LaunchContext) -> Mapping[str, str]:
    """Return the configuration with the task and its limit of steps."""
    config = {
        "run": {"task": ctx.instruction},
        # The model has no price, so a limit of cost would never be reached.
        "agent": {"step_limit": ctx.max_turns or 0, "cost_limit": 0},
    }
    return {CONFIG: as_yaml(config)}


def as_yaml(value: Any) -> str:
    r"""Return JSON that a YAML reader takes for the same value.

    It does not join two escapes to one character beyond U+FFFF, as JSON does, so characters stand
    as they are; except those that YAML forbids or folds, which it reads as `\uXXXX`.
    """
    text = json.dumps(value, ensure_ascii=False)
    return _NOT_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n"


def account(ended: Ended) -> HarnessResult | None:
    """Return what its trajectory says, which it writes after every step."""
    if TRAJECTORY not in ended.artifacts:
        return None
    trajectory = json.loads(ended.artifacts[TRAJECTORY])
    info = trajectory["info"]
    how = str(info["exit_status"])
    usage = Usage(n_calls=info["model_stats"]["api_calls"])
    last = trajectory["messages"][-1]
    if how == SUBMITTED:
        return HarnessResult(Status.DONE, str(info.get("submission") or ""), usage, how)
    if how == GAVE_UP:
        return HarnessResult(Status.DONE, "", usage, how)
    if how in LIMITS:
        return HarnessResult(Status.LIMIT, "", usage, how)
    why = f"{how}: {last.get('content', '')}" if how else "it was ended before it had finished"
    return HarnessResult(Status.FAILED, "", usage, " ".join(why.split())[:500])


ADAPTER = Adapter(
    name="mini-swe-agent",
    programs=("mini", "mini-swe-agent"),
    packages=("mini-swe-agent", "minisweagent", "minisweagent.run.mini"),
    dialect=Dialect.CHAT,
    streams=False,
    pointed_by="OPENAI_BASE_URL and OPENAI_API_BASE, a model named openai/…",
    env={
        "OPENAI_BASE_URL": "{v1}",
        "OPENAI_API_BASE": "{v1}",
        "OPENAI_API_KEY": "{key}",
        "MSWEA_MODEL_NAME": "openai/{model}",
        "MSWEA_GLOBAL_CONFIG_DIR": "{home}/mini-swe-agent",
        # Without it the first start asks for a model and a key on the terminal.
        "MSWEA_CONFIGURED": "true",
        # The served model has no price: by default that is an error.
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_SILENT_STARTUP": "1",
        # Otherwise LiteLLM asks a foreign host for prices first, and waits for it.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    },
    notes=("It ends when a command prints COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT.",),
    tested="2.4.6",
    launch=Launch(
        program=PythonProgram(distribution="mini-swe-agent", module="minisweagent.run.mini"),
        pinned_version="2.4.6",
        arguments=arguments,
        # Its ten tries of a failing call take four minutes, and the proxy has tried before.
        env={"MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "3"},
        files=files,
        turn_limit=TurnLimit.NATIVE,
        account=account,
        artifacts=(TRAJECTORY,),
        version_arguments=("--help",),
        tested_versions=("2.4.6",),
        known_quirks=(
            "The kernel's release and version are in its prompt: it differs between hosts.",
            "An answer without a tool call is a format error; after three in a row it ends.",
            "Its commands inherit its environment, the rollout's key included, and end after 30 s.",
            "A refused request (400) is tried again like any other.",
        ),
    ),
)
