"""The demo's promises, and the quick demo as a user runs it."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from budwood.cli.demo.closing import Column, table
from budwood.cli.demo.tasks import TASKS, answer
from budwood.cli.summary import Summary
from budwood.trajectory_store import RolloutId

GOOD = Column(
    title="x",
    rollout_id=RolloutId("ro_1"),
    summary=Summary(
        n_calls=3,
        n_complete=3,
        n_exact=3,
        n_continuing=2,
        n_spliced=2,
        n_lanes=1,
        lane_kinds={"main": 1},
        n_prompt_tokens=10,
        n_sampled_tokens=7,
        reasons={},
        failures={},
    ),
    is_done=True,
    n_repaired=0,
    n_rows=1,
    n_trained=7,
    difference=1e-7,
    n_scored=7,
    replay="identical",
)


def budwood(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "budwood", "demo", *words],
        cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "BUDWOOD_STORE__URL": "must not be used"},
    )  # fmt: skip


def test_figures_that_keep_every_promise_break_none():
    assert GOOD.broken == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"is_done": False}, "task was not done"),
        ({"n_rows": 2}, "2 rows"),
        ({"n_trained": 6, "n_scored": 6}, "6 of 7 sampled tokens"),
        ({"n_scored": 6}, "6 of 7 trained tokens"),
        ({"difference": 2e-3}, "differs by 0.002"),
        ({"difference": float("nan")}, "differs by nan"),
        ({"replay": "call 2 differs"}, "call 2 differs"),
        ({"n_inexact_before": 1}, "1 calls of a stray attempt"),
    ],
)
def test_a_figure_that_breaks_a_promise_is_named(change, words):
    (said,) = replace(GOOD, **change).broken
    assert words in said


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_complete": 2, "n_exact": 2}, "1 calls are not complete"),
        ({"n_exact": 2}, "exact only 2/3"),
        ({"n_spliced": 1}, "1 prefix breaks"),
        ({"n_continuing": 0, "n_spliced": 0}, "splicing was not shown"),
        ({"n_lanes": 2}, "2 lanes"),
    ],
)
def test_a_count_that_breaks_a_promise_is_named(change, words):
    (said,) = replace(GOOD, summary=replace(GOOD.summary, **change)).broken
    assert words in said


def test_the_table_is_aligned():
    lines = table([GOOD, replace(GOOD, title="a longer one", difference=None)])
    assert len({line.index("identical") for line in lines if "identical" in line}) == 1
    assert any("scripted: no model to ask" in line for line in lines)


def test_the_teacher_knows_its_tasks_and_nothing_else():
    for task in TASKS:
        assert answer(f"running inside pi {task.text}<|im_start|>assistant\n")
    with pytest.raises(LookupError):
        answer("running inside pi: something else<|im_start|>assistant\n")


def test_the_quick_demo_keeps_its_promises_and_says_that_it_is_scripted(tmp_path):
    done = budwood(tmp_path, "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SCRIPTED" in done.stdout
    assert "every promise kept" in done.stdout
    assert "loop-greet (scripted)" in done.stdout
    assert (tmp_path / "budwood-demo" / "store.db").exists()


def test_a_folder_that_is_not_the_demos_is_left_alone(tmp_path):
    (tmp_path / "budwood-demo").mkdir()
    (tmp_path / "budwood-demo" / "mine.txt").write_text("mine")
    done = budwood(tmp_path, "--quick")
    assert done.returncode == 2
    assert "--folder" in done.stderr
    assert (tmp_path / "budwood-demo" / "mine.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "file").write_text("mine")
    done = budwood(tmp_path, "--quick", "--folder", "file")
    assert done.returncode == 2
    assert "file cannot be used" in done.stderr
    assert (tmp_path / "file").read_text() == "mine"
