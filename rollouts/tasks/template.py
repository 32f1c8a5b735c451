"""Templates: one folder for many tasks that differ in names and values.

A template is a task folder with a `variants.toml` beside its `task.toml`. Texts and names of files
in it hold `{{NAME}}`; in a variant each is a value:

    [train]                              # the n-th variant takes the n-th value of each list
    file = ["notes.txt", "todo.txt"]     # here: train-1 and train-2
    word = ["amber", "cobalt"]

    [held-out]                           # never trained on: only for evaluation
    file = ["list.txt"]
    word = ["violet"]

`{{variant}}` and `{{split}}` are the variant's own name and that of its table. What comes out is an
ordinary task folder: nothing behind this module knows of templates.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from ..errors import BrokenTask, Problem
from .checksum import checksum, files_below
from .config import Split
from .folder import VARIANTS, Task, load_task

SPLITS: tuple[Split, ...] = get_args(Split)
_PLACE = re.compile(r"\{\{([a-z][a-z0-9_]*)\}\}")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_OURS = ("variant", "split")


@dataclass(frozen=True, slots=True)
class Variant:
    """One set of values for a template."""

    name: str
    """`train-1`, `held-out-3`."""
    split: Split
    values: Mapping[str, str]
    """By name, those of `{{variant}}` and `{{split}}` included."""


def is_template(folder: Path) -> bool:
    """Return whether a folder stands for many tasks."""
    return (folder / VARIANTS).is_file()


def load_tasks(folder: Path | str, workspace: Path, *, split: Split | None = None) -> list[Task]:
    """Return the task in a folder, or the tasks of a template, written below `workspace`.

    split: only the tasks of this split; None: all. A task that belongs to none is in none.
    Raises BrokenTask.
    """
    folder = Path(folder).resolve()
    if is_template(folder):
        tasks = [
            _load_variant(folder, variant, workspace)
            for variant in read_variants(folder)
            if split in (None, variant.split)
        ]
        _require_names(folder, tasks)
        return tasks
    task = load_task(folder)
    return [task] if split in (None, task.split) else []


def read_variants(folder: Path) -> tuple[Variant, ...]:
    """Return the variants of a template in their order; raises BrokenTask."""
    file = folder / VARIANTS
    try:
        tables: dict[str, Any] = tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BrokenTask(file, [Problem("", f"can't be read: {error}; correct that")]) from error
    problems = [*_problems_of_tables(tables)] or [*_problems_of_names(tables)]
    if problems:
        raise BrokenTask(file, problems)
    variants = tuple(
        variant for split in SPLITS if split in tables for variant in _rows(split, tables[split])
    )
    _require_different(file, variants)
    return variants


def render(folder: Path, variant: Variant, into: Path) -> None:
    """Write a variant of a template into a new folder; raises BrokenTask.

    Files that are not UTF-8 are copied as they are. Mode bits and links stay.
    """
    # It refuses links that lead out, and what can't be read to an end.
    checksum(folder)
    used: set[str] = set()

    def filled(text: str, file: Path) -> str:
        names = set(_PLACE.findall(text))
        unknown = sorted(names - variant.values.keys())
        if unknown:
            known = ", ".join(sorted(variant.values))
            text = f"{{{{{unknown[0]}}}}} has no value in {VARIANTS}; known are: {known}"
            raise BrokenTask(file, [Problem("", text)])
        used.update(names)
        return _PLACE.sub(lambda found: variant.values[found[1]], text)

    for source in sorted(files_below(folder)):
        if source == folder / VARIANTS:
            continue
        parts = [filled(part, source) for part in source.relative_to(folder).parts]
        target = into.joinpath(*(_file_name(part, source) for part in parts))
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            text = f"would be {'/'.join(parts)}, as another file is; give them names that differ"
            raise BrokenTask(source, [Problem("", text)])
        if source.is_symlink():
            target.symlink_to(filled(str(source.readlink()), source))
            continue
        content = source.read_bytes()
        try:
            content = filled(content.decode("utf-8"), source).encode()
        except UnicodeDecodeError:
            pass
        target.write_bytes(content)
        target.chmod(source.stat().st_mode & 0o777)
    unused = sorted(variant.values.keys() - used - {*_OURS})
    if unused:
        text = f"is used nowhere; write {{{{{unused[0]}}}}} where its value belongs, or take it out"
        raise BrokenTask(folder / VARIANTS, [Problem(f"{variant.split}.{unused[0]}", text)])


def _load_variant(folder: Path, variant: Variant, workspace: Path) -> Task:
    into = workspace / f"{folder.name}-{variant.name}"
    render(folder, variant, into)
    try:
        task = load_task(into)
    except BrokenTask as error:
        problems = [
            Problem(each.key, f"{each.text} (in {variant.name})") for each in error.problems
        ]
        raise BrokenTask(folder / error.file.relative_to(into), problems) from error
    if task.split != variant.split:
        text = f'wants "{{{{split}}}}" in a template, found {task.split!r}'
        raise BrokenTask(folder / "task.toml", [Problem("metadata.budwood.split", text)])
    return task


def _require_names(folder: Path, tasks: list[Task]) -> None:
    """Attempts at one task are compared with each other, so no two may share a name."""
    if len({task.name for task in tasks}) < len(tasks):
        text = "is the same in several variants; put {{variant}} into it"
        raise BrokenTask(folder / "task.toml", [Problem("task.name", text)])


def _problems_of_tables(tables: Mapping[str, Any]) -> Iterator[Problem]:
    for table in tables:
        if table not in SPLITS:
            yield Problem(table, f"is no table of variants; there are {', '.join(SPLITS)}")
        elif not isinstance(tables[table], dict) or not tables[table]:
            yield Problem(table, "wants a table of lists of values")
    if not tables:
        yield Problem("", "has no variants; add a table [train] or [held-out]")


def _problems_of_names(tables: Mapping[str, dict[str, Any]]) -> Iterator[Problem]:
    names = {name for table in tables.values() for name in table}
    for split, table in tables.items():
        for name in sorted(names - table.keys()):
            yield Problem(f"{split}.{name}", "is missing; each table gives every name a value")
        lengths: set[int] = set()
        for name, values in table.items():
            yield from _problems_of_values(f"{split}.{name}", name, values)
            lengths.add(len(values) if isinstance(values, list) else 0)
        if len(lengths) > 1:
            found = ", ".join(map(str, sorted(lengths)))
            yield Problem(split, f"wants as many values of each name, found lists of {found}")


def _problems_of_values(key: str, name: str, values: object) -> Iterator[Problem]:
    if not _NAME.fullmatch(name):
        yield Problem(key, "wants a name of small letters, digits and `_`")
    if name in _OURS:
        yield Problem(key, "is given by itself; take it out")
    if not isinstance(values, list) or not values:
        yield Problem(key, f"wants a list of values, found {values!r:.40}")
        return
    for value in values:
        if isinstance(value, bool) or not isinstance(value, str | int):
            yield Problem(key, f"wants text in quotes or whole numbers, found {value!r:.40}")


def _rows(split: Split, table: Mapping[str, list[str | int]]) -> Iterator[Variant]:
    for number, row in enumerate(zip(*table.values(), strict=True), start=1):
        name = f"{split}-{number}"
        values = dict(zip(table, map(str, row), strict=True))
        yield Variant(name, split, {**values, "variant": name, "split": split})


def _require_different(file: Path, variants: tuple[Variant, ...]) -> None:
    """What is held out must not be trained on under another number."""
    seen: dict[tuple[tuple[str, str], ...], str] = {}
    for variant in variants:
        values = tuple(sorted((k, v) for k, v in variant.values.items() if k not in _OURS))
        first = seen.setdefault(values, variant.name)
        if first != variant.name:
            text = f"has the same values as {first}; give it others"
            raise BrokenTask(file, [Problem(variant.name, text)])


def _file_name(part: str, source: Path) -> str:
    if part in ("", ".", "..") or "/" in part or "\0" in part:
        text = f"would be named {part!r} in a variant, which is no file's name"
        raise BrokenTask(source, [Problem("", text)])
    return part
