"""File operations, each in a process of its own inside: paths resolve as they do there.

Each reads its data from stdin and writes to stdout. An error goes to stderr as one JSON line, and
the exit code is FAILED.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import sys
import tarfile
from typing import Any

FAILED = 70
PIECE_BYTES = 256 * 1024


def put(path: str, mode: int) -> None:
    """Write stdin to a file beside the wanted one, then rename it there."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.isdir(path) and not os.path.islink(path):
        raise IsADirectoryError(21, os.strerror(21), path)
    part = os.path.join(os.path.dirname(path), f".put-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with open(part, "xb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file, PIECE_BYTES)
        os.chmod(part, mode)
        os.rename(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def get(path: str) -> None:
    """Write a file to stdout."""
    # A pipe without a writer would wait for ever.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(21, os.strerror(21), path)
        if not stat.S_ISREG(mode):
            raise OSError(22, "not a regular file", path)
        shutil.copyfileobj(file, sys.stdout.buffer, PIECE_BYTES)


def put_tree(path: str) -> None:
    """Unpack a tar from stdin."""
    os.makedirs(path, exist_ok=True)
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as tar:
        # What may be unpacked is decided below; Python's own filters differ from version to
        # version.
        tar.extraction_filter = _as_it_is
        folders = []
        for member in tar:
            _check_member(member, path)
            member.uid, member.gid = os.geteuid(), os.getegid()
            member.uname = member.gname = ""
            if member.isdir():
                folders.append((os.path.join(path, member.name), member.mode))
                member.mode = 0o700
            _extract(tar, member, path)
        # Last, so that a folder that may not be written to can be filled.
        for folder, mode in reversed(folders):
            os.chmod(folder, mode & 0o777)


def _as_it_is(member: tarfile.TarInfo, _: str) -> tarfile.TarInfo:
    return member


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    where = os.path.join(path, member.name)
    if not member.isdir() and os.path.lexists(where):
        os.unlink(where)
    tar.extract(member, path, set_attrs=not member.issym(), numeric_owner=True)


def _check_member(member: tarfile.TarInfo, path: str) -> None:
    inside = os.path.realpath(path)
    where = os.path.realpath(os.path.join(path, os.path.dirname(member.name)))
    if member.name.startswith("/") or os.path.commonpath([inside, where]) != inside:
        raise OSError(22, "a member of the tar leads outside its folder", member.name)
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        raise OSError(22, "a member of the tar is no file, folder or link", member.name)
    if member.islnk():
        linked = os.path.realpath(os.path.join(path, member.linkname))
        if os.path.commonpath([inside, linked]) != inside:
            raise OSError(22, "a member of the tar links outside its folder", member.name)


def get_tree(path: str) -> None:
    """Write a file or folder to stdout as a tar, sockets and the like left out."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        kept = member.isreg() or member.isdir() or member.issym() or member.islnk()
        return member if kept else None

    os.lstat(path)
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        if os.path.isdir(path):
            for name in sorted(os.listdir(path)):
                tar.add(os.path.join(path, name), name, filter=plain)
        else:
            tar.add(path, os.path.basename(path), filter=plain)


def describe(path: str, is_folder: bool) -> None:
    """Write a JSON line for a path, or for each one in a folder."""
    paths = [os.path.join(path, name) for name in sorted(os.listdir(path))] if is_folder else [path]
    for each in paths:
        about = os.lstat(each)
        link = os.readlink(each) if stat.S_ISLNK(about.st_mode) else None
        line = [os.path.basename(each), about.st_mode, about.st_size, about.st_mtime, link]
        print(json.dumps(line))


CALLS = {"put": put, "get": get, "put_tree": put_tree, "get_tree": get_tree, "describe": describe}


def run(name: str, arguments: dict[str, Any]) -> int:
    """Run a call; return the exit code of its process."""
    try:
        CALLS[name](**arguments)
        sys.stdout.flush()
    except OSError as error:
        print(json.dumps([error.errno or 5, error.strerror or str(error)]), file=sys.stderr)
        return FAILED
    except tarfile.TarError as error:
        print(json.dumps([22, f"not a readable tar: {error}"]), file=sys.stderr)
        return FAILED
    return 0
