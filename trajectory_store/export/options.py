"""What can be asked of an export."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The defaults write what may be trained on: exact, delivered, without secrets."""

    include_inexact: bool = False
    """Also sequences that are not proved equal to what the engine read and sampled."""
    include_secrets: bool = False
    """Also sequences in whose content a secret was found, and texts unmasked."""
    lanes: tuple[str, ...] = ("main", "sub-agent")
    """Kinds of lanes whose sequences are written."""
    rows: Literal["trl-sft", "trl-grpo"] = "trl-sft"
    """What the rows of `parquet` are."""

    def as_json(self, to: str) -> dict[str, Any]:
        """Return the options that the format `to` knows, for a manifest."""
        known = asdict(self) | {"lanes": list(self.lanes)}
        if to != "parquet":
            del known["rows"]
        return known
