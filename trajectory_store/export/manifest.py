"""The manifest of an export: what the file holds, and what was left out and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import orjson

from ..records import SCHEMA_VERSION

MANIFEST_VERSION = 1


def manifest_path(out: Path) -> Path:
    """Return where the manifest of an exported file is."""
    return out.with_name(out.name + ".manifest.json")


def software_versions() -> dict[str, Any]:
    """Return the versions that decide an export's bytes."""
    return {"budwood": metadata.version("budwood"), "records": SCHEMA_VERSION}


@dataclass(slots=True)
class Counts:
    """What happened to the selected rollouts; filled while rows are written."""

    n_rollouts: int = 0
    """Selected."""
    n_rollouts_written: int = 0
    """With one row or more."""
    n_rows: int = 0
    n_tokens: int = 0
    n_trained_tokens: int = 0
    rollouts_left_out: Counter[str] = field(default_factory=Counter[str])
    sequences_left_out: Counter[str] = field(default_factory=Counter[str])
    calls_not_trained: Counter[str] = field(default_factory=Counter[str])
    """Calls whose output no row trains, by the store's reason."""
    notes: Counter[str] = field(default_factory=Counter[str])
    """What a reader should know of what was written: `open_rollouts`, `ungrouped_rows`."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The finished manifest; equal exports have equal manifests, so it holds no time."""

    format: str
    file: str
    sha256: str
    size_bytes: int
    selector: str
    options: dict[str, Any]
    versions: dict[str, Any]
    counts: Counts

    def as_json(self) -> dict[str, Any]:
        """Return what is written to the manifest file."""
        counts = self.counts
        return {
            "manifest": MANIFEST_VERSION,
            "format": self.format,
            "file": self.file,
            "sha256": self.sha256,
            "size_bytes": self.size_bytes,
            "selector": self.selector,
            "options": self.options,
            "versions": self.versions,
            "rollouts": {"selected": counts.n_rollouts, "written": counts.n_rollouts_written},
            "rows": counts.n_rows,
            "tokens": {"all": counts.n_tokens, "trained": counts.n_trained_tokens},
            "left_out": {
                "rollouts": _sorted(counts.rollouts_left_out),
                "sequences": _sorted(counts.sequences_left_out),
                "calls": _sorted(counts.calls_not_trained),
            },
            "notes": _sorted(counts.notes),
        }

    def as_bytes(self) -> bytes:
        """Return the manifest file's bytes."""
        return orjson.dumps(self.as_json(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def is_manifest(data: bytes) -> bool:
    """Whether a file's bytes are a manifest of any version."""
    try:
        return "manifest" in orjson.loads(data)
    except (orjson.JSONDecodeError, TypeError):
        return False


def _sorted(counter: Counter[str]) -> dict[str, int]:
    return {reason: counter[reason] for reason in sorted(counter) if counter[reason]}
