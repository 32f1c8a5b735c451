"""`budwood demo`: all of it once, from a recording to a replay, with a table of what was promised.

Exit codes: 0 every promise kept; 1 one is broken, or a step failed.
"""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Annotated

import typer

from ..terminal import Screen, fail, this_command
from .screen import Clock, DemoFailed, Place

MARK = ".budwood-demo"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("demo")(demo)


def demo(
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Under a minute, any system, nothing else installed: scripted."
        ),
    ] = False,
    train: Annotated[
        bool,
        typer.Option(
            "--train",
            help="Also the second half: rollouts in sandboxes, SFT, GRPO, better weights.",
        ),
    ] = False,
    folder: Annotated[
        Path, typer.Option(help="Where its files go; one of an earlier demo is replaced.")
    ] = Path("budwood-demo"),
) -> None:
    """See it all once: record, look, export, score again, replay.

    A tiny model is made and taught on the spot, served by vLLM and driven by two real harnesses,
    mini-swe-agent and pi. With --quick, a script plays the model and a loop the harness. With
    --train, a model then learns from its own rollouts: 15 minutes more.
    """
    if quick and train:
        fail("--quick has no model, and so nothing to train: give one of --quick and --train", 2)
    signal.signal(signal.SIGTERM, _interrupt)
    clock = Clock()
    try:
        place = Place(_fresh(folder), clock)
    except OSError as error:
        fail(f"{folder} cannot be used ({error.strerror}): name another with --folder", 2)
    try:
        if train:
            from .learning import check_installed

            check_installed()
        if quick:
            from .quick import run
        else:
            from .full import run
        columns = run(place)
    except DemoFailed as error:
        fail(f"the demo stopped after {clock.elapsed_s:.0f} s: {error}")
    from .closing import table

    clock.say("this is what was recorded, and what was promised of it:")
    screen = Screen()
    for line in table(columns):
        screen.line(f"  {line}")
    broken = [words for column in columns for words in column.broken]
    if broken:
        fail("promises broken:\n" + "\n".join(f"  {words}" for words in broken))
    if train:
        _train(place)
    clock.say("every promise kept. What to type next:")
    for line in (
        f"view --store {folder / 'store.db'}",
        f"show last --tokens --call 2 --store {folder / 'store.db'}",
        "record -- YOUR HARNESS...     (record --list: which are known)",
    ):
        screen.line(f"  {this_command()} {line}")


def _train(place: Place) -> None:
    """Do the second half and hold it to its promises."""
    from .learning import run

    clock = place.clock
    try:
        verdict = run(place)
    except DemoFailed as error:
        fail(f"the demo stopped after {clock.elapsed_s:.0f} s: {error}")
    clock.say("this is what was learnt:")
    screen = Screen()
    for line in verdict.lines():
        screen.line(f"  {line}")
    if verdict.broken:
        fail("promises broken:\n" + "\n".join(f"  {words}" for words in verdict.broken))


def _interrupt(*_: object) -> None:
    """End as by Ctrl-C, so that the engine and the teacher are ended too."""
    raise KeyboardInterrupt


def _fresh(folder: Path) -> Path:
    """Return the demo's folder, empty; one that is not of an earlier demo is left alone."""
    folder = folder.resolve()
    if folder.exists():
        if not (folder / MARK).exists() and any(folder.iterdir()):
            fail(f"{folder} is there and not of an earlier demo: name another with --folder", 2)
        shutil.rmtree(folder)
    (folder / "logs").mkdir(parents=True)
    (folder / MARK).touch()
    return folder
