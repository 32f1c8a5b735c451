"""The reference harness, run by hand before a scripted engine."""

import asyncio
import contextlib
import io
import json
import os
import sys
import time
from itertools import pairwise

import pytest

from budwood.harness_adapters.react.agent import CUT_SHORT, main, run
from budwood.proxy.testing import Reply, ScriptedEngine

KEY = "bw_secret"


@pytest.fixture
def react(tmp_path, monkeypatch, capsys):
    """Return a function that runs it in an empty folder: (exit code, out, err, requests)."""
    monkeypatch.chdir(tmp_path)

    async def run_it(script, *words: str, stdin: str = ""):
        async with ScriptedEngine(script) as engine:
            for name, value in told(engine).items():
                monkeypatch.setenv(name, value)
            monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
            code = await asyncio.to_thread(main, words)
            out, err = capsys.readouterr()
            return code, out, err, [call.body for call in engine.calls]

    return run_it


def told(engine: ScriptedEngine) -> dict[str, str]:
    return {
        "OPENAI_BASE_URL": f"{engine.url}/v1", "OPENAI_API_KEY": KEY, "OPENAI_MODEL": "scripted"
    }  # fmt: skip


async def test_it_is_run_by_hand(tmp_path):
    async with ScriptedEngine([bash("echo hi > a"), Reply("Done.")]) as engine:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "budwood.harness_adapters.react", "Write a.",
            cwd=tmp_path, env={**os.environ, **told(engine)},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert await process.communicate() == (b"Done.\n", b"")
    assert process.returncode == 0
    assert (tmp_path / "a").read_text() == "hi\n"


def bash(command: str, **more) -> Reply:
    return Reply(tool_calls=[("bash", {"command": command})], **more)


async def test_it_acts_until_there_is_an_answer(react):
    script = [
        bash("echo hi > a; env | grep -c bw_", reasoning="I look."),
        Reply(
            "One.",
            tool_calls=[("bash", '{"command" :  "cat a"}'), ("bash", {"command": "false"})],
        ),
        Reply("It says hi."),
    ]  # fmt: skip
    code, out, err, requests = await react(script, "Read a.")
    assert (code, out, err) == (0, "It says hi.\n", "")
    messages = requests[-1]["messages"]
    assert [each["role"] for each in messages] == [
        "system", "user", "assistant", "tool", "assistant", "tool", "tool"
    ]  # fmt: skip
    assert len(json.dumps(requests[0])) < 2_000
    assert messages[1]["content"] == "Read a."
    assert "I look." in messages[2]["reasoning"]
    assert messages[3]["content"] == "0\n[exit code 1]"  # the key is not among its variables
    assert messages[4]["content"].strip() == "One."
    assert messages[4]["tool_calls"][0]["function"]["arguments"] == '{"command" :  "cat a"}'
    assert messages[5]["content"] == "hi\n[exit code 0]"
    assert messages[6]["content"] == "[exit code 1]"
    for request, later in pairwise(requests):
        assert later["messages"][: len(request["messages"])] == request["messages"]


async def test_sampling_is_sent_only_where_it_is_set(react):
    _, _, _, (plain,) = await react([Reply("Hm.")], "x")
    assert set(plain) == {"model", "messages", "tools"}
    words = ["--temperature", "0.5", "--seed", "7", "--max-tokens", "99"]
    _, _, _, (told,) = await react([Reply("Hm.")], *words, "x")
    assert (told["temperature"], told["seed"], told["max_tokens"]) == (0.5, 7, 99)


async def test_a_task_comes_from_a_file_or_from_standard_input(react, tmp_path):
    (tmp_path / "task").write_text("From a file.\n")
    for words, stdin, wanted in [
        (["--task-file", "task"], "", "From a file.\n"),
        (["-"], "From a pipe.", "From a pipe."),
        ([], "From a pipe.", "From a pipe."),
    ]:
        *_, (request,) = await react([Reply("Hm.")], *words, stdin=stdin)
        assert request["messages"][1]["content"] == wanted


