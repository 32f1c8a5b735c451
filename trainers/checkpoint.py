"""Folders that are there whole or not at all, and the newest of them.

A folder is filled beside its place and then renamed, so a process that is killed at any moment
leaves either a complete checkpoint or none. What it left half done is removed by the next one.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

_NAME = re.compile(r"checkpoint-(\d+)")


def write_folder(place: Path, fill: Callable[[Path], object]) -> Path:
    """Make a folder by `fill`; it takes the place of one that is there."""
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_name(f".{place.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    fill(part)
    for path in sorted(part.rglob("*")):
        if path.is_file():
            _flush(path)
    old = place.with_name(f".{place.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():
        place.rename(old)
    part.rename(place)
    _flush(place.parent)
    shutil.rmtree(old, ignore_errors=True)
    return place


def _flush(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def name_of(step: int) -> str:
    """Return the name of a step's checkpoint."""
    return f"checkpoint-{step:06d}"


def step_of(checkpoint: Path) -> int:
    """Return the number of steps that a checkpoint has behind it."""
    match = _NAME.fullmatch(checkpoint.name)
    assert match is not None, checkpoint
    return int(match[1])


def checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints of a folder, oldest first."""
    found = [path for path in folder.glob("checkpoint-*") if _NAME.fullmatch(path.name)]
    return sorted(found, key=step_of)


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints."""
    for path in checkpoints(folder)[:-keep]:
        shutil.rmtree(path)
