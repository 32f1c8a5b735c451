"""Runs that are harmed, small; `python -m tests.e2e.rollout_faults` is the whole, on real vLLM."""

import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from .rollout_faults import ScriptedProcess, checked
from .run_command import Place
from .taught_tasks import TASKS, Chosen, laid_out


@pytest.mark.usefixtures("namespaces")
def test_a_harmed_run_comes_to_the_figures_of_an_undisturbed_one():
    # Not tmp_path: a socket's path is short. What else can break has tests in tests/rollouts.
    names = ["verifier broken", "engine killed", "proxy killed"]
    with tempfile.TemporaryDirectory() as work, ExitStack() as stack:
        folder = Path(work)
        what = Chosen(laid_out(TASKS[:2], folder / "tasks"), ["react"], 1)
        engine = ScriptedProcess(what, stack)
        engine.start()
        results = checked(Place(folder, engine.url, what), engine, names)
    assert {name: result.faults for name, result in results.items()} == {
        name: [] for name in ["undisturbed", *names]
    }