async def test_what_a_model_gets_wrong_it_is_told(react):
    script = [
        Reply(tool_calls=[("bash", '{"cmd": "ls"}')]),
        Reply(tool_calls=[("bash", {"command": ["ls"]})]),
        Reply(tool_calls=[("python", {"command": "1"})]),
        bash("echo a\0b"),
        Reply("I was ab", finish="length"),
        Reply("Done."),
    ]
    code, out, _, requests = await react(script, "x")
    assert (code, out) == (0, "Done.\n")
    told = [each["content"] for each in requests[-1]["messages"][2:] if each["role"] != "assistant"]
    assert "must be a JSON object" in told[0]
    assert "must be a JSON object" in told[1]
    assert "no tool 'python'" in told[2]
    assert "can't be run" in told[3]
    assert told[4] == CUT_SHORT


async def test_events_tell_the_whole_of_it(react):
    code, out, _, requests = await react([bash("echo hi"), Reply("Hi.")], "--json", "x")
    events = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [event["type"] for event in events] == ["start", "call", "tool", "call", "end"]
    history = [*events[0]["messages"], events[1]["message"]]
    assert history == requests[-1]["messages"][:3]
    assert events[-1]["status"] == "done"
    assert events[-1]["text"] == "Hi."
    assert events[-1]["usage"]["calls"] == 2


async def test_the_limit_of_turns_ends_it_with_a_code_of_its_own(react, tmp_path):
    code, _, err, requests = await react(lambda _: bash("echo x >> log"), "--max-turns", "2", "x")
    assert code == 3
    assert "no answer within 2 turns" in err
    assert len(requests) == 2
    assert (tmp_path / "log").read_text() == "x\nx\n"


@pytest.mark.parametrize("fault", ["status@500", "status@401", "garbage", "drop@0"])
async def test_a_call_that_fails_for_good_ends_it_with_1_and_a_reason(fault, react):
    words = ["--json", "--retries", "0", "x"]
    code, out, err, _ = await react(lambda _: Reply("x", fault=fault), *words)
    assert code == 1
    assert err.startswith("react: a model call failed: ")
    assert "Traceback" not in err
    end = json.loads(out.splitlines()[-1])
    assert end["status"] == "failed"
    assert KEY not in out + err


def test_without_a_key_it_says_so(monkeypatch, capsys):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert main(["x"]) == 1
    assert "OPENAI_API_KEY" in capsys.readouterr().err


def test_a_long_output_loses_its_middle():
    said = run("seq 100000", 60, 1000)
    assert said.startswith("1\n2\n")
    assert said.endswith("100000\n[exit code 0]")
    assert "bytes left out" in said
    assert len(said) < 1_100
    assert "\ufffd" in run("printf '\\377'", 60, 10)


def test_a_command_is_ended_at_its_time_with_all_it_started(tmp_path):
    started = time.monotonic()
    said = run(f"echo on; (sleep 60; touch {tmp_path}/late) & sleep 60", 0.5, 1000)
    assert said == "on\n[killed after 0.5 s]"
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("left", ["sleep 60", "yes", "sleep 60 >/dev/null 2>&1"])
def test_what_runs_in_the_background_is_not_waited_for(left, tmp_path):
    started = time.monotonic()
    said = run(f"{left} & echo $! > {tmp_path}/pid", 30, 1000)
    assert said.endswith("[exit code 0]")
    assert time.monotonic() - started < 20
    with contextlib.suppress(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 9)


def test_a_command_that_closes_its_output_is_waited_for():
    assert run("exec >&- 2>&-; sleep 0.2; exit 3", 30, 1000) == "[exit code 3]"
    assert run("exec >&- 2>&-; sleep 60", 0.3, 1000) == "[killed after 0.3 s]"
