"""Run by root, what sandboxes hold is held once more by a user without any rights."""

import os

import pytest

from .unprivileged import run_module

PARTS = {
    "conformance": ["tests/sandbox/test_conformance.py", "-k", "not unisolated"],
    "host": ["tests/sandbox/test_host.py", "-k", "not unisolated"],
    "endings": ["tests/sandbox/test_endings.py", "-k", "not unisolated"],
    "rollouts": ["tests/rollouts/test_limits.py", "-k", "agent_that_runs_into"],
}


@pytest.mark.skipif(os.geteuid() != 0, reason="not run by root: the suite itself is rootless")
@pytest.mark.parametrize("part", PARTS)
def test_it_passes_without_root(namespaces, part):
    done = run_module(
        lambda own: [
            "pytest", "-q", "-p", "no:cacheprovider", "-rs", f"--basetemp={own}/tests",
            *PARTS[part],
        ]
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    if " skipped" in done.stdout:
        pytest.skip(f"only root can make sandboxes here: {done.stdout[-2000:]}")
    assert " passed" in done.stdout
