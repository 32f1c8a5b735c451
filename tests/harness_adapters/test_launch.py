"""What is started for one attempt, and what the end of a harness means."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budwood.harness_adapters import (
    ADAPTERS,
    LAUNCHED,
    Ended,
    Endpoint,
    Installation,
    LaunchContext,
    NotLaunched,
    Status,
    adapter_named,
)
from budwood.harness_adapters.mini_swe_agent import TRAJECTORY, as_yaml

LOCKS = Path(__file__).resolve().parents[2] / "harness_adapters" / "locks"
SECRET = "bw_" + "s" * 43
HOME, HERE = "/home/agent/.budwood", "/opt/harness/x"
CONTEXT = LaunchContext(
    instruction="Do it; $(rm -rf /) 'now'",
    workdir="/work",
    home=HOME,
    endpoint=Endpoint(f"http://127.0.0.1:1/r/{SECRET}/v1", SECRET, "tiny", 32_768, 4_096),
    max_turns=7,
    timeout_s=600.0,
)
INSTALLED = Installation(
    harness="x", version="1", folder=Path("/x"), binds=(), command=(f"{HERE}/bin/x", "--flag"),
    env={"OF_THE_INSTALLATION": "1"}, packages=f"{HERE}/packages",
)  # fmt: skip
EACH = pytest.mark.parametrize("name", LAUNCHED)


def launch_of(name: str):
    launch = ADAPTERS[name].launch
    assert launch is not None
    return launch


def ended(
    stdout: str = "", stderr: str = "", code: int | None = 0, left: dict[str, bytes] | None = None
) -> Ended:
    return Ended(
        exit_code=code, stdout=stdout.encode(), stderr=stderr.encode(), artifacts=left or {}
    )


@EACH
def test_a_program_is_started_by_words_that_hold_neither_task_nor_secret(name: str) -> None:
    prepared = ADAPTERS[name].prepare(CONTEXT, INSTALLED)
    assert prepared.argv[:2] == INSTALLED.command
    line = " ".join(prepared.argv)
    assert SECRET not in line
    assert CONTEXT.instruction not in line
    assert not {"sh", "bash", "/bin/sh", "-lc"} & set(prepared.argv)
    told = "\n".join(prepared.files.values()) + (prepared.stdin or b"").decode()
    assert CONTEXT.instruction in told.replace("\\u0027", "'")
    assert prepared.env["OF_THE_INSTALLATION"] == "1"
    assert SECRET in "\n".join([*prepared.env.values(), *prepared.files.values()])
    assert not any(Path(file).is_absolute() or ".." in file for file in prepared.files)


@EACH
def test_no_limit_of_turns_is_no_limit(name: str) -> None:
    some = ADAPTERS[name].prepare(CONTEXT, INSTALLED)
    none = ADAPTERS[name].prepare(replace(CONTEXT, max_turns=None), INSTALLED)
    said = [" ".join(each.argv) + "".join(each.files.values()) for each in (some, none)]
    if launch_of(name).turn_limit == "native":
        assert re.search(r"\b7\b", said[0])
        assert not re.search(r"\b7\b", said[1])
    else:
        assert said[0] == said[1]


@EACH
def test_the_pinned_version_is_the_locks(name: str) -> None:
    pinned = launch_of(name).pinned_version
    if name == "pi":
        wanted = json.loads((LOCKS / "pi" / "package.json").read_text())["dependencies"]
        assert pinned in wanted.values()
    else:
        package, version = ("openai", pinned.rpartition("openai.")[2]) if name == "react" else (
            name, pinned
        )  # fmt: skip
        assert f"\n{package}=={version} " in (LOCKS / f"{name}.txt").read_text()
    assert pinned in launch_of(name).tested_versions


@EACH
@pytest.mark.parametrize(
    "stdout", ["", "\x00", "{", '{"type": "end"}', '{"type":"message_end","message":{}}', "[1]"]
)
def test_a_harness_that_left_no_account_has_failed_with_its_last_words(
    name: str, stdout: str
) -> None:
    result = launch_of(name).parse(ended(stdout, "Traceback\nboom\n", 1))
    assert result.status is Status.FAILED
    assert "boom" in result.why
    odd = {TRAJECTORY: b"[]", "pi/sessions/a.jsonl": b'"x"\n{"type": "message", "message": []}\n'}
    assert launch_of(name).parse(ended(code=None, left=odd)).status is Status.FAILED


@EACH
@given(left=st.binary(max_size=200))
def test_whatever_a_harness_leaves_is_read(name: str, left: bytes) -> None:
    artifacts = {TRAJECTORY: left, "pi/sessions/a.jsonl": left}
    found = Ended(exit_code=0, stdout=left, stderr=left, artifacts=artifacts)
    assert launch_of(name).parse(found).status is Status.FAILED


def trajectory(how: str, last: str = "", submission: str = "") -> Ended:
    info = {"exit_status": how, "submission": submission, "model_stats": {"api_calls": 4}}
    text = json.dumps({"info": info, "messages": [{"role": "exit", "content": last}]})
    return ended(left={TRAJECTORY: text.encode()})


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("Submitted", Status.DONE),
        ("RepeatedFormatError", Status.DONE),
        ("LimitsExceeded", Status.LIMIT),
        ("TimeExceeded", Status.LIMIT),
        ("BadRequestError", Status.FAILED),
        ("", Status.FAILED),
    ],
)
def test_mini_is_judged_by_its_trajectory_not_by_its_exit_code(how: str, status: Status) -> None:
    result = launch_of("mini-swe-agent").parse(trajectory(how, "no such\nmodel", "The patch."))
    assert result.status is status
    assert result.usage is not None
    assert result.usage.n_calls == 4
    assert result.final_text == ("The patch." if how == "Submitted" else "")
    if how == "BadRequestError":
        assert result.why == "BadRequestError: no such model"


def answer(stop: str, text: str = "", error: str | None = None) -> dict:
    return {
        "role": "assistant", "content": [{"type": "text", "text": text}], "stopReason": stop,
        "usage": {"input": 10, "output": 2, "cacheRead": 5}, "errorMessage": error,
    }  # fmt: skip


@pytest.mark.parametrize("by", ["session", "events"])
@pytest.mark.parametrize(
    ("last", "status", "why"),
    [
        (answer("stop", "Done."), Status.DONE, "stop"),
        (answer("length", "Don"), Status.DONE, "length"),
        (answer("error", "", "400 no\nscript"), Status.FAILED, "error: 400 no script"),
        (answer("aborted"), Status.FAILED, "aborted:"),
        (answer("toolUse"), Status.FAILED, "toolUse: it was ended before it had finished"),
    ],
)
def test_pi_is_judged_by_its_last_answer(by: str, last: dict, status: Status, why: str) -> None:
    messages = [{"role": "user", "content": "x"}, answer("toolUse"), last]
    kind = "message" if by == "session" else "message_end"
    lines = "\n".join(json.dumps({"type": kind, "message": message}) for message in messages)
    cut = 'ge":"half a line"}\n'
    if by == "session":
        left = ended(left={"pi/sessions/2026_a.jsonl": lines.encode()})
    else:
        left = ended(cut + lines)
    result = launch_of("pi").parse(left)
    assert (result.status, result.why) == (status, why)
    assert result.usage is not None
    assert result.usage.n_calls == 2
    assert result.usage.n_prompt_tokens == 30
    assert result.final_text == last["content"][0]["text"]


def test_an_account_with_odd_values_is_read_or_is_a_failure() -> None:
    half = ended('{"type": "end", "status": "done", "text": "a\\ud800b", "why": ""}')
    assert launch_of("react").parse(half).final_text == "a?b"
    endless = json.dumps({"type": "message_end", "message": answer("stop")}).replace("10", "1e999")
    assert launch_of("pi").parse(ended(endless)).status is Status.FAILED
    for odd in ("[]", "5", "null"):
        text = f'{{"type": "end", "status": "done", "text": {odd}, "why": ""}}'
        assert launch_of("react").parse(ended(text)).status is Status.FAILED


def test_pi_waits_for_a_slow_answer_as_long_as_the_attempt_may_take() -> None:
    settings = json.loads(ADAPTERS["pi"].prepare(CONTEXT, INSTALLED).files["pi/settings.json"])
    assert settings["httpIdleTimeoutMs"] == 600_000
    assert settings["defaultModel"] == "tiny"


def test_a_harness_that_can_only_be_pointed_is_not_launched() -> None:
    with pytest.raises(NotLaunched, match="codex can be recorded"):
        adapter_named("codex").prepare(CONTEXT, INSTALLED)


@given(st.text(alphabet=st.characters(blacklist_categories=["Cs"])))
def test_what_is_written_for_a_yaml_reader_is_read_as_it_was(text: str) -> None:
    yaml = pytest.importorskip("yaml")
    value = {"run": {"task": text}, "agent": {"step_limit": 0}}
    assert yaml.safe_load(as_yaml(value)) == value
    assert json.loads(as_yaml(value)) == value
