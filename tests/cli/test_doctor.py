"""`budwood doctor` says whether rollouts can be isolated on this machine."""

import json
import subprocess
import sys

from budwood.sandbox import BACKENDS


def findings(**environment):
    command = [sys.executable, "-m", "budwood", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return {row["check"]: row for row in json.loads(done.stdout)["findings"]}


def test_doctor_names_the_limits_that_local_sandboxes_can_hold(namespaces):
    found = findings(PATH="/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")["local sandbox"]
    assert "isolated by namespaces" in found["found"]
    assert "memory by" in found["found"]
    assert found["state"] == "ok" or "no limit of" in found["what_to_do"]


def test_doctor_without_bubblewrap_says_what_to_install_and_fails_nobody(tmp_path):
    found = findings(PATH=str(tmp_path))["local sandbox"]
    assert found["state"] == "warning"
    assert "package `bubblewrap`" in found["what_to_do"]
    assert any(name in found["what_to_do"] for name in BACKENDS if name != "local")
