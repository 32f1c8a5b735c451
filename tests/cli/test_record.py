"""`budwood record` as a user runs it: a real process, a proxy of its own, a scripted engine."""

import asyncio
import asyncio.subprocess
import json
import os
import pty
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from budwood.cli.child import without_proxies
from budwood.cli.record import shown_command
from budwood.proxy.testing import Reply, ScriptedEngine
from budwood.trajectory_store import CallState, Store

SDK = """
from openai import OpenAI
for chunk in OpenAI().chat.completions.create(
    model="any", messages=[{"role": "user", "content": "hi"}], stream=True
):
    if chunk.choices and chunk.choices[0].delta.content:
        print(chunk.choices[0].delta.content, end="")
"""
ASK = """
import json, os, urllib.request
body = {"model": "any", "messages": [{"role": "user", "content": "hi"}]}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(),
    {"Content-Type": "application/json"},
)
with urllib.request.urlopen(request) as answer:
    print(json.load(answer)["choices"][0]["message"]["content"], end="")
"""
POST = """
import json, os, sys, urllib.request
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + sys.argv[1], body, {"Content-Type": "application/json"}
)
try:
    print(urllib.request.urlopen(request).status)
except urllib.error.HTTPError as error:
    print(error.status)
"""


@pytest.fixture
async def engine():
    async with ScriptedEngine(lambda _: Reply("Hello.")) as running:
        yield running


@dataclass
class Done:
    code: int | None
    out: str
    err: str
    store: Path

    @property
    def rollouts(self):
        with Store.open(self.store, read_only=True) as store:
            return [store.rollout(found) for found in store.select("all")]


@pytest.fixture
def record(engine, tmp_path):
    """Return a function that runs `budwood record` to its end."""

    async def run(*words, options=(), env=None, url=None):
        process: Any = await start(tmp_path, url or engine.url, *words, options=options, env=env)
        out, err = await process.communicate()
        return Done(process.returncode, out.decode(), err.decode(), tmp_path / "store.db")

    return run


async def start(folder, url, *words, options=(), env=None, **how):
    pipe = asyncio.subprocess.PIPE
    given: dict[str, Any] = {
        "stdin": asyncio.subprocess.DEVNULL, "stdout": pipe, "stderr": pipe, **how
    }  # fmt: skip
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "budwood", "record", "--engine", url,
        "--store", str(folder / "store.db"), *options, "--", *words,
        cwd=folder,
        env={**os.environ, "HOME": str(folder), **(env or {})},
        **given,
    )  # fmt: skip


async def test_three_lines_of_the_openai_sdk_are_recorded_exactly(record):
    done = await record(sys.executable, "-c", SDK)
    assert (done.code, done.out) == (0, "Hello."), done.err
    (rollout,) = done.rollouts
    assert rollout.id in done.err
    assert "exact     1/1 (100 %)" in done.err
    assert "next      budwood show last; budwood export last --to trl-sft\n" in done.err
    assert (rollout.harness, rollout.model, rollout.state) == ("generic", "scripted", "closed")
    with Store.open(done.store, read_only=True) as store:
        (call,) = store.calls(rollout.id)
        assert call.exact
        assert call.state is CallState.DELIVERED


async def test_what_the_command_prints_is_all_that_stdout_holds(record):
    done = await record(sys.executable, "-c", "print('mine')")
    assert done.out == "mine\n"


async def test_a_command_without_a_call_ends_with_65_and_says_what_to_try(record):
    done = await record(sys.executable, "-c", "pass")
    assert done.code == 65
    assert "not one model call" in done.err
    assert "OPENAI_BASE_URL" in done.err
    assert "--harness" in done.err


async def test_the_commands_own_exit_code_comes_through(record):
    done = await record(sys.executable, "-c", ASK + "\nraise SystemExit(7)")
    assert done.code == 7


async def test_a_command_ended_by_a_signal_gives_128_and_its_number(record):
    done = await record(sys.executable, "-c", ASK + "\nimport os; os.kill(os.getpid(), 9)")
    assert done.code == 128 + 9


async def test_a_dialect_that_is_not_spoken_yet_is_named(record):
    done = await record(sys.executable, "-c", POST, "/responses")
    assert done.out == "400\n"
    assert "responses dialect once, which is not supported yet" in done.err
    assert done.code == 65


async def test_a_failed_call_is_told_with_its_cause(record):
    async with ScriptedEngine(as_vllm=True) as silent:
        done = await record(sys.executable, "-c", POST, "/chat/completions", url=silent.url)
    assert "failed    failed by refused_request 1" in done.err
    assert "next      budwood show last --why\n" in done.err
    assert "export" not in done.err


async def test_without_an_engine_the_command_is_not_started(record, tmp_path):
    done = await record("touch", "started", url="http://127.0.0.1:9")
    assert done.code == 69
    assert "No engine answers at http://127.0.0.1:9" in done.err
    assert "budwood engine" in done.err
    assert not (tmp_path / "started").exists()


