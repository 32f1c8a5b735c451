"""What this machine lets us do, found out by trying, and what to change where it does not."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import StartFailed
from ..limits import Limit
from . import syscalls
from .cgroup import Tree, find_trees

PROBE_S = 20.0
SETTINGS = {
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "AppArmor forbids unprivileged user namespaces (Ubuntu 23.10 and later): set "
        "kernel.apparmor_restrict_unprivileged_userns=0, or give bwrap a profile with `userns`",
    ),
    "/proc/sys/kernel/unprivileged_userns_clone": (
        "0",
        "this kernel forbids unprivileged user namespaces: set kernel.unprivileged_userns_clone=1",
    ),
    "/proc/sys/user/max_user_namespaces": (
        "0",
        "user namespaces are switched off: set user.max_user_namespaces to a few thousand",
    ),
}


@dataclass(frozen=True)
class Host:
    """What was found."""

    bwrap: str
    identity: int | None
    """The uid that sandboxes run as; None where it is our own."""
    trees: Mapping[Limit, Tree] = field(default_factory=dict)

    @property
    def counts_processes(self) -> bool:
        """Whether the kernel counts a user's processes for each user namespace (5.14 and later)."""
        return kernel_version() >= (5, 14)

    def prefix(self) -> list[str]:
        """Return the words before bwrap's that give up root, where we have it."""
        if self.identity is None:
            return []
        uid = str(self.identity)
        return ["setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", "--"]


def kernel_version() -> tuple[int, int]:
    """Return the first two numbers of the kernel's version."""
    numbers = re.match(r"(\d+)\.(\d+)", platform.release())
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def look(root_runs_as: int) -> Host:
    """Find out what is here; raises StartFailed with what to do where sandboxes can't be made."""
    if sys.platform != "linux":
        raise StartFailed(f"local sandboxes need Linux, this is {sys.platform}; {_INSTEAD}")
    if platform.machine() not in syscalls.MACHINES:
        known = ", ".join(syscalls.MACHINES)
        raise StartFailed(
            f"local sandboxes are for {known}, this is {platform.machine()}; {_INSTEAD}"
        )
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise StartFailed(f"bubblewrap is not here: install the package `bubblewrap`; {_INSTEAD}")
    is_root = os.geteuid() == 0
    if is_root and shutil.which("setpriv") is None:
        raise StartFailed("setpriv is not here, to give up root: install the package `util-linux`")
    host = Host(bwrap, root_runs_as if is_root else None, find_trees())
    _try_namespaces(host)
    return host


_INSTEAD = "without isolation, ask for the backend local-unisolated by name"


def _try_namespaces(host: Host) -> None:
    command = [*host.prefix(), host.bwrap, "--unshare-all", "--unshare-user", "--disable-userns"]
    filtered = syscalls.readable(syscalls.program(counts_memory=True))
    command += ["--seccomp", str(filtered), "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    try:
        tried = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PROBE_S, cwd="/",
            pass_fds=[filtered],
        )  # fmt: skip
    finally:
        os.close(filtered)
    if tried.returncode:
        who = f"uid {host.identity if host.identity is not None else os.geteuid()}"
        said = tried.stderr.strip() or f"exit code {tried.returncode}"
        raise StartFailed(f"bubblewrap can't make namespaces for {who}: {said}. {advice()}")


def advice(root: Path = Path("/")) -> str:
    """Return which setting of this machine is in the way, and how to go on without."""
    found = []
    for name, (forbidding, what) in SETTINGS.items():
        file = root / name.lstrip("/")
        if file.exists() and file.read_text().strip() == forbidding:
            found.append(what)
    if not found:
        found = [
            "No setting of the kernel says why: inside a container its seccomp profile or a masked "
            "/proc may forbid it (Docker: --security-opt seccomp=unconfined systempaths=unconfined)"
        ]
    return "; ".join([*found, _INSTEAD])
