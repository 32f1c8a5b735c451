"""One name for the content of a folder: equal folders have it in common, others don't.

Counted are every file's path, bytes and whether it can be executed, and every link's target. Other
mode bits differ from one checkout to the next (umask), and empty folders are not kept by git:
neither counts.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ..errors import BrokenTask, Problem


def checksum(folder: Path) -> str:
    """Return `sha256:...` of a folder's content.

    Raises BrokenTask for a link that leads out of the folder, or out of the part of the task in
    which it stands, and for what is no file at all.
    """
    total = hashlib.sha256()
    for path in sorted(files_below(folder), key=lambda path: os.fsencode(path.relative_to(folder))):
        kind, content = _content(folder, path)
        name = os.fsencode(path.relative_to(folder).as_posix())
        total.update(b"%s %d %s %d " % (kind, len(name), name, len(content)))
        total.update(content)
    return f"sha256:{total.hexdigest()}"


def files_below(folder: Path) -> Iterator[Path]:
    """Yield all that is in a folder and below but for folders; links are not followed."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from files_below(Path(entry.path))
            else:
                yield Path(entry.path)


def _content(folder: Path, path: Path) -> tuple[bytes, bytes]:
    """Return what a path is and what is in it."""
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        target = path.readlink()
        # environment/, tests/ and solution/ go to different places at different times.
        part = folder / path.relative_to(folder).parts[0]
        if target.is_absolute() or not _is_below(path, part if part != path else folder):
            text = f"is a link to {target}, out of its folder; put a copy in its place"
            raise BrokenTask(path, [Problem("", text)])
        return b"link", os.fsencode(target)
    if not stat.S_ISREG(mode):
        text = "is neither a file nor a folder nor a link; take it out"
        raise BrokenTask(path, [Problem("", text)])
    return b"program" if mode & stat.S_IXUSR else b"file", path.read_bytes()


def _is_below(path: Path, folder: Path) -> bool:
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        return False
