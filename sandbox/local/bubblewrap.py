"""The command line of bubblewrap: an allow-list of the host, and everything else fresh.

Inside is a root of its own in memory, limited by `disk_bytes`; the host's /usr, /bin, /lib* and
/sbin read-only; the few files of /etc that programs need, made fresh or bound one by one; the
spec's binds; and nothing else of the host: no home, no /run, no /var, no socket, no device but the
basic ones. Commands own the root, so each part of the system is a mount of its own: who can put
another /bin or /etc in its place decides what grades the work.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..limits import Limit
from ..spec import Bind, Spec
from . import syscalls
from .ground import INSIDE, USER, Ground, Python, base_env
from .host import Host

UID = 1000
SHM_BYTES = 64 * 1024**2
BARE_ROOT_BYTES = 64 * 1024**2
"""What the root holds where the writable folders are on disk."""
OURS = PurePosixPath("/.budwood")
"""Process 1's program. What is mounted right below the root can be neither renamed nor removed by a
command; a folder like /opt could, and another be put in its place."""
SMALL_BYTES = 1024**2
STAGE = Path("/sys")
"""A folder that everybody can enter and no sandbox is given, to mount over while one starts."""
SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
BOUND_ETC = (
    "alternatives", "ca-certificates", "crypto-policies", "ld.so.cache", "ld.so.conf",
    "ld.so.conf.d", "localtime", "mime.types", "pki/ca-trust", "pki/tls", "ssl/certs",
    "ssl/openssl.cnf",
)  # fmt: skip
FRESH_ETC = {
    "passwd": f"root:x:0:0:root:/root:/bin/sh\n{USER}:x:{UID}:{UID}::{{home}}:/bin/sh\n",
    "group": f"root:x:0:\n{USER}:x:{UID}:\n",
    "hosts": "127.0.0.1 localhost sandbox\n",
    "resolv.conf": "",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "hostname": "sandbox\n",
}
RESERVED = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/proc", "/dev", "/sys", str(OURS))
"""Where neither a workdir, nor a home, nor a bind can be."""


def refused_paths(spec: Spec) -> list[str]:
    """Return which paths of a spec can't be where they are asked for."""
    wanted = {"workdir": spec.workdir, "home": spec.home}
    wanted |= {f"bind of {bind.source}": bind.target for bind in spec.binds}
    return [
        f"{name}: {path} is part of the system inside; choose a folder of its own, as /work"
        for name, path in wanted.items()
        if any(PurePosixPath(path).is_relative_to(reserved) for reserved in RESERVED)
    ]


@dataclass
class _Line:
    """The words of the command line, and what must be brought within reach before it runs."""

    host: Host
    words: list[str]
    staged: list[Path]

    def bind(self, source: Path, target: str, *, writable: bool = False) -> None:
        if self.host.identity is not None and not _is_in_reach(source):
            self.staged.append(source)
            source = STAGE / str(len(self.staged))
        self.words += ["--bind" if writable else "--ro-bind", str(source), target]

    def mount(self, path: str) -> None:
        """Mount a small folder in memory, to be filled and then closed."""
        self.words += ["--perms", "0755", "--size", str(SMALL_BYTES), "--tmpfs", path]

    def folder(self, path: str, mode: str = "0755") -> None:
        self.words += ["--perms", mode, "--dir", path]


def _is_in_reach(path: Path) -> bool:
    """Whether every user may go to where it is."""
    return all(parent.stat().st_mode & 0o001 for parent in path.resolve().parents)


def isolated_ground(spec: Spec, host: Host, folder: Path, control_fd: int) -> Ground:
    """Return what starts process 1 in namespaces; `folder` is the sandbox's own on the host."""
    python = Python.ours()
    line = _Line(host, [host.bwrap], [])
    line.words += ["--unshare-all", "--unshare-user", "--disable-userns"]
    line.words += ["--uid", str(UID), "--gid", str(UID), "--hostname", "sandbox"]
    line.words += ["--as-pid-1", "--die-with-parent", "--new-session", "--clearenv"]
    _root(line, spec, folder)
    _system(line)
    _etc(line, spec, folder / "etc")
    for bind in sorted(spec.binds, key=lambda each: PurePosixPath(each.target).parts):
        _parents(line, bind)
        line.bind(bind.source, bind.target, writable=bind.writable)
    prefix = _ours(line, python)
    for name, value in python.env(prefix).items():
        line.words += ["--setenv", name, value]
    filtered = syscalls.readable(syscalls.program(counts_memory=Limit.MEMORY in host.trees))
    line.words += ["--seccomp", str(filtered)]
    line.words += ["--chdir", "/", "--", *python.command(prefix, str(OURS), control_fd)]
    argv = _with_stage(line) if line.staged else [*host.prefix(), *line.words]
    env = base_env(spec, spec.home, "/tmp")
    return Ground(argv, spec.workdir, env, (USER, UID), (filtered,))


