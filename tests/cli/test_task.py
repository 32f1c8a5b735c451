"""`budwood task check`: what it says, to people and to programs, and its exit codes."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from budwood.cli import app

TOML = '[task]\nname = "test/{name}"\n[metadata.budwood]\nlocal = true\n'
PASSES = "if [ -f done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a task folder and returns its path."""

    def task(name="sound", *, toml=TOML, test=PASSES, solve="touch done\n", **more):
        files = {
            "task.toml": toml.format(name=name) if toml is TOML else toml,
            "instruction.md": "Do it.",
            "environment/files/x": "",
            "tests/test.sh": f"#!/bin/sh\n{test}",
            "solution/solve.sh": f"#!/bin/sh\n{solve}",
            **more,
        }
        for path, content in files.items():
            file = tmp_path / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        return str(tmp_path / name)

    return task


@pytest.fixture
def check(namespaces):
    """Return a function that runs the command: (exit code, out, err)."""

    def run(*words):
        done = CliRunner().invoke(app, ["task", "check", *words])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.stdout, done.stderr

    return run


def test_a_sound_task_is_told_so(check, write):
    code, out, _ = check(write(), "--repeats", "3")
    assert code == 0
    assert out.splitlines() == [
        "task\toracle\tno-op\tstate",
        "test/sound\t3/3 passed\t3/3 failed\tsound",
        "1 of 1 tasks are sound",
    ]


def test_a_task_that_is_not_sound_ends_with_1_and_says_what_is_wrong(check, write):
    code, out, _ = check(write(), write("easy", test="echo 1 > /logs/verifier/reward.txt\n"))
    assert code == 1
    assert out.splitlines()[1:] == [
        "test/sound\t1/1 passed\t1/1 failed\tsound",
        "test/easy\t1/1 passed\t1/1 passed\tnot sound",
        "test/easy: no-op: reward 1 though nothing was done",
        "1 of 2 tasks are sound",
    ]


def test_a_verifier_that_breaks_is_neither_pass_nor_failure(check, write):
    code, out, _ = check(write("broken", test="exit 0\n"))
    assert code == 1
    assert "test/broken\t1/1 broke\t1/1 broke\tnot sound" in out
    assert "test/broken: oracle: the verifier failed (reward_missing)" in out


def test_what_can_not_be_read_or_is_not_supported_ends_with_2_and_runs_nothing(check, write):
    broken = write("broken", toml="[verifier]\ntimeout = 3\n")
    image = write("image", toml='[environment]\ndocker_image = "image:1"\n')
    code, out, err = check(write(), broken, image)
    assert (code, out) == (2, "")
    assert "did you mean timeout_sec?" in err
    assert "environment: wants an image" in err
    assert check("no/such/folder")[0] == 2


def test_the_programs_of_this_machine_do_for_an_image_if_the_user_says_so(check, write):
    image = write("image", toml='[environment]\ndocker_image = "image:1"\n')
    assert check(image, "--as-local")[0] == 0


def test_a_place_that_lacks_what_a_task_asks_for_ends_with_3(check, write):
    toml = "[environment]\ncpus = 1\n[metadata.budwood]\nlocal = true\n"
    code, out, _ = check(write("limited", toml=toml), write())
    assert code == 3
    assert "limited\tnot run\tnot run\tnot checked" in out
    assert "cpu" in out.split("limited: ")[1].splitlines()[0]
    assert "test/sound\t1/1 passed" in out


def test_the_run_names_the_reward_the_bar_and_the_variables(check, write):
    toml = '[verifier]\nenv = { HIGH = "${HIGH}" }\n[metadata.budwood]\nlocal = true\n'
    test = (
        '[ -f done ] || HIGH=0\necho "{\\"a\\": 1, \\"b\\": $HIGH}" > /logs/verifier/reward.json\n'
    )
    folder = write("several", toml=toml, test=test)
    named = ("--reward", "b", "--pass-at", "0.5")
    assert check(folder, *named, "--var", "HIGH=0.6")[0] == 0
    assert check(folder, *named, "--var", "HIGH=0.4")[0] == 1
    code, out, _ = check(folder, *named)
    assert code == 3
    assert "verifier.env.HIGH: wants the variable HIGH" in out
    assert check(folder, "--var", "HIGH=1")[0] == 1
    assert check(folder, "--var", "HIGH")[0] == 2


def test_every_variant_of_a_template_is_checked_or_those_of_a_split(check, write):
    toml = (
        '[task]\nname = "test/{{variant}}"\n[metadata.budwood]\nlocal = true\nsplit = "{{split}}"\n'
    )
    variants = '[train]\nfile = ["a", "b"]\n[held-out]\nfile = ["c"]\n'
    folder = write(
        "template",
        toml=toml,
        test=PASSES.replace("done", "{{file}}"),
        solve="touch {{file}}\n",
        **{"variants.toml": variants},
    )
    code, out, _ = check(folder, "--concurrency", "2")
    assert code == 0
    assert [line.split("\t")[0] for line in out.splitlines()[1:4]] == [
        "test/train-1", "test/train-2", "test/held-out-1",
    ]  # fmt: skip
    assert "1 of 1" in check(folder, "--split", "held-out")[1]
    code, _, err = check(write(), "--split", "train")
    assert code == 2
    assert "none of these folders has a task of the split train" in err


def test_for_programs_everything_is_json(check, write):
    folder = write("loud", test=f"echo looking\n{PASSES}", solve="exit 3\n")
    code, out, _ = check(folder, "--json")
    assert code == 1
    said = json.loads(out)
    assert (said["ok"], said["backend"]) == (False, "local")
    (task,) = said["tasks"]
    assert task["checksum"].startswith("sha256:")
    del task["checksum"]
    trial = {
        "ended": "failed", "reward": 0.0, "rewards": {"reward": 0.0}, "class": "none",
        "cause": None, "why": "", "output": "looking\n",
    }  # fmt: skip
    assert task == {
        "task": "test/loud",
        "state": "not sound",
        "problems": ["oracle: reward 0, wanted 1; solve.sh ended with 3; test.sh said: looking"],
        "trials": [
            {"kind": "oracle", **trial, "solution_exit_code": 3},
            {"kind": "no-op", **trial, "solution_exit_code": None},
        ],
    }


@pytest.mark.usefixtures("check")
@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM])
def test_a_check_that_is_ended_leaves_nothing(write, tmp_path, ended_by):
    nap = f"sleep {os.getpid()}.5"
    folder = write("long", solve=f"{nap}\n")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "budwood", "task", "check", folder],
        env={**os.environ, "TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
        text=True,
    )
    while not _is_running(nap):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(ended_by)
    _, err = process.communicate(timeout=100)
    assert process.returncode == 130
    assert "ended before all tasks were checked" in err
    assert [path for path in temporary.glob("*/*") if path.exists()] == []
    assert not list(temporary.glob("budwood-tasks-*"))
    assert not _is_running(nap)


def _is_running(command):
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return command in found.stdout.splitlines()


def test_without_a_verb_the_verbs_are_shown():
    done = CliRunner().invoke(app, ["task"])
    assert "check" in done.output
