"""Run by root, the suite is run once more by a user without any rights."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
UID = 60711
PLACES = {Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), REPOSITORY}
"""What the suite is made of; it may be in a folder that only root can enter, as root's home."""
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


def first_closed(path):
    """Return the highest folder on the way to what is in a folder that others can't enter."""
    closed = [each for each in (path, *path.parents) if not each.stat().st_mode & 0o001]
    return closed[-1] if closed else None


def opened():
    """Return a script that brings the places within everybody's reach.

    It runs in a mount namespace of its own, so the machine's folders stay as they are.
    """
    hidden = [
        place
        for place in PLACES
        if first_closed(place) and not PLACES & set(place.parents)
    ]  # fmt: skip
    lines = ["set -e", f"rebuild() {{\n{REBUILD}}}", "mount -t tmpfs none /mnt"]
    for number, place in enumerate(hidden):
        lines += [f"mkdir /mnt/{number}", f"mount --rbind {shlex.quote(str(place))} /mnt/{number}"]
    for above in {first_closed(place) for place in hidden}:
        lines.append(f"mount -t tmpfs -o mode=755 none {shlex.quote(str(above))}")
    for number, place in enumerate(hidden):
        lines.append(f"rebuild /mnt/{number} {shlex.quote(str(place))}")
    return "\n".join(lines)


@pytest.mark.timeout(420)
@pytest.mark.skipif(os.geteuid() != 0, reason="not run by root: the suite itself is rootless")
def test_the_suite_passes_without_root(namespaces):
    own = Path(tempfile.gettempdir()) / f"budwood-rootless-{os.getpid()}"
    own.mkdir(mode=0o755)
    os.chown(own, UID, UID)
    drop = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--"]
    suite = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=60", "-rs",
        f"--basetemp={own}/tests", "-k", "not unisolated",
        *(f"tests/sandbox/test_{name}.py" for name in ("conformance", "endings", "host")),
    ]  # fmt: skip
    script = f'{opened()}\ncd {shlex.quote(str(REPOSITORY))}\nexec "$@"'
    command = ["unshare", "--mount", "--propagation=private", "sh", "-c", script, "sh", *drop]
    env = {"PATH": os.environ["PATH"], "HOME": str(own), "CI": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [*command, *suite], capture_output=True, text=True, check=False, env=env
        )
    finally:
        shutil.rmtree(own)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    if " skipped" in done.stdout:
        pytest.skip(f"only root can make sandboxes here: {done.stdout[-2000:]}")
    assert " passed" in done.stdout