async def test_a_command_that_does_not_exist_gives_127(record):
    done = await record("no-such-program-anywhere")
    assert done.code == 127
    assert "no-such-program-anywhere cannot be started" in done.err
    with Store.open(done.store, read_only=True) as store:
        assert store.rollouts() == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--harness", "no-such"), "there are mini-swe-agent, pi"),
        (("--label", "nonsense"), "written k=v"),
        (("--history", "other"), "as-sent"),
    ],
)
async def test_an_option_that_cannot_be_read_gives_2(record, options, said):
    done = await record("true", options=options)
    assert done.code == 2
    assert said in done.err


async def test_labels_name_task_history_and_purpose_are_kept(record):
    options = ("--label", "a=1", "--label", "b=x=y", "--name", "mine", "--task", "t")
    options += ("--history", "keep-reasoning", "--purpose", "train")
    done = await record(sys.executable, "-c", ASK, options=options)
    (rollout,) = done.rollouts
    assert (rollout.labels, rollout.task) == ({"a": "1", "b": "x=y"}, "t")
    with Store.open(done.store, read_only=True) as store:
        run = store.run(rollout.run_id)
    assert (run.name, run.history, run.purpose) == ("mine", "keep-reasoning", "train")
    assert run.settings["cwd"]
    assert run.versions["engine"] == "vllm 0.32.0+scripted"


async def test_the_secret_of_a_rollout_is_nowhere_in_the_store(record, tmp_path):
    done = await record(
        sys.executable, "-c", ASK + "\nimport os; print(os.environ['OPENAI_API_KEY'])"
    )
    secret = done.out.removeprefix("Hello.").strip()
    assert secret.startswith("bw_")
    for path in tmp_path.glob("store.db*"):
        assert secret.encode() not in path.read_bytes()


async def test_a_known_harness_gets_a_home_of_its_own_that_is_removed(record, tmp_path):
    mine = tmp_path / ".pi" / "agent" / "models.json"
    mine.parent.mkdir(parents=True)
    mine.write_text("{}")
    script = (
        "import os, pathlib; d = pathlib.Path(os.environ['PI_CODING_AGENT_DIR']);"
        "print(d); print((d / 'models.json').read_text())"
    )
    done = await record(sys.executable, "-c", script, options=("--harness", "pi"))
    folder, _, text = done.out.partition("\n")
    provider = json.loads(text)["providers"]["budwood"]
    assert provider["models"][0]["id"] == "scripted"
    assert provider["apiKey"] in provider["baseUrl"]
    assert not await asyncio.to_thread(os.path.exists, folder)
    assert mine.read_text() == "{}"


async def test_the_private_home_can_be_kept(record, tmp_path):
    options = ("--harness", "pi", "--home", str(tmp_path / "kept"))
    await record("true", options=options)
    assert (tmp_path / "kept" / "pi" / "settings.json").exists()


async def test_a_command_reaches_the_proxy_past_a_configured_one(record):
    env = {"HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "internal"}
    done = await record(sys.executable, "-c", ASK, env=env)
    assert done.out == "Hello.", done.err


async def test_termination_is_passed_on_and_what_was_made_is_kept(engine, tmp_path):
    script = ASK + "\nprint(flush=True)\nimport signal; signal.pause()"
    process: Any = await start(tmp_path, engine.url, sys.executable, "-u", "-c", script)
    assert (await process.stdout.readline()) == b"Hello.\n"
    process.terminate()
    _, err = await process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert b"exact     1/1" in err


async def test_what_the_command_leaves_running_is_ended(record):
    script = "sleep 600 & echo $!"
    done = await record("sh", "-c", script)
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.out), 0)


async def test_the_terminal_is_the_commands(engine, tmp_path):
    """The command is in the foreground, sees a terminal, and gets Ctrl-C; we do not."""
    script = (
        "import os, signal, sys\n"
        "fine = os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()\n"
        "def ended(*_): print('interrupted', flush=True); sys.exit(5)\n"
        "signal.signal(signal.SIGINT, ended)\n"
        "print('foreground' if fine else 'background', sys.stdin.readline().strip(), flush=True)\n"
        "signal.pause()\n"
    )
    ours, theirs = pty.openpty()
    process: Any = await start(
        tmp_path, engine.url, sys.executable, "-c", script,
        stdin=theirs, start_new_session=True, preexec_fn=_take_terminal,
    )  # fmt: skip
    os.close(theirs)
    try:
        os.write(ours, b"typed\n")
        assert (await process.stdout.readline()) == b"foreground typed\n"
        os.write(ours, b"\x03")
        assert (await process.stdout.readline()) == b"interrupted\n"
        await process.communicate()
        assert process.returncode == 65
    finally:
        os.close(ours)


def _take_terminal():
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_a_command_is_stored_without_the_values_of_secret_options():
    argv = ("x", "--api-key", "sk-1", "--token=t", "--model", "m", "a b")
    assert shown_command(argv) == "x --api-key '***' '--token=***' --model m 'a b'"


def test_the_loopback_address_is_added_to_the_exceptions_of_a_proxy():
    found = without_proxies({"NO_PROXY": "a,127.0.0.1"})
    assert found["NO_PROXY"] == "a,127.0.0.1,localhost"
    assert found["no_proxy"] == "127.0.0.1,localhost"
