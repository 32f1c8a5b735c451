"""Sandboxes on this machine, without a daemon: namespaces by bubblewrap, or plain processes.

It may use the interface of this room. It never knows what runs inside.
"""

from __future__ import annotations

from .backend import LocalBackend, UnisolatedBackend
from .settings import LocalSettings

__all__ = ["LocalBackend", "LocalSettings", "UnisolatedBackend"]
