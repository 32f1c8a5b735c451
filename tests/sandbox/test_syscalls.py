"""The filter of system calls, run as the kernel would, for machines that we are not on.

On this one the conformance suite shows what it holds.
"""

import errno
import socket
import struct

import pytest

from budwood.sandbox.local.syscalls import MACHINES, REFUSED, program

ALLOWED = 0x7FFF0000
ABSENT, NO_SUCH_FAMILY = 0x50000 | errno.ENOSYS, 0x50000 | errno.EAFNOSUPPORT


def verdict(machine, number, *, arch=None, first=0, counts_memory=True):
    """Return what the filter says of a call, by classic BPF's few instructions that it uses."""
    data = struct.pack("<IIQQ", number, arch or MACHINES[machine].arch, 0, first)
    steps = list(struct.iter_unpack("=HBBI", program(counts_memory=counts_memory, machine=machine)))
    at, held = 0, 0
    while True:
        code, if_true, if_false, value = steps[at]
        at += 1
        if code == 0x20:
            held = struct.unpack_from("<I", data, value)[0]
        elif code == 0x06:
            return value
        else:
            at += if_true if (held == value if code == 0x15 else held >= value) else if_false


@pytest.mark.parametrize("machine", MACHINES)
def test_a_call_is_let_through_unless_it_is_refused_by_name(machine):
    numbers = MACHINES[machine].numbers
    others = set(range(460)) - set(numbers.values())
    assert {verdict(machine, number) for number in others} == {ALLOWED}
    assert {verdict(machine, numbers[name]) for name in REFUSED} == {ABSENT}
    assert verdict(machine, numbers["memfd_create"]) == ALLOWED
    assert verdict(machine, numbers["memfd_create"], counts_memory=False) == ABSENT


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("call", ["socket", "socketpair"])
def test_a_socket_is_one_of_its_own_network_or_of_none(machine, call):
    number = MACHINES[machine].numbers[call]
    held = {family for family in range(64) if verdict(machine, number, first=family) == ALLOWED}
    assert held == {
        socket.AF_UNSPEC, socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK,
    }  # fmt: skip
    assert verdict(machine, number, first=40) == NO_SUCH_FAMILY


@pytest.mark.parametrize("machine", MACHINES)
def test_another_calling_convention_is_no_way_around_it(machine):
    i386 = 0x40000003
    assert verdict(machine, 0, arch=i386) == ABSENT
    assert verdict("x86_64", 0x40000000 + MACHINES["x86_64"].numbers["socket"]) == ABSENT
