"""`budwood run`: its exit codes, what it says, and that it goes on after it was ended or killed."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from budwood.trajectory_store import Store

pytestmark = pytest.mark.usefixtures("namespaces")

ENGINE = """
import asyncio, sys
from budwood.proxy.testing import Reply, ScriptedEngine

def script(call):
    if "Write done" not in call.prompt:
        return Reply(content="probe")
    if "<tool_response>" in call.prompt:
        return Reply(content="It is done.")
    return Reply(tool_calls=[("bash", {"command": open(sys.argv[1]).read()})])

async def main():
    async with ScriptedEngine(script) as engine:
        print(engine.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@pytest.fixture
def engine(tmp_path):
    """The URL of an engine whose model calls for what the file `command` says."""
    (tmp_path / "command").write_text("echo done > out.txt")
    words = [sys.executable, "-c", ENGINE, str(tmp_path / "command")]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate()


@pytest.fixture
def task(tmp_path):
    """The folder of a task."""
    folder = tmp_path / "task"
    for path, text in {
        "task.toml": "[metadata.budwood]\nlocal = true\n",
        "instruction.md": "Write done into out.txt.\n",
        "environment/files/x": "",
        "tests/test.sh": "#!/bin/sh\ngrep -c done out.txt > /logs/verifier/reward.txt\n",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


@pytest.fixture
def command(tmp_path, engine, task):
    """The words of `budwood run` for a task by react."""
    words = [sys.executable, "-m", "budwood", "run", "--task", str(task), "--harness", "react"]
    return [*words, "--engine", engine, "--store", str(tmp_path / "store.db")]


def run(words, **options):
    return subprocess.run(words, capture_output=True, text=True, check=False, **options)


def test_a_run_says_what_came_of_it_and_the_same_command_does_nothing_twice(command, tmp_path):
    done = run([*command, "--attempts", "2", "--concurrency", "2"])
    assert done.returncode == 0, done.stderr
    assert "2 of 2 attempts count" in done.stdout
    row = done.stdout.splitlines()[1].split("\t")
    assert row[:3] == ["react", "1", "2"]
    assert row[-3:] == ["4/4 (100 %)", "2/2 (100 %)", "none"]
    assert "attempt 1: reward 1" in done.stderr
    again = run([*command, "--attempts", "2", "--json"])
    assert again.returncode == 0, again.stderr
    assert "2 of 2 attempts are finished" in again.stderr
    told = json.loads(again.stdout)
    assert told["is_complete"]
    assert told["harnesses"][0]["n_passed"] == 2
    with Store.open(tmp_path / "store.db", read_only=True) as store:
        assert len(store.rollouts()) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_was_ended_goes_on_by_the_same_command(command, tmp_path, number):
    (tmp_path / "command").write_text("echo busy > busy.txt; sleep 300")
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    with Store.open(tmp_path / "store.db") as store:
        while not any(store.calls(one.id) for one in store.rollouts()):
            assert process.poll() is None
            time.sleep(0.1)
    process.send_signal(number)
    _, said = process.communicate(timeout=100)
    if number != signal.SIGKILL:
        assert process.returncode == 130, said
        assert "the same command goes on" in said
    (tmp_path / "command").write_text("echo done > out.txt")
    done = run(command)
    assert done.returncode == 0, done.stderr
    with Store.open(tmp_path / "store.db", read_only=True) as store:
        first, second = store.rollouts()
        assert first.run_id == second.run_id
        assert store.outcome(first.id).cause == "interrupted"
        assert store.outcome(second.id).reward == 1.0


def test_attempts_without_an_outcome_give_1(command, task):
    (task / "tests" / "test.sh").write_text("#!/bin/sh\nexit 1\n")
    done = run([*command, "--retries", "0"])
    assert done.returncode == 1
    assert "verifier: reward_missing: 1" in done.stdout
    assert "0 of 1 attempts count" in done.stdout


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--harness", "nothing"], 2, "nothing"),
        (["--harness", "codex"], 2, "codex"),
        (["--task", "/nowhere"], 2, "/nowhere"),
        (["--harness", "react"], 2, "named twice"),
        (["--direct", "--purpose", "train"], 2, "--direct records nothing"),
        (["--proxy", "http://127.0.0.1:1"], 2, "--proxy and --admin go together"),
        (["--proxy", "http://127.0.0.1:1", "--admin", "http://127.0.0.1:1"], 2, "no proxy answers"),
        (["--engine", "http://127.0.0.1:1"], 69, "No engine"),
        (["--engine", "http://127.0.0.1:1", "--direct"], 2, "no engine answers"),
        (["--store", "/proc/no/store.db"], 69, "/proc/no"),
    ],
)
def test_what_can_not_be_run_is_told_before_anything_starts(command, tmp_path, words, status, said):
    done = run([*command, *words])
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    with Store.open(tmp_path / "store.db") as store:
        assert store.rollouts() == []


