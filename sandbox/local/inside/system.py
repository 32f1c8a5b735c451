"""The few calls of the kernel that Python does not have."""

from __future__ import annotations

import ctypes
import os

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
IPC_RMID = 0

PROC = "."
"""Process 1 stands in /proc: a command that closes the root cuts off every path that begins there.
"""

_libc = ctypes.CDLL(None, use_errno=True)


def remove_ipc(kind: str, number: int) -> None:
    """Remove a segment (`shm`), queue (`msg`) or set of semaphores (`sem`); no error is told."""
    if kind == "sem":
        _libc.semctl(number, 0, IPC_RMID)
    else:
        {"shm": _libc.shmctl, "msg": _libc.msgctl}[kind](number, IPC_RMID, None)


def prctl(option: int, value: int) -> None:
    """Set a property of this process; raises OSError."""
    if _libc.prctl(option, value, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
