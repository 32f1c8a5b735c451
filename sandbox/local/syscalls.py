"""The system calls that a sandbox does without, as a program for the kernel's filter (seccomp).

Namespaces keep most of the host out of sight, but not all: a few families of sockets, the key
rings and the kernel's own log are one for the whole machine. Whoever calls for them is told that
this kernel does not have them, so that programs take their other way.
"""

from __future__ import annotations

import errno
import os
import platform
import struct
from dataclasses import dataclass

REFUSED = {
    # Key rings belong to users and sessions, not to namespaces.
    "add_key", "request_key", "keyctl",
    # The log, the counters and the programs of the whole kernel.
    "syslog", "perf_event_open", "bpf",
    # Opens sockets, and does much else, past every filter.
    "io_uring_setup",
}  # fmt: skip
UNCOUNTED = {"memfd_create"}
"""Memory that no process shows: refused where only looking holds the limit of memory."""
FAMILIES = {"UNSPEC": 0, "UNIX": 1, "INET": 2, "INET6": 10, "NETLINK": 16}
"""The sockets that a network namespace holds. Of the others, VSOCK leads out of the machine."""

_X86_64 = {
    "add_key": 248, "request_key": 249, "keyctl": 250, "syslog": 103, "perf_event_open": 298,
    "bpf": 321, "io_uring_setup": 425, "memfd_create": 319, "socket": 41, "socketpair": 53,
}  # fmt: skip
_GENERIC = {
    "add_key": 217, "request_key": 218, "keyctl": 219, "syslog": 116, "perf_event_open": 241,
    "bpf": 280, "io_uring_setup": 425, "memfd_create": 279, "socket": 198, "socketpair": 199,
}  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """How a kind of processor names its calls (linux/audit.h, unistd.h)."""

    arch: int
    numbers: dict[str, int]
    foreign_from: int | None = None
    """Numbers from here on are those of another calling convention."""


MACHINES = {
    "x86_64": Machine(0xC000003E, _X86_64, 0x40000000),
    "aarch64": Machine(0xC00000B7, _GENERIC),
    "riscv64": Machine(0xC00000F3, _GENERIC),
    "loongarch64": Machine(0xC0000102, _GENERIC),
}

_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16
"""Offsets in struct seccomp_data; arguments are 64 bits, and these machines little-endian."""
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000


def program(*, counts_memory: bool, machine: str | None = None) -> bytes:
    """Return the filter; raises KeyError for a machine whose calls are not known here.

    counts_memory: the kernel counts all memory of the sandbox.
    """
    of = MACHINES[machine or platform.machine()]
    absent = _step(_RETURN, _FAIL | errno.ENOSYS)
    steps = [_step(_LOAD, _ARCH), _step(_IF_EQUAL, of.arch, 1, 0), absent, _step(_LOAD, _NUMBER)]
    if of.foreign_from is not None:
        steps += [_step(_IF_AT_LEAST, of.foreign_from, 0, 1), absent]
    for name in sorted(REFUSED | (set() if counts_memory else UNCOUNTED)):
        steps += [_step(_IF_EQUAL, of.numbers[name], 0, 1), absent]
    steps += [_step(_IF_EQUAL, of.numbers["socket"], 2, 0)]
    steps += [_step(_IF_EQUAL, of.numbers["socketpair"], 1, 0), _step(_RETURN, _ALLOW)]
    steps += [_step(_LOAD, _FIRST_ARGUMENT)]
    for family in FAMILIES.values():
        steps += [_step(_IF_EQUAL, family, 0, 1), _step(_RETURN, _ALLOW)]
    return b"".join([*steps, _step(_RETURN, _FAIL | errno.EAFNOSUPPORT)])


def readable(data: bytes) -> int:
    """Return a file that bubblewrap can read a filter from; whoever takes it closes it."""
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    return reading


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
