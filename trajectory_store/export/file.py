"""A file that appears whole or not at all.

It is written beside its place as `.<name>.partial`, locked so that two exports to one place
cannot mix, flushed to the disk, and renamed. A partial file that a killed export left is
overwritten by the next one.
"""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from .errors import ExportError

BUFFER_BYTES = 1 << 20


class WholeFile:
    """A binary file for writing; it is put in its place by `finish()`, else removed on exit."""

    def __init__(self, path: Path) -> None:
        """Write for `path`, whose folder must exist."""
        self.path = path
        self.size_bytes = 0
        self._digest = hashlib.sha256()
        self._partial = path.with_name(f".{path.name}.partial")
        self._is_finished = False

    def __enter__(self) -> Self:
        """Open and lock the partial file."""
        try:
            handle = os.open(self._partial, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise ExportError(f"{self.path} cannot be written: {error.strerror}") from error
        try:
            _lock(handle)
        except OSError as error:
            os.close(handle)
            raise ExportError(f"another export is writing {self.path}; wait for its end") from error
        if os.fstat(handle).st_size:
            os.ftruncate(handle, 0)
        self._file = os.fdopen(handle, "wb", buffering=BUFFER_BYTES)
        return self

    def write(self, data: bytes | memoryview) -> int:
        """Append; raises `ExportError` where the disk takes no more."""
        try:
            self._file.write(data)
        except OSError as error:
            raise self._failed(error) from error
        self._digest.update(data)
        self.size_bytes += len(data)
        return len(data)

    def flush(self) -> str:
        """Make the content durable beside its place and return its SHA-256."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._failed(error) from error
        return self._digest.hexdigest()

    def finish(self) -> None:
        """Put the durable file in its place."""
        self.flush()
        try:
            os.replace(self._partial, self.path)
            self._is_finished = True
            _sync_folder(self.path.parent)
        except OSError as error:
            raise self._failed(error) from error

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Close; without `finish()` nothing stays."""
        if not self._is_finished:
            self._partial.unlink(missing_ok=True)
        try:
            self._file.close()
        except OSError:
            # What could not be flushed belongs to a file that is removed already.
            if self._is_finished:
                raise

    def _failed(self, error: OSError) -> ExportError:
        hint = "; free some space and try again" if error.errno == errno.ENOSPC else ""
        return ExportError(f"{self.path} cannot be written: {error.strerror}{hint}")


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file that appears whole or not at all."""
    with WholeFile(path) as file:
        file.write(data)
        file.finish()


def _lock(handle: int) -> None:
    try:
        import fcntl
    except ImportError:  # Windows: two exports to one place are the user's to avoid there.
        return
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
