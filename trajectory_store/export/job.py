"""One export from selector to finished file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ..ids import RolloutId
from ..store import Store
from . import grpo, records, sft
from .errors import ExportError
from .file import WholeFile, write_whole
from .manifest import Counts, Manifest, is_manifest, manifest_path, software_versions
from .options import ExportOptions
from .sinks import JsonLines, Parquet, Row, Sink

Rows = Callable[[Store, RolloutId, ExportOptions, Counts], Iterator[Row]]


@dataclass(frozen=True, slots=True)
class Exporter:
    """One format: which rows, and where they go."""

    rows: Callable[[ExportOptions], Rows]
    sink: Callable[[WholeFile, ExportOptions], Sink]
    suffix: str = ".jsonl"


_TRL: Mapping[str, tuple[Rows, Mapping[str, str]]] = MappingProxyType(
    {"trl-sft": (sft.rows, sft.COLUMNS), "trl-grpo": (grpo.rows, grpo.COLUMNS)}
)

EXPORTERS: Mapping[str, Exporter] = MappingProxyType(
    {
        "trl-sft": Exporter(lambda _: sft.rows, lambda file, _: JsonLines(file)),
        "trl-grpo": Exporter(lambda _: grpo.rows, lambda file, _: JsonLines(file)),
        "jsonl": Exporter(lambda _: records.RecordRows().rows, lambda file, _: JsonLines(file)),
        "parquet": Exporter(
            lambda options: _TRL[options.rows][0],
            lambda file, options: Parquet(file, _TRL[options.rows][1]),
            suffix=".parquet",
        ),
    }
)
"""Format name → what writes it."""


def export(
    store: Store,
    selector: str,
    to: str,
    out: Path,
    options: ExportOptions | None = None,
    *,
    overwrite: bool = False,
    on_rollout: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Write the selected rollouts to `out` and return the manifest that stands beside it.

    A file that an export made is replaced; any other only with `overwrite`. `on_rollout` hears
    how many rollouts of how many are done. Raises `SelectorError` and `ExportError`.
    """
    options = options or ExportOptions()
    if to not in EXPORTERS:
        raise ExportError(f"no format {to!r}; there are {', '.join(EXPORTERS)}")
    if not overwrite:
        _check_place(out)
    exporter, counts = EXPORTERS[to], Counts()
    rollouts = store.select(selector)
    counts.n_rollouts = len(rollouts)
    with WholeFile(out) as file:
        sink = exporter.sink(file, options)
        rows = exporter.rows(options)
        for number, rollout_id in enumerate(rollouts, 1):
            _write_rollout(store, rollout_id, rows, sink, options, counts)
            if on_rollout is not None:
                on_rollout(number, len(rollouts))
        sink.close()
        manifest = Manifest(
            format=to,
            file=out.name,
            sha256=file.flush(),
            size_bytes=file.size_bytes,
            selector=selector,
            options=options.as_json(to),
            versions=_versions(to),
            counts=counts,
        )
        # First the manifest: whoever finds the file finds what it holds, and an export that was
        # killed between the two may be repeated.
        write_whole(manifest_path(out), manifest.as_bytes())
        file.finish()
    return manifest


def _check_place(out: Path) -> None:
    """Raise ExportError where something is in the way that no export made."""
    manifest = manifest_path(out)
    try:
        if out.exists() and not manifest.exists():
            raise ExportError(f"{out} is there already and no export made it; choose another file")
        if manifest.exists() and not is_manifest(manifest.read_bytes()):
            raise ExportError(f"{manifest} is no manifest of an export; choose another file")
    except OSError as error:
        raise ExportError(f"{out} cannot be written: {error.strerror}") from error


def _write_rollout(
    store: Store,
    rollout_id: RolloutId,
    rows: Rows,
    sink: Sink,
    options: ExportOptions,
    counts: Counts,
) -> None:
    before = counts.n_rows
    for row in rows(store, rollout_id, options, counts):
        sink.write(row)
        counts.n_rows += 1
    if counts.n_rows > before:
        counts.n_rollouts_written += 1
        if store.rollout(rollout_id).state == "open":
            counts.notes["open_rollouts"] += 1


def _versions(to: str) -> dict[str, object]:
    if to != "parquet":
        return software_versions()
    from .sinks import load_pyarrow

    return {**software_versions(), "pyarrow": load_pyarrow().__version__}