def _with_stage(line: _Line) -> list[str]:
    """Return the command with mounts before it, in a mount namespace of their own.

    Root gives itself up before bubblewrap runs, which then could not go through a folder like /root
    to what is bound from there.
    """
    steps = [["mount", "-t", "tmpfs", "-o", "mode=755,size=1m", "stage", str(STAGE)]]
    for number, source in enumerate(line.staged, start=1):
        place = str(STAGE / str(number))
        steps += [["mkdir" if source.is_dir() else "touch", place]]
        steps += [["mount", "--bind", str(source.resolve()), place]]
    script = " && ".join([*map(shlex.join, steps), 'exec "$@"'])
    outer = ["unshare", "--mount", "--propagation", "private", "--", "/bin/sh", "-c", script, "sh"]
    return [*outer, *line.host.prefix(), *line.words]


def _root(line: _Line, spec: Spec, folder: Path) -> None:
    """The writable part: in memory and limited, or on the host's disk where there is no limit."""
    limit = spec.limits.disk_bytes
    line.words += ["--size", str(limit or BARE_ROOT_BYTES), "--tmpfs", "/"]
    for path in ("/home", "/run", "/var", "/opt"):
        line.folder(path)
    line.folder("/root", "0700")
    writable = {"/tmp": "1777", "/var/tmp": "1777", spec.home: "0700", spec.workdir: "0755"}
    for number, path in enumerate(sorted(writable, key=lambda each: PurePosixPath(each).parts)):
        if limit is not None:
            line.folder(path, writable[path])
            continue
        on_disk = folder / "scratch" / str(number)
        on_disk.mkdir(parents=True)
        on_disk.chmod(int(writable[path], 8))
        if line.host.identity is not None:
            os.chown(on_disk, line.host.identity, line.host.identity)
        line.bind(on_disk, path, writable=True)


def _system(line: _Line) -> None:
    line.bind(Path("/usr"), "/usr")
    for name in SYSTEM_FOLDERS:
        path = Path(name)
        if path.is_dir():
            # Also where the host has a link: a mount can't be put in another's place.
            line.bind(path.resolve(), name)
    line.words += ["--proc", "/proc", "--dev", "/dev"]
    # What there belongs to namespaces could be set from inside: the number of processes, say.
    line.words += ["--ro-bind", "/proc/sys", "/proc/sys"]
    line.words += ["--size", str(SHM_BYTES), "--perms", "1777", "--tmpfs", "/dev/shm"]
    # /dev is in memory too, and nothing would limit what is written there.
    line.words += ["--remount-ro", "/dev"]


def _etc(line: _Line, spec: Spec, folder: Path) -> None:
    folder.mkdir()
    line.mount("/etc")
    for name, text in FRESH_ETC.items():
        file = folder / name
        file.write_text(text.format(home=spec.home))
        file.chmod(0o644)
        line.bind(file, f"/etc/{name}")
    for name in BOUND_ETC:
        if Path("/etc", name).exists():
            line.bind(Path("/etc", name), f"/etc/{name}")
    line.words += ["--remount-ro", "/etc"]


def _parents(line: _Line, bind: Bind) -> None:
    """Folders above a bind, which bubblewrap would make for its user alone."""
    for parent in reversed(PurePosixPath(bind.target).parents[:-1]):
        line.folder(str(parent))


def _ours(line: _Line, python: Python) -> Path:
    """Bind process 1's program and the interpreter that runs it; return where that is inside."""
    line.mount(str(OURS))
    line.bind(INSIDE, str(OURS / "inside"))
    prefix = python.prefix
    if not python.is_systems:
        prefix = Path(OURS / "python")
        line.bind(python.prefix, str(prefix))
    line.words += ["--remount-ro", str(OURS)]
    return prefix
