"""What a command writes and how it ends: frames, the exit, and what is kept of the output."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from .limits import MIB, Limit


class Stream(StrEnum):
    """Where a command wrote to."""

    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True)
class Frame:
    """Bytes as the command wrote them; cut anywhere, in order within their stream."""

    stream: Stream
    data: bytes


class Cause(StrEnum):
    """Why a command ended."""

    EXITED = "exited"
    """By itself, with a code."""
    SIGNALED = "signaled"
    """By a signal that was not ours: a crash, or another process of the sandbox."""
    DEADLINE = "deadline"
    """Its time was over; with all that it had started it was ended."""
    OUTPUT = "output"
    """It wrote more than `limits.output_bytes`."""
    MEMORY = "memory"
    """It took more than `limits.memory_bytes`."""
    KILLED = "killed"
    """The caller killed it."""


@dataclass(frozen=True)
class Exit:
    """How a command ended."""

    code: int | None
    """Its exit code; None where a signal ended it."""
    signal: int | None
    """The signal that ended it, if one did."""
    cause: Cause
    limits_hit: frozenset[Limit] = frozenset()
    """Limits of the sandbox that refused something while it ran, whoever ran into them."""

    @property
    def is_success(self) -> bool:
        """Whether it ended by itself with code 0."""
        return self.code == 0 and self.cause is Cause.EXITED


@dataclass(frozen=True)
class Captured:
    """What is kept of one stream: its first and its last bytes."""

    head: bytes
    tail: bytes
    n_dropped: int
    """Bytes between head and tail that were not kept."""

    @property
    def data(self) -> bytes:
        """The whole stream; raises ValueError where some of it was dropped."""
        if self.n_dropped:
            raise ValueError(
                f"{self.n_dropped} bytes of the output were not kept: take head and tail, raise "
                f"`keep_bytes`, or give a folder for the whole (`spool`)"
            )
        return self.head + self.tail

    @property
    def text(self) -> str:
        """The stream for a reader: undecodable bytes replaced, a gap named."""
        gap = f"\n[… {self.n_dropped} bytes left out …]\n".encode() if self.n_dropped else b""
        return (self.head + gap + self.tail).decode("utf-8", "replace")


@dataclass(frozen=True)
class Completed:
    """A command that ended, and what it wrote."""

    exit: Exit
    stdout: Captured
    stderr: Captured

    @property
    def is_success(self) -> bool:
        """Whether it ended by itself with code 0."""
        return self.exit.is_success


@dataclass
class Capture:
    """Keeps the first and the last `keep_bytes` of a stream, whatever its length."""

    keep_bytes: int
    n_bytes: int = 0
    _head: bytearray = field(default_factory=bytearray)
    _tail: bytearray = field(default_factory=bytearray)

    def add(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self.n_bytes += len(data)
        room = self.keep_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        # Twice as much is kept, so that it is not moved for each byte.
        if len(self._tail) > 2 * self.keep_bytes:
            del self._tail[: len(self._tail) - self.keep_bytes]

    def captured(self) -> Captured:
        """Return what is kept."""
        tail = bytes(self._tail[max(0, len(self._tail) - self.keep_bytes) :])
        return Captured(bytes(self._head), tail, self.n_bytes - len(self._head) - len(tail))


@dataclass
class Spool:
    """Writes each stream whole to a file of its own in a folder, up to a cap in bytes each."""

    folder: Path
    cap_bytes: int = 256 * MIB
    n_dropped: dict[Stream, int] = field(default_factory=lambda: dict.fromkeys(Stream, 0))
    """Bytes of each stream that were not written, for the cap."""
    _files: dict[Stream, BinaryIO] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        for stream in Stream:
            self._files[stream] = (self.folder / stream).open("wb")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def add(self, frame: Frame) -> None:
        """Write a frame, as far as the cap allows."""
        file = self._files[frame.stream]
        room = max(0, self.cap_bytes - file.tell())
        file.write(frame.data[:room])
        self.n_dropped[frame.stream] += max(0, len(frame.data) - room)
