"""The folders that backends leave on disk, each locked by its owner: a dead one's are found.

ROOT/be_1234_abcd/lock          held while the backend lives
ROOT/be_1234_abcd/groups        control groups that it may have made
ROOT/be_1234_abcd/sb_…/         one folder a sandbox
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import IO

from .cgroup import remove_group


def default_root() -> Path:
    """Return the folder that this user's backends share."""
    return Path(tempfile.gettempdir()) / f"budwood-sandboxes-{os.geteuid()}"


class OwnFolder:
    """The folder of one backend that lives."""

    def __init__(self, root: Path) -> None:
        """Make and lock it, and remove what dead backends left; raises OSError."""
        root.mkdir(mode=0o711, parents=True, exist_ok=True)
        if root.stat().st_uid != os.geteuid():
            raise PermissionError(
                f"{root} belongs to another user: give the backend a root of yours"
            )
        sweep(root)
        self.name = f"be_{os.getpid()}_{secrets.token_hex(3)}"
        self.path = root / self.name
        # Hidden until it is locked: a sweep takes only names that begin with be_.
        hidden = root / f".{self.name}"
        hidden.mkdir(mode=0o711)
        self._lock = _locked(hidden / "lock")
        hidden.rename(self.path)

    def note_groups(self, name: str, parents: set[Path]) -> None:
        """Write down which control groups a sandbox will have, before they are made."""
        with (self.path / "groups").open("a") as file:
            file.writelines(f"{parent / name}\n" for parent in parents)

    def remove(self) -> None:
        """Remove it and let go of the lock."""
        remove_folder(self.path)
        if self._lock is not None:
            self._lock.close()


def _locked(path: Path) -> IO[str] | None:
    """Return the locked file, or None where another process holds it."""
    file = path.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def sweep(root: Path) -> list[str]:
    """Remove the folders and control groups of backends that are dead; return their names."""
    swept = []
    for folder in root.glob("be_*"):
        try:
            lock = _locked(folder / "lock")
        except OSError:
            continue
        if lock is None:
            continue
        with lock:
            with contextlib.suppress(FileNotFoundError):
                for line in (folder / "groups").read_text().splitlines():
                    remove_group(Path(line))
            remove_folder(folder)
            swept.append(folder.name)
    return swept


def remove_folder(path: Path) -> None:
    """Remove a folder whose insides may have any modes."""
    for folder, names, _ in os.walk(path):
        for name in names:
            inner = Path(folder, name)
            if not inner.is_symlink() and inner.stat().st_mode & 0o700 != 0o700:
                inner.chmod(0o700)
    shutil.rmtree(path, ignore_errors=True)