def test_a_proxy_that_runs_already_is_used(command, engine, tmp_path):
    store, secret = tmp_path / "store.db", "a-secret-of-the-admin-plane"
    environment = {**os.environ, "BUDWOOD_PROXY__ADMIN_SECRET": secret}
    words = [sys.executable, "-m", "budwood", "proxy", "--engine", engine, "--store", str(store)]
    with subprocess.Popen(
        [*words, "--port", "0", "--admin-port", "0"],
        env=environment, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        told = next(line for line in process.stderr if "proxy listening" in line)
        urls = json.loads(told)
        ways = ["--proxy", urls["url"], "--admin", urls["admin_url"]]
        done = run([*command, *ways], env=environment)
        process.terminate()
        process.communicate()
    assert done.returncode == 0, done.stderr
    with Store.open(store, read_only=True) as opened:
        (rollout,) = opened.rollouts()
        assert opened.outcome(rollout.id).reward == 1.0
        assert [call.exact for call in opened.calls(rollout.id)] == [True, True]


def test_a_mended_verifier_grades_what_was_kept(command, task, tmp_path):
    (task / "tests" / "test.sh").write_text("#!/bin/sh\nexit 1\n")
    assert run([*command, "--retries", "0"]).returncode == 1
    (task / "tests" / "test.sh").write_text(
        "#!/bin/sh\ngrep -c done out.txt > /logs/verifier/reward.txt\n"
    )
    words = [sys.executable, "-m", "budwood", "score", "last", "--verifier", "--task", str(task)]
    done = run([*words, "--store", str(tmp_path / "store.db")])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].split("\t")[1:] == ["2", "1.0", "none"]
    lost = run([*words, "--store", str(tmp_path / "store.db"), "--logs", str(tmp_path / "no")])
    assert lost.returncode == 1
    assert "not kept" in lost.stderr
    assert run([*words[:-2], "--store", str(tmp_path / "store.db")]).returncode == 2


def test_a_rollout_is_made_again_in_a_fresh_sandbox_on_its_stored_answers(command, task, tmp_path):
    assert run(command).returncode == 0
    words = [
        sys.executable,
        "-m",
        "budwood",
        "replay",
        "last",
        "--store",
        str(tmp_path / "store.db"),
    ]
    again = run([*words, "--task", str(task)])
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("identical: 2 calls")
    (task / "instruction.md").write_text("Write done into out.txt, please.\n")
    other = run([*words, "--task", str(task)])
    assert other.returncode == 2
    assert "another version of the task" in other.stderr


def test_a_replay_in_a_sandbox_finds_the_first_call_that_differs(command, task, tmp_path):
    (tmp_path / "command").write_text("cat /proc/sys/kernel/random/uuid; echo done > out.txt")
    assert run(command).returncode == 0
    words = [
        sys.executable,
        "-m",
        "budwood",
        "replay",
        "last",
        "--store",
        str(tmp_path / "store.db"),
    ]
    again = run([*words, "--task", str(task)])
    assert again.returncode == 1
    assert again.stdout.startswith("call 2 (")
    assert "(tool)" in again.stdout


def test_a_store_that_goes_away_meanwhile_ends_the_run_with_a_word(command, tmp_path):
    (tmp_path / "command").write_text("sleep 4")
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    with Store.open(tmp_path / "store.db") as store:
        while not any(store.calls(one.id) for one in store.rollouts()):
            assert process.poll() is None
            time.sleep(0.1)
    for name in ("store.db", "store.db-wal", "store.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 69, said
    assert "deleted" in said
    assert "Traceback" not in said
