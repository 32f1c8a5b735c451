"""Messages of the control socket: a length, JSON, and open files beside them."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

Message = dict[str, Any]
HEADER = struct.Struct("!IB")
"""Length of the JSON, number of files."""
MAX_MESSAGE_BYTES = 16 * 1024**2


def packed(message: Message, n_files: int = 0) -> bytes:
    """Return the bytes of a message."""
    body = json.dumps(message).encode()
    return HEADER.pack(len(body), n_files) + body


def receive(end: socket.socket) -> tuple[Message, list[int]] | None:
    """Return the next message and its files, or None where the other end is gone; blocks."""
    files: list[int] = []
    header = b""
    while len(header) < HEADER.size:
        data, fds, _, _ = socket.recv_fds(end, HEADER.size - len(header), 8)
        files += fds
        if not data:
            return None
        header += data
    length, _ = HEADER.unpack(header)
    body = bytearray()
    while len(body) < length:
        data = end.recv(length - len(body))
        if not data:
            return None
        body += data
    return json.loads(body), files


def send(end: socket.socket, message: Message, files: list[int] | None = None) -> None:
    """Send a message; blocks until the other end has room."""
    data = packed(message, len(files or []))
    sent = socket.send_fds(end, [data], files) if files else 0
    end.sendall(data[sent:])
