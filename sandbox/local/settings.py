"""What a local backend can be told."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class LocalSettings(BaseModel):
    """Settings of the local backends; the defaults run on one machine with nothing else set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    root: Path | None = None
    """Folder for what sandboxes need on disk; None is one in the system's temporary folder, shared
    by all backends of this user, which remove what dead ones left there."""
    max_sandboxes: int = Field(default=64, ge=1)
    """More at a time get NoCapacity."""
    retry_after_s: float = Field(default=5.0, gt=0)
    """What NoCapacity tells the caller to wait."""
    start_s: float = Field(default=60.0, gt=0)
    """A sandbox that does not answer within this time has failed to start."""
    stop_s: float = Field(default=10.0, gt=0)
    """A sandbox told to end is killed from outside after this time."""
    root_runs_as: int = Field(default=60700, ge=1)
    """The uid of all processes in sandboxes that root starts. Folders bound writable must belong to
    it or let it write."""
