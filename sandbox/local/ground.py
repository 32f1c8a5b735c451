"""What a local sandbox stands on: the command that becomes its process 1, and where things are."""

from __future__ import annotations

import shlex
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from ..limits import Limit
from ..spec import Spec

INSIDE = Path(__file__).parent / "inside"
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
START = (
    "import sys; sys.path.append(sys.argv[1]); from inside.init import main; main(int(sys.argv[2]))"
)
USER = "agent"


@dataclass(frozen=True)
class Ground:
    """How to start, and what commands find."""

    argv: list[str]
    workdir: str
    env: dict[str, str]
    users: tuple[str, int]
    """The one user that commands run as, by name and uid."""
    inherited: tuple[int, ...] = ()
    """Open files that its command wants; closed once it has been started."""


@dataclass(frozen=True)
class Python:
    """The interpreter that runs process 1: this one's, without its environment."""

    prefix: Path
    program: Path

    @classmethod
    def ours(cls) -> Python:
        """Return the one below whatever virtual environment runs us."""
        program = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
        return cls(Path(sys.base_prefix).resolve(), program)

    @property
    def is_systems(self) -> bool:
        """Whether it is below /usr, which every sandbox sees."""
        return self.prefix.is_relative_to("/usr") and self.program.is_relative_to("/usr")

    def command(self, prefix: Path, folder: str, control_fd: int) -> list[str]:
        """Return the words that run process 1, with the interpreter at `prefix`."""
        program = prefix / self.program.relative_to(self.prefix)
        return [str(program), "-I", "-S", "-B", "-X", "utf8", "-c", START, folder, str(control_fd)]

    def env(self, prefix: Path) -> dict[str, str]:
        """Return what the interpreter needs to find its own library."""
        shared = sysconfig.get_config_var("Py_ENABLE_SHARED") and not self.is_systems
        return {"LD_LIBRARY_PATH": str(prefix / "lib")} if shared else {}


def base_env(spec: Spec, home: str, temporary: str) -> dict[str, str]:
    """Return the variables of every command."""
    return {
        "PATH": SEARCH_PATH,
        "HOME": home,
        "USER": USER,
        "LOGNAME": USER,
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        "TMPDIR": temporary,
        **spec.env,
    }


def in_groups(argv: list[str], groups: set[Path]) -> list[str]:
    """Return the command that enters control groups before it becomes another."""
    if not groups:
        return argv
    enter = [f"echo $$ > {shlex.quote(str(folder / 'cgroup.procs'))}" for folder in sorted(groups)]
    return ["/bin/sh", "-c", " && ".join([*enter, 'exec "$@"']), "sh", *argv]


@dataclass(frozen=True)
class Holding:
    """How the limits of one sandbox are held."""

    groups: dict[Limit, int]
    """In control groups, counted over all processes."""
    each: dict[str, int]
    """By the kernel for each command: `nproc`, `data`."""
    watch: dict[str, int]
    """By looking."""


def holding(spec: Spec, in_trees: set[Limit]) -> Holding:
    """Return how the limits are held where control groups can hold `in_trees`."""
    limits = spec.limits
    held = Holding({}, {}, {})
    if limits.memory_bytes is not None:
        if Limit.MEMORY in in_trees:
            # Files that are held in memory count there too.
            held.groups[Limit.MEMORY] = limits.memory_bytes + (limits.disk_bytes or 0)
        else:
            held.each["data"] = 2 * limits.memory_bytes
            held.watch["memory"] = limits.memory_bytes
    if limits.pids is not None:
        # Process 1 and the process of bubblewrap that waits for it are ours.
        n_pids = limits.pids + 2
        if Limit.PIDS in in_trees:
            held.groups[Limit.PIDS] = n_pids
        else:
            held.each["nproc"] = held.watch["pids"] = n_pids
    return held
