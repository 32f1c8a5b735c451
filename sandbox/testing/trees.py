"""Checks of files: one by one, listed, and as whole trees."""

from __future__ import annotations

import errno
import io
import os
import stat
import tarfile
import tempfile
from collections.abc import AsyncIterator, Awaitable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from ..archive import pack, unpack
from ..errors import FileFailed
from ..files import Kind
from ..interface import Sandbox
from .bench import Bench, error_of

ODD_NAMES = ["with space", "new\nline", "-dash", "é", "quote'\"", "\udcff bytes", ".hidden", "*"]


async def a_file_goes_in_and_comes_out(bench: Bench) -> None:
    """With its mode, and the folders above it."""
    async with bench.sandbox() as sandbox:
        data = os.urandom(100_000)
        await sandbox.put("a/b/run.sh", data, mode=0o750)
        assert await whole(sandbox, "a/b/run.sh") == data
        assert await whole(sandbox, f"{sandbox.workdir}/a/b/run.sh") == data
        entry = await sandbox.stat("a/b/run.sh")
        assert (entry.name, entry.kind, entry.size_bytes) == ("run.sh", Kind.FILE, 100_000)
        assert entry.mode == 0o750
        assert entry.modified_at.tzinfo is not None
        await sandbox.put("empty", b"")
        assert await whole(sandbox, "empty") == b""


async def a_large_file_is_streamed(bench: Bench) -> None:
    """In pieces, both ways."""
    piece, n_pieces = os.urandom(1024**2), 20

    async def source() -> AsyncIterator[bytes]:
        for _ in range(n_pieces):
            yield piece

    async with bench.sandbox() as sandbox:
        await sandbox.put("large", source())
        n_bytes = 0
        async for got in sandbox.get("large"):
            assert len(got) <= 1024**2
            n_bytes += len(got)
        assert n_bytes == len(piece) * n_pieces
        assert (await sandbox.stat("large")).size_bytes == n_bytes


async def a_file_longer_than_any_disk_is_left_early(bench: Bench) -> None:
    """A file may claim any length; who reads takes what it wants, and nothing goes on."""
    async with bench.sandbox() as sandbox:
        await sandbox.run("truncate -s 1T long")
        async with aclosing(sandbox.get("long")) as pieces:
            async for piece in pieces:
                assert piece
                break
        assert (await sandbox.stats()).n_processes == 0


async def names_may_be_anything(bench: Bench) -> None:
    """Spaces, line breaks, bytes that are no text."""
    async with bench.sandbox() as sandbox:
        for name in ODD_NAMES:
            await sandbox.put(f"odd/{name}", os.fsencode(name))
        assert {entry.name for entry in await sandbox.list("odd")} == set(ODD_NAMES)
        for name in ODD_NAMES:
            assert await whole(sandbox, f"odd/{name}") == os.fsencode(name)


async def links_are_seen_as_links(bench: Bench) -> None:
    """Listed as what they are, read as what they lead to, replaced and not followed by a put."""
    async with bench.sandbox() as sandbox:
        await sandbox.put("real", b"real")
        await sandbox.run("ln -s real link; ln -s nowhere broken; mkdir folder; mkfifo pipe")
        found = {entry.name: entry for entry in await sandbox.list(".")}
        assert (found["link"].kind, found["link"].target) == (Kind.LINK, "real")
        assert (found["broken"].kind, found["broken"].target) == (Kind.LINK, "nowhere")
        assert (found["folder"].kind, found["pipe"].kind) == (Kind.FOLDER, Kind.OTHER)
        assert await whole(sandbox, "link") == b"real"
        await sandbox.put("link", b"new")
        assert (await sandbox.stat("link")).kind is Kind.FILE
        assert await whole(sandbox, "real") == b"real"


async def what_cannot_be_read_or_written_says_so(bench: Bench) -> None:
    """With the error's number and the path; a pipe without a writer does not hang."""
    async with bench.sandbox() as sandbox:
        await sandbox.run("mkdir folder; mkfifo pipe; echo x >file; ln -s loop loop")
        for path, number in [
            ("absent", errno.ENOENT), ("folder", errno.EISDIR), ("file/x", errno.ENOTDIR),
            ("pipe", errno.EINVAL), ("loop", errno.ELOOP), ("a\0b", errno.EINVAL),
        ]:  # fmt: skip
            assert await number_of(whole(sandbox, path)) == number, path
        assert await number_of(sandbox.stat("absent")) == errno.ENOENT
        assert await number_of(sandbox.list("file")) == errno.ENOTDIR
        assert await number_of(sandbox.put("folder", b"")) == errno.EISDIR
        assert await number_of(sandbox.put("file/x", b"")) in {errno.ENOTDIR, errno.EEXIST}


