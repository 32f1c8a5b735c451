"""`budwood export`: recorded rollouts in a trainer's format.

Exit codes: 0 written; 1 it could not be written (an earlier file is as it was); 2 the command
line or the selector cannot be read; 4 written, but there is not one row in it.
"""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from .opening import SELECTOR_HELP, StoreOption, opened
from .terminal import Screen, fail, note

EMPTY = 4


class LaneName(StrEnum):
    """Kinds of lanes."""

    MAIN = "main"
    SUB_AGENT = "sub-agent"
    SIDE = "side"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("export")(export)


def export(
    selector: Annotated[str, typer.Argument(help=SELECTOR_HELP)],
    to: Annotated[
        Literal["trl-sft", "trl-grpo", "jsonl", "parquet"],
        typer.Option(help="The format; `parquet` holds what --rows says."),
    ],
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", help="File, or folder; default: budwood-FORMAT in here."),
    ] = None,
    rows: Annotated[
        Literal["trl-sft", "trl-grpo"] | None,
        typer.Option(help="What the rows of `parquet` are; default: trl-sft."),
    ] = None,
    lanes: Annotated[
        list[LaneName] | None,
        typer.Option("--lane", help="Kind of lane; may be repeated. Default: main, sub-agent."),
    ] = None,
    include_inexact: Annotated[
        bool, typer.Option("--include-inexact", help="Also what is not proved exact.")
    ] = False,
    include_secrets: Annotated[
        bool, typer.Option("--include-secrets", help="Also what a secret was found in, unmasked.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file that no export made.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest.")] = False,
    store: StoreOption = None,
) -> None:
    """Write recorded rollouts as training rows, or as whole records.

    trl-sft has input_ids and labels, trl-grpo prompt_ids, completion_ids, logprobs, env_mask and
    reward (rollouts without a reward are left out). What is not exact, failed by another's fault,
    or holds a secret is left out; FILE.manifest.json counts all of it by reason.
    """
    from budwood.trajectory_store.export import ExportOptions
    from budwood.trajectory_store.export import export as write

    if rows is not None and to != "parquet":
        fail(f"--rows says what the rows of parquet are; {to} has its own", 2)
    rows = rows or "trl-sft"
    path = _file(out, to, rows)
    options = ExportOptions(
        include_inexact=include_inexact,
        include_secrets=include_secrets,
        lanes=tuple(lane.value for lane in lanes) if lanes else ("main", "sub-agent"),
        rows=rows,
    )
    with opened(store) as found:
        manifest = write(found, selector, to, path, options, overwrite=force).as_json()
    if as_json:
        typer.echo(json.dumps(manifest, indent=2))
    else:
        _report(path, manifest)
    if not manifest["rows"]:
        note("budwood: there is not one row in it; see what was left out, and why")
        raise typer.Exit(EMPTY)


def _file(out: str | None, to: str, rows: str) -> Path:
    from budwood.trajectory_store.export import EXPORTERS

    suffix = EXPORTERS[to].suffix
    usual = {"jsonl": "budwood", "parquet": f"budwood-{rows}"}.get(to, f"budwood-{to}") + suffix
    if out is None:
        return Path(usual)
    if out in ("", "-"):
        fail("--out needs a file or a folder: a manifest is written beside the rows", 2)
    path = Path(out)
    try:
        if path.is_dir():
            return path / usual
        if path.exists() and not path.is_file():
            fail(f"{path} is no file that can be replaced; choose another name", 2)
    except OSError as error:
        fail(f"{path} can't be written: {error.strerror}", 2)
    return path if path.suffix else path.with_name(path.name + suffix)


def _report(out: Path, manifest: dict[str, Any]) -> None:
    screen = Screen()
    tokens, rollouts = manifest["tokens"], manifest["rollouts"]
    screen.line(
        f"{out}: {manifest['rows']} rows of {rollouts['written']} rollouts "
        f"({rollouts['selected']} selected), {tokens['all']} tokens, {tokens['trained']} trained"
    )
    left_out = [
        (kind, reason, str(count))
        for kind, reasons in manifest["left_out"].items()
        for reason, count in reasons.items()
    ]
    if left_out:
        screen.table(["left out", "reason", "count"], left_out)
    for name, count in manifest["notes"].items():
        screen.line(f"{name.replace('_', ' ')}: {count}")
