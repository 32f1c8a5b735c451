"""`budwood replay` with a harness that runs: verdicts and exit codes."""

import json
import os
import signal
import subprocess
import sys
import urllib.request

import pytest

from budwood.trajectory_store import Store
from budwood.trajectory_store.testing import Scribe

HARNESS = """
import json, os, sys, urllib.request, urllib.error
for body in json.load(open(sys.argv[1])):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    try:
        urllib.request.urlopen(request).read()
    except urllib.error.HTTPError as error:
        sys.exit(f"stopped: {error.read().decode()}")
"""


@pytest.fixture
def replayed(recorded_path, recorded, tmp_path):
    """Return a function that replays bodies with a real child: (exit code, out, err)."""
    (tmp_path / "harness.py").write_text(HARNESS)

    def run(bodies, *options, rollout=recorded.hostile):
        (tmp_path / "bodies.json").write_text(json.dumps(bodies))
        words = ["-m", "budwood", "replay", rollout, "--store", str(recorded_path), *options]
        command = [sys.executable, str(tmp_path / "harness.py"), str(tmp_path / "bodies.json")]
        done = subprocess.run(
            [sys.executable, *words, "--", *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, "BUDWOOD_CONFIG": ""},
            cwd=tmp_path,
        )
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture
def bodies(recorded_store, recorded):
    calls = (recorded.calls["hostile.1"], recorded.calls["hostile.2"])
    return [json.loads(recorded_store.request_body(call)) for call in calls]


def test_the_same_requests_are_identical(replayed, bodies):
    code, out, _ = replayed(bodies)
    assert (code, out) == (0, "identical: 2 calls, each as recorded\n")


def test_a_changed_tool_output_is_shown_as_a_diff_at_that_call(replayed, bodies):
    bodies[1]["messages"][3]["content"] = "changed"
    code, out, err = replayed(bodies)
    assert code == 1
    assert out.startswith("call 2 (")
    assert "message 3 (tool), text differs" in out
    assert "+changed" in out.splitlines()
    assert "\x1b" not in out
    assert "replay_diverged" in err
    assert "ended with status 1" in err


def test_fewer_and_more_calls_end_with_3(replayed, bodies):
    code, out, _ = replayed(bodies[:1])
    assert code == 3
    assert "made 1 of 2 recorded calls" in out
    code, out, _ = replayed([*bodies, bodies[1]])
    assert code == 3
    assert "a call more than was recorded" in out


def test_what_changes_from_run_to_run_is_ignored_only_when_named(replayed, recorded_path, recorded):
    with Store.open(recorded_path) as store:
        rollout = store.open_rollout(recorded.run_id)
        scribe = Scribe(store, rollout)
        scribe.call(scribe.lane(), [{"role": "user", "content": "in /tmp/a1 at 10:31"}], "ok")
        (call,) = store.calls(rollout.id)
        body = json.loads(store.request_body(call.id))
    body["messages"][0]["content"] = "in /tmp/b2 at 10:31"
    assert replayed([body], rollout=rollout.id)[0] == 1
    assert replayed([body], "--ignore", r"/tmp/\w+", rollout=rollout.id)[0] == 0
    assert replayed([body], "--ignore", r"\d\d:\d\d", rollout=rollout.id)[0] == 1


def test_a_command_that_cannot_be_started_ends_with_2(recorded_path, recorded, tmp_path):
    words = ["replay", recorded.hostile, "--store", str(recorded_path), "--", "./nothing-here"]
    done = subprocess.run(
        [sys.executable, "-m", "budwood", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert "cannot be started" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("n_made", "code"), [(1, 3), (2, 0)])
def test_without_a_command_a_signal_ends_it_with_the_verdict(
    recorded_path, recorded, bodies, number, n_made, code
):
    words = ["-m", "budwood", "replay", recorded.hostile, "--store", str(recorded_path)]
    command = [sys.executable, "-u", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as replayer:
        try:
            assert replayer.stderr is not None
            url = replayer.stderr.readline().split()[0].removeprefix("OPENAI_BASE_URL=")
            assert "Ctrl-C ends it" in replayer.stderr.readline()
            for body in bodies[:n_made]:
                request = urllib.request.Request(
                    f"{url}/chat/completions",
                    json.dumps(body).encode(),
                    {"Content-Type": "application/json", "Authorization": "Bearer any"},
                )
                with urllib.request.urlopen(request) as answer:
                    answer.read()
            replayer.send_signal(number)
            out, err = replayer.communicate(timeout=100)
            assert (replayer.returncode, err) == (code, "")
            assert out.startswith("identical" if code == 0 else "the harness made 1 of 2"), out
        finally:
            replayer.kill()
