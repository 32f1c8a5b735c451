"""Folders of the host as tar streams, for `put_tree` and `get_tree`.

What a sandbox gives was written by the policy, so `unpack` is on its guard: it never goes through a
link while it writes, and takes back every link that leads outside once all are there (one link can
change where another leads). Python's own filters came with 3.11.4 and differ between versions.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tarfile
import tempfile
from collections.abc import AsyncIterable, AsyncIterator
from pathlib import Path, PurePosixPath
from typing import IO

PIECE_BYTES = 256 * 1024
IN_MEMORY_BYTES = 16 * 1024**2


async def pack(folder: Path) -> AsyncIterator[bytes]:
    """Yield what a folder holds as an uncompressed tar, names relative to it.

    Owners are left out; links stay links.
    """

    def write(file: IO[bytes]) -> None:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for path in sorted(folder.iterdir()):
                tar.add(path, path.name, filter=_without_owner)
        file.seek(0)

    with tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES) as file:
        await asyncio.to_thread(write, file)
        while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
            yield piece


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


async def unpack(tar: AsyncIterable[bytes], folder: Path) -> list[str]:
    """Unpack a tar that a sandbox gave into a folder of the host, and let nothing out of it.

    Everything belongs to us and can be read and removed by us; set-uid bits are dropped. Returns
    the names of what was left out: links that lead outside, devices and the like. Raises
    tarfile.TarError for what is no tar, and for a name that leads outside; OSError for a full disk.
    """

    def read(file: IO[bytes]) -> list[str]:
        file.seek(0)
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=file, mode="r:") as archive:
            return _Unpacking(archive, folder).run()

    with tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES) as file:
        async for piece in tar:
            await asyncio.to_thread(file.write, piece)
        return await asyncio.to_thread(read, file)


class _Unpacking:
    def __init__(self, archive: tarfile.TarFile, folder: Path) -> None:
        self.archive = archive
        self.folder = folder.resolve()
        self.left_out: list[str] = []
        self.links: list[str] = []
        self.folders: list[tuple[Path, int]] = []

    def run(self) -> list[str]:
        for member in self.archive:
            self._take(member)
        for name in self.links:
            path = self.folder / name
            if path.is_symlink() and _leads_out(path, self.folder):
                path.unlink()
                self.left_out.append(name)
        # Last, so that a folder that may not be written to can be filled.
        for path, mode in reversed(self.folders):
            path.chmod(mode & 0o777 | 0o700)
        return self.left_out

    def _take(self, member: tarfile.TarInfo) -> None:
        path = self._place(member.name)
        if path == self.folder:
            return
        if member.isdir():
            if not path.is_dir() or path.is_symlink():
                path.mkdir(mode=0o700)
            self.folders.append((path, member.mode))
            return
        path.unlink(missing_ok=True)
        if member.issym():
            path.symlink_to(member.linkname)
            self.links.append(member.name)
        elif member.islnk() and self._is_plain(target := self._place(member.linkname)):
            path.hardlink_to(target)
        elif member.isreg():
            self._write(member, path)
        else:
            self.left_out.append(member.name)

    def _write(self, member: tarfile.TarInfo, path: Path) -> None:
        content = self.archive.extractfile(member)
        assert content is not None
        with path.open("xb") as file:
            shutil.copyfileobj(content, file, PIECE_BYTES)
        path.chmod(member.mode & 0o777 | 0o600)
        os.utime(path, (member.mtime, member.mtime))

    def _is_plain(self, path: Path) -> bool:
        return path.is_file() and not path.is_symlink()

    def _place(self, name: str) -> Path:
        """Return where a member goes, with the folders above it; raises TarError."""
        pure = PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts:
            raise tarfile.TarError(f"{name!r} leads outside its folder")
        for parent in reversed(pure.parents[:-1]):
            above = self.folder / parent
            if above.is_symlink() or (above.exists() and not above.is_dir()):
                raise tarfile.TarError(
                    f"{name!r} leads through {str(parent)!r}, which is no folder"
                )
            above.mkdir(mode=0o700, exist_ok=True)
        return self.folder / pure


def _leads_out(link: Path, folder: Path) -> bool:
    if os.path.isabs(os.readlink(link)):
        return True
    try:
        target = link.resolve(strict=True)
    except FileNotFoundError:
        target = link.resolve()
    except (OSError, RuntimeError):
        # A loop leads nowhere, and neither does what is too long to follow to its end.
        return True
    return not target.is_relative_to(folder)
