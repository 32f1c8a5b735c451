"""Our end of a sandbox's control socket: messages out in order, messages in to one listener.

What comes in was written by process 1 of the sandbox, which the policy can't reach; it is read as
plain data all the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections import deque
from collections.abc import Callable

from .inside.wire import HEADER, MAX_MESSAGE_BYTES, Message, packed

Listener = Callable[[Message, list[int]], None]


class Control:
    """Sends and receives messages on a connected socket until `close`."""

    def __init__(self, end: socket.socket, listener: Listener) -> None:
        """Take over our end; `listener` gets each message with the open files that came with it."""
        self._end = end
        self._end.setblocking(False)
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[bytes, list[int]]] = deque()
        self._buffer = bytearray()
        self._files: list[int] = []
        self._is_open = True
        self._loop.add_reader(end.fileno(), self._receive)

    def send(self, message: Message, files: list[int] | None = None) -> None:
        """Send a message with copies of open files, now or once there is room.

        Where nobody is there any more nothing happens: the end of the process says so.
        """
        copies = [os.dup(fd) for fd in files or []]
        self._waiting.append((packed(message, len(copies)), copies))
        if len(self._waiting) == 1:
            self._flush()

    def _flush(self) -> None:
        self._loop.remove_writer(self._end.fileno())
        while self._waiting and self._is_open:
            data, files = self._waiting.popleft()
            try:
                sent = socket.send_fds(self._end, [data], files)
            except BlockingIOError:
                sent = 0
            except OSError:
                sent = len(data)
            if sent:
                _close(files)
                files = []
            if sent < len(data):
                self._waiting.appendleft((data[sent:], files))
                self._loop.add_writer(self._end.fileno(), self._flush)
                return

    def _receive(self) -> None:
        try:
            data, files, _, _ = socket.recv_fds(self._end, 65536, 8)
        except BlockingIOError:
            return
        except OSError:
            data, files = b"", []
        self._files += files
        self._buffer += data
        if not data:
            self._loop.remove_reader(self._end.fileno())
            return
        while len(self._buffer) >= HEADER.size:
            length, n_files = HEADER.unpack_from(self._buffer)
            if length > MAX_MESSAGE_BYTES:
                self._loop.remove_reader(self._end.fileno())
                return
            if len(self._buffer) < HEADER.size + length:
                return
            message = json.loads(self._buffer[HEADER.size : HEADER.size + length])
            del self._buffer[: HEADER.size + length]
            taken, self._files = self._files[:n_files], self._files[n_files:]
            self._listener(message, taken)

    def close(self) -> None:
        """Let go of the socket, which tells the sandbox to end."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._end.fileno())
            self._loop.remove_writer(self._end.fileno())
            self._end.close()
            _close(self._files)
            for _, files in self._waiting:
                _close(files)


def _close(files: list[int]) -> None:
    for fd in files:
        os.close(fd)
