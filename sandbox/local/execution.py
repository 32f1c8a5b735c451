"""A command in a local sandbox, seen from outside: three pipes, and what process 1 says of it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from ..errors import SandboxError
from ..interface import Execution, Input
from ..output import Cause, Exit, Frame, Stream
from .inside.wire import Message

PIECE_BYTES = 65536


@dataclass
class Pipes:
    """The pipes of a command: ours, and those that it inherits."""

    ours: tuple[int, int, int]
    its: tuple[int, int, int]
    _open: set[int] = field(default_factory=set)

    @classmethod
    def make(cls, *, has_input: bool) -> Pipes:
        """Open them; without input the command reads /dev/null."""
        opened: list[int] = []
        try:
            if has_input:
                opened += os.pipe()
            else:
                null = os.open(os.devnull, os.O_RDONLY)
                opened += [null, -1]
            opened += os.pipe()
            opened += os.pipe()
        except OSError:
            for fd in opened:
                if fd >= 0:
                    os.close(fd)
            raise
        its_in, our_in, our_out, its_out, our_err, its_err = opened
        pipes = cls((our_in, our_out, our_err), (its_in, its_out, its_err))
        pipes._open = {fd for fd in opened if fd >= 0}
        for fd in pipes.ours:
            if fd >= 0:
                os.set_blocking(fd, False)
        return pipes

    def close(self, *fds: int) -> None:
        """Close some, or all that are still open."""
        for fd in fds or tuple(self._open):
            if fd in self._open:
                self._open.discard(fd)
                os.close(fd)


class LocalExecution(Execution):
    """A command that process 1 was ordered to run."""

    def __init__(
        self,
        number: int,
        pipes: Pipes,
        order: Callable[[Message], None],
        output_bytes: int | None,
    ) -> None:
        """Take the pipes; `order` sends a message to process 1."""
        self.number = number
        self.exit: Exit | None = None
        self.pipes = pipes
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()
        """Set once process 1 said how it ended, or the sandbox is gone."""
        self._order = order
        self._room = output_bytes
        self._is_cut = False
        self._news: Exit | SandboxError | None = None
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._open = {Stream.STDOUT: pipes.ours[1], Stream.STDERR: pipes.ours[2]}
        self._left: dict[Stream, int] | None = None
        """Once it has ended: bytes of each pipe that are still its own output."""

    def finish(self, news: Exit | SandboxError) -> None:
        """Take in how it ended, or what became of the sandbox; the first word counts."""
        if self._news is None:
            self._news = news
            self.ended.set()
            self._wake.set()
            if not self.started.done():
                if isinstance(news, SandboxError):
                    self.started.set_exception(news)
                    self.started.exception()
                else:
                    self.started.set_result(None)

    async def __aiter__(self) -> AsyncIterator[Frame]:
        while True:
            is_over = self._news
            if isinstance(is_over, Exit) and self._left is None:
                # What it left running may write into the same pipes without end.
                self._left = {stream: _waiting_in(fd) for stream, fd in self._open.items()}
            frames = [frame for frame in map(self._read, list(self._open)) if frame is not None]
            for frame in frames:
                allowed = self._allowed(frame)
                if allowed.data:
                    yield allowed
            if frames:
                # Endless output never lets the loop wait, and others live on it too.
                await asyncio.sleep(0)
            elif isinstance(is_over, Exit):
                self.exit = is_over
                return
            elif is_over is not None:
                raise is_over
            else:
                await self._news_or_output()

    def _read(self, stream: Stream) -> Frame | None:
        room = PIECE_BYTES if self._left is None else min(PIECE_BYTES, self._left[stream])
        try:
            data = os.read(self._open[stream], room)
        except BlockingIOError:
            return None
        if not data:
            del self._open[stream]
            return None
        if self._left is not None:
            self._left[stream] -= len(data)
        return Frame(stream, data)

    def _allowed(self, frame: Frame) -> Frame:
        """Return what the limit of output lets through, and end a command that passes it."""
        if self._room is None or len(frame.data) <= self._room:
            self._room = None if self._room is None else self._room - len(frame.data)
            return frame
        room, self._room = self._room, 0
        if not self._is_cut:
            self._is_cut = True
            self.end(Cause.OUTPUT)
        return Frame(frame.stream, frame.data[:room])

    async def _news_or_output(self) -> None:
        self._wake.clear()
        waiting = list(self._open.values())
        for fd in waiting:
            self._loop.add_reader(fd, self._wake.set)
        try:
            if self._news is None:
                await self._wake.wait()
        finally:
            for fd in waiting:
                self._loop.remove_reader(fd)

    async def feed(self, data: Input) -> None:
        """Write the command's input to its end; a command that does not read it is no error."""
        if data is None:
            return
        try:
            if isinstance(data, bytes):
                await self._write(data)
            else:
                async for piece in data:
                    await self._write(piece)
        except BrokenPipeError:
            pass
        except Exception:
            # The source of the input failed: nothing good can come of the half of it.
            self.end(Cause.KILLED)
            raise
        self.pipes.close(self.pipes.ours[0])

    async def _write(self, data: bytes) -> None:
        fd = self.pipes.ours[0]
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(fd, left) :]
            except BlockingIOError:
                writable = asyncio.Event()
                self._loop.add_writer(fd, writable.set)
                try:
                    await writable.wait()
                finally:
                    self._loop.remove_writer(fd)

    async def signal(self, number: int) -> None:
        """Send a signal to the command's process group."""
        self._order({"do": "signal", "id": self.number, "signal": number})

    async def kill(self) -> None:
        """Kill the command and all that it started."""
        self.end(Cause.KILLED)

    def end(self, cause: Cause) -> None:
        """Order the end of the command and of all that it started."""
        self._order({"do": "kill", "id": self.number, "cause": cause})


def _waiting_in(fd: int) -> int:
    """Return how many bytes a pipe holds."""
    return struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0]
