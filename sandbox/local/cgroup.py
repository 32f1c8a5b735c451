"""Control groups: where the kernel counts memory and processes of a whole sandbox and refuses more.

Version 1 (one tree for each controller) and version 2 (one tree) both work where this process may
make groups: below its own, or with version 2 below the nearest one above that allows it. There a
group that limits others can't hold processes itself, so the groups of sandboxes become siblings of
the leaf that holds this process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..limits import Limit

CONTROLLERS = {Limit.MEMORY: "memory", Limit.PIDS: "pids"}
REMOVE_S = 5.0


@dataclass(frozen=True)
class Tree:
    """Where groups with one controller can be made."""

    folder: Path
    version: int


def can_hold(tree: Tree) -> bool:
    """Try it: make a group, let a process enter it, and remove it."""
    probe = tree.folder / f"budwood-probe-{os.getpid()}"
    enter = ["/bin/sh", "-c", 'echo 0 > "$1"', "sh", str(probe / "cgroup.procs")]
    try:
        probe.mkdir()
        try:
            return subprocess.run(enter, capture_output=True, check=False).returncode == 0
        finally:
            remove_group(probe)
    except OSError:
        return False


def find_trees(
    mounts: Path = Path("/proc/self/mountinfo"),
    own: Path = Path("/proc/self/cgroup"),
    can_hold: Callable[[Tree], bool] = can_hold,
) -> dict[Limit, Tree]:
    """Return for each limit the folder below which this process can make groups that hold it."""
    if not mounts.exists():
        return {}
    groups = [line.split(":", 2) for line in own.read_text().splitlines()]
    found: dict[Limit, Tree] = {}
    for line in mounts.read_text().splitlines():
        before, _, after = line.partition(" - ")
        root, mount = before.split()[3:5]
        kind, _, options = after.split()[:3]
        for limit, controller in CONTROLLERS.items():
            if kind == "cgroup" and controller in options.split(","):
                names = [path for _, held, path in groups if controller in held.split(",")]
                candidates = [Tree(_folder(mount, root, names), 1)]
            elif kind == "cgroup2":
                names = [path for _, held, path in groups if held == ""]
                candidates = _upward(_folder(mount, root, names), Path(mount), controller)
            else:
                continue
            for tree in candidates:
                if limit not in found and can_hold(tree):
                    found[limit] = tree
    return found


def _upward(own: Path, top: Path, controller: str) -> Iterator[Tree]:
    """Yield the groups of version 2, from our own up, whose groups have the controller.

    In our own it is switched on where it is off; what is above is taken as it is.
    """
    with contextlib.suppress(OSError):
        (own / "cgroup.subtree_control").write_text(f"+{controller}")
    for folder in (own, *own.parents):
        with contextlib.suppress(OSError):
            if controller in (folder / "cgroup.subtree_control").read_text().split():
                yield Tree(folder, 2)
        if folder == top:
            return


def _folder(mount: str, root: str, names: list[str]) -> Path:
    """Return our own group's folder, or the top where it is out of sight."""
    for name in names:
        below = os.path.relpath(name, root)
        folder = Path(mount) / below
        if not below.startswith("..") and folder.is_dir():
            return folder
    return Path(mount)


class Group:
    """The groups of one sandbox, one for each tree that is needed."""

    def __init__(self, name: str, trees: Mapping[Limit, Tree]) -> None:
        """Name them; `make` makes them."""
        self._trees = trees
        self._folders = {limit: tree.folder / name for limit, tree in trees.items()}

    @property
    def folders(self) -> set[Path]:
        """The folders in which a process must be to count."""
        return set(self._folders.values())

    def make(self, limits: Mapping[Limit, int]) -> None:
        """Make them with what the kernel shall refuse; raises OSError."""
        for folder in self.folders:
            folder.mkdir()
        for limit, value in limits.items():
            for name, text in self._files(limit, value).items():
                file = self._folders[limit] / name
                # What is about swap is there only where swap is.
                if file.exists():
                    file.write_text(text)

    def _files(self, limit: Limit, value: int) -> dict[str, str]:
        if limit is Limit.PIDS:
            return {"pids.max": str(value)}
        if self._trees[limit].version == 2:
            return {"memory.max": str(value), "memory.swap.max": "0"}
        return dict.fromkeys(["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"], str(value))

    def hits(self) -> dict[Limit, int]:
        """Return how often the kernel refused something for each limit."""
        names = {Limit.PIDS: ("pids.events", "max")}
        if Limit.MEMORY in self._trees:
            old = self._trees[Limit.MEMORY].version == 1
            names[Limit.MEMORY] = ("memory.oom_control" if old else "memory.events", "oom_kill")
        found = {}
        for limit, folder in self._folders.items():
            name, key = names[limit]
            with contextlib.suppress(OSError):
                lines = (folder / name).read_text().splitlines()
                found[limit] = sum(int(line.split()[1]) for line in lines if line.split()[0] == key)
        return found

    def memory_bytes(self) -> int | None:
        """Return the memory of all processes and files held in memory, where it is counted."""
        if Limit.MEMORY not in self._trees:
            return None
        old = self._trees[Limit.MEMORY].version == 1
        name = "memory.usage_in_bytes" if old else "memory.current"
        return int((self._folders[Limit.MEMORY] / name).read_text())

    def remove(self) -> list[Path]:
        """Kill what is left in them and remove them; return those that did not go. Blocks."""
        return [folder for folder in self.folders if not remove_group(folder)]


def remove_group(folder: Path) -> bool:
    """Kill what is in a group and remove it; blocks until the kernel lets go of its processes."""
    end = time.monotonic() + REMOVE_S
    while True:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > end:
                return False
        else:
            return True
        with contextlib.suppress(OSError):
            for pid in (folder / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        # The kernel says nowhere when a killed process has left its group for good.
        time.sleep(0.005)
