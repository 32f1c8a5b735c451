"""Root's way to run a Python module as a user without any rights.

The checkout and the interpreter may be in a folder that only root can enter, as root's home. They
are brought within everybody's reach in a mount namespace of its own, so the machine's folders stay
as they are.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
UID = 60711
PLACES = {Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), REPOSITORY}
REBUILD = """\
mkdir -p "$2"
for from in "$1"/* "$1"/.[!.]*; do
  to="$2/${from##*/}"
  if [ -L "$from" ]; then cp -P "$from" "$to"
  elif [ -d "$from" ]; then mkdir "$to"; mount --rbind "$from" "$to"
  elif [ -f "$from" ]; then : >"$to"; mount --bind "$from" "$to"
  fi
done
"""


def run_module(words: Callable[[Path], Sequence[str]]) -> subprocess.CompletedProcess[str]:
    """Run `python -m` with the words for a folder that is the user's own; it goes afterwards."""
    own = Path(tempfile.mkdtemp(prefix="budwood-rootless-"))
    own.chmod(0o755)
    os.chown(own, UID, UID)
    drop = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--"]
    script = f'{_opened()}\ncd {shlex.quote(str(REPOSITORY))}\nexec "$@"'
    command = ["unshare", "--mount", "--propagation=private", "sh", "-c", script, "sh", *drop]
    command += [sys.executable, "-m", *words(own)]
    env = {"PATH": os.environ["PATH"], "HOME": str(own), "PYTHONDONTWRITEBYTECODE": "1"}
    env |= {"CI": "1", "TMPDIR": str(own)}
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    finally:
        shutil.rmtree(own)


def _opened() -> str:
    """Return a script that brings the places within everybody's reach."""
    hidden = [place for place in PLACES if _first_closed(place) and not PLACES & set(place.parents)]
    lines = ["set -e", f"rebuild() {{\n{REBUILD}}}", "mount -t tmpfs none /mnt"]
    for number, place in enumerate(hidden):
        lines += [f"mkdir /mnt/{number}", f"mount --rbind {shlex.quote(str(place))} /mnt/{number}"]
    for above in {_first_closed(place) for place in hidden}:
        lines.append(f"mount -t tmpfs -o mode=755 none {shlex.quote(str(above))}")
    for number, place in enumerate(hidden):
        lines.append(f"rebuild /mnt/{number} {shlex.quote(str(place))}")
    return "\n".join(lines)


def _first_closed(path: Path) -> Path | None:
    """Return the highest folder on the way to what is in a folder that others can't enter."""
    closed = [each for each in (path, *path.parents) if not each.stat().st_mode & 0o001]
    return closed[-1] if closed else None
