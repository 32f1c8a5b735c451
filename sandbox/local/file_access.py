"""File operations of a local sandbox: each a process inside, with its data on stdin and stdout."""

from __future__ import annotations

import errno
import json
import stat
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import UTC, datetime
from typing import Any

from ..errors import FileFailed
from ..files import Entry, Kind
from ..interface import Input, Sandbox
from ..limits import MIB
from ..output import Stream
from .execution import LocalExecution
from .inside.file_calls import FAILED

MAX_LISTED_BYTES = 32 * MIB
"""What is said of a folder's entries, some 100 bytes each; a policy can make millions."""
KINDS = {stat.S_IFREG: Kind.FILE, stat.S_IFDIR: Kind.FOLDER, stat.S_IFLNK: Kind.LINK}


class FileAccess(Sandbox):
    """The part of a sandbox that reads and writes files."""

    @abstractmethod
    def _call(
        self, name: str, arguments: dict[str, Any], stdin: Input
    ) -> AbstractAsyncContextManager[LocalExecution]: ...

    async def _output(
        self, name: str, arguments: dict[str, Any], stdin: Input = None
    ) -> AsyncGenerator[bytes]:
        """Yield what a call writes; raises FileFailed at its end where it failed."""
        said = bytearray()
        async with self._call(name, arguments, stdin) as execution:
            async for frame in execution:
                if frame.stream is Stream.STDOUT:
                    yield frame.data
                elif len(said) < 65536:
                    said += frame.data
        ended = execution.exit
        assert ended is not None
        if ended.code == FAILED:
            number, detail = json.loads(said)
            raise FileFailed(number, arguments["path"], detail)
        if not ended.is_success:
            detail = said.decode("utf-8", "replace").strip() or f"ended by {ended.cause}"
            raise FileFailed(5, arguments["path"], f"{name} did not come to its end: {detail}")

    async def put(
        self, path: str, data: bytes | AsyncIterable[bytes], *, mode: int = 0o644
    ) -> None:
        """Write a file whole or not at all."""
        async for _ in self._output("put", {"path": path, "mode": mode}, data):
            pass

    def get(self, path: str) -> AsyncGenerator[bytes]:
        """Yield the bytes of a file."""
        return self._output("get", {"path": path})

    async def put_tree(self, path: str, tar: AsyncIterable[bytes]) -> None:
        """Unpack a tar into a folder."""
        async for _ in self._output("put_tree", {"path": path}, tar):
            pass

    def get_tree(self, path: str) -> AsyncGenerator[bytes]:
        """Yield a file or folder as a tar."""
        return self._output("get_tree", {"path": path})

    async def list(self, path: str) -> list[Entry]:
        """Return what a folder holds."""
        return await self._described(path, is_folder=True)

    async def stat(self, path: str) -> Entry:
        """Return what is said of a path."""
        [entry] = await self._described(path, is_folder=False)
        return entry

    async def _described(self, path: str, *, is_folder: bool) -> list[Entry]:
        arguments = {"path": path, "is_folder": is_folder}
        said = bytearray()
        async with aclosing(self._output("describe", arguments)) as pieces:
            async for piece in pieces:
                said += piece
                if len(said) > MAX_LISTED_BYTES:
                    raise FileFailed(errno.EOVERFLOW, path, "more entries than can be listed")
        return [_entry(*json.loads(line)) for line in said.splitlines()]


def _entry(name: str, mode: int, size_bytes: int, modified: float, target: str | None) -> Entry:
    return Entry(
        name,
        KINDS.get(stat.S_IFMT(mode), Kind.OTHER),
        size_bytes,
        stat.S_IMODE(mode),
        datetime.fromtimestamp(modified, UTC),
        target,
    )
