"""Gives a sandbox one address: who connects to a socket inside talks to a Unix socket here.

The socket was made inside, so it belongs to the loopback of the sandbox's own network, and was
handed out over the control socket. So no socket of the host is bound in, no process inside can be
killed to cut the way, and the proxy's socket may be made anew while the sandbox lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

PIECE_BYTES = 65536
MAX_CONNECTIONS = 64
"""At a time; more wait. Each takes files of this process, which all sandboxes share."""
PAUSE_S = 0.1
"""Until the next try where the host has no file left for a connection."""


async def forward(listener: socket.socket, target: Path) -> None:
    """Accept and relay until cancelled; closes the listener.

    A connection for which the proxy is not there is closed at once, which a harness's SDK takes for
    a failure that may heal.
    """
    loop = asyncio.get_running_loop()
    places = asyncio.Semaphore(MAX_CONNECTIONS)
    with listener:
        async with asyncio.TaskGroup() as connections:
            while True:
                await places.acquire()
                try:
                    inner, _ = await loop.sock_accept(listener)
                except OSError:  # the caller left at once, or this process has too many files open
                    places.release()
                    await asyncio.sleep(PAUSE_S)
                    continue
                task = connections.create_task(_relay(inner, target))
                task.add_done_callback(lambda _: places.release())


async def _relay(inner: socket.socket, target: Path) -> None:
    loop = asyncio.get_running_loop()
    inner.setblocking(False)
    with inner, contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as outer:
        outer.setblocking(False)
        await loop.sock_connect(outer, str(target))
        async with asyncio.TaskGroup() as ways:
            ways.create_task(_pump(inner, outer))
            ways.create_task(_pump(outer, inner))


async def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Copy until the source says no more; then say so to the sink, whose answer may go on."""
    loop = asyncio.get_running_loop()
    try:
        while data := await loop.sock_recv(source, PIECE_BYTES):
            await loop.sock_sendall(sink, data)
    except OSError:
        # One side broke: so does the other, and with it the other way.
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        return
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