async def a_put_that_breaks_off_leaves_the_old_file(bench: Bench) -> None:
    """Whole or not at all."""

    async def source() -> AsyncIterator[bytes]:
        yield b"half"
        raise LookupError

    async with bench.sandbox() as sandbox:
        await sandbox.put("file", b"old")
        try:
            await sandbox.put("file", source())
        except LookupError:
            pass
        assert await whole(sandbox, "file") == b"old"


async def a_tree_goes_in_and_comes_out(bench: Bench) -> None:
    """Modes, links, empty folders, odd names, folders that may not be written to."""
    with tempfile.TemporaryDirectory() as host:
        given, back = Path(host, "given"), Path(host, "back")
        (given / "deep/er").mkdir(parents=True)
        (given / "empty").mkdir()
        (given / "deep/run").write_bytes(b"#!/bin/sh\necho ran\n")
        (given / "deep/run").chmod(0o755)
        (given / "deep/er/secret").write_bytes(os.urandom(10_000))
        (given / "deep/er/secret").chmod(0o600)
        (given / "link").symlink_to("deep/run")
        for name in ODD_NAMES:
            (given / name).write_bytes(os.fsencode(name))
        (given / "deep/er").chmod(0o555)
        async with bench.sandbox() as sandbox:
            await sandbox.put_tree("tree", pack(given))
            assert (await sandbox.run(["./link"], cwd="tree")).stdout.data == b"ran\n"
            assert (await sandbox.stat("tree/deep/er")).mode == 0o555
            assert await unpack(sandbox.get_tree("tree"), back) == []
            single = Path(host, "single")
            assert await unpack(sandbox.get_tree("tree/deep/run"), single) == []
            assert (single / "run").read_bytes() == (given / "deep/run").read_bytes()
        # On the host its owner can always remove it.
        (given / "deep/er").chmod(0o755)
        assert described(back) == described(given)


async def a_tar_that_leaves_its_folder_is_refused(bench: Bench) -> None:
    """Absolute names, `..`, and links to go through."""
    async with bench.sandbox() as sandbox:
        for members in [
            [("/evil", None)], [("../evil", None)], [("a/../../evil", None)],
            [("out", ".."), ("out/evil", None)], [("out", "/"), ("out/evil", None)],
        ]:  # fmt: skip
            failed = await number_of(sandbox.put_tree("tree", _tar(members)))
            assert failed == errno.EINVAL, members
            assert "evil" not in {entry.name for entry in await sandbox.list(".")}
        assert await number_of(sandbox.put_tree("tree", _bytes(b"no tar" * 200))) == errno.EINVAL


async def a_tree_of_the_policys_cannot_leave_the_folder_of_the_host(bench: Bench) -> None:
    """`unpack` lets nothing out."""
    async with bench.sandbox() as sandbox:
        await sandbox.run(
            "mkdir t; cd t; ln -s /etc out; ln -s ../x up; echo x >plain; mkfifo pipe"
        )
        with tempfile.TemporaryDirectory() as host:
            assert set(await unpack(sandbox.get_tree("t"), Path(host))) == {"out", "up"}
            assert os.listdir(host) == ["plain"]


async def whole(sandbox: Sandbox, path: str) -> bytes:
    """Return a file."""
    return b"".join([piece async for piece in sandbox.get(path)])


async def number_of(coming: Awaitable[Any]) -> int | None:
    """Return the number of the file error that something ends with."""
    error = await error_of(coming)
    return error.errno if isinstance(error, FileFailed) else None


def described(folder: Path) -> dict[str, object]:
    """Return what is below a folder: kind and mode, and bytes or target."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        else:
            data = path.read_bytes() if path.is_file() else None
            found[name] = (stat.filemode(path.stat().st_mode), data)
    return found


async def _tar(members: list[tuple[str, str | None]]) -> AsyncIterator[bytes]:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, target in members:
            member = tarfile.TarInfo(name)
            if target is not None:
                member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
    yield file.getvalue()


async def _bytes(data: bytes) -> AsyncIterator[bytes]:
    yield data
