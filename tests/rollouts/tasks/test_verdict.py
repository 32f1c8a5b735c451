"""The rule of the verdict, case by case: what is a reward, and what is nobody's judgement."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budwood.rollouts.tasks import Evidence, ExecResult, judge
from budwood.trajectory_store import CAUSES, FailureClass

PLAIN = "#!/bin/sh\ngrep -q x /app/out && echo 1 > /logs/verifier/reward.txt\n"
WITH_REPORT = (
    "#!/bin/bash\n"
    "curl -LsSf https://example.com/uv.sh | sh\n"
    "uvx -p 3.13 -w pytest==8.4.1 -w pytest-json-ctrf==0.3.5 \\\n"
    "  pytest --ctrf /logs/verifier/ctrf.json /tests/test_outputs.py -rA\n"
    "if [ $? -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
)


def left(
    *,
    script: str = PLAIN,
    said: str = "",
    code: int | None = 0,
    signal: int | None = None,
    timed_out: bool = False,
    txt: str | None = "0\n",
    js: str | None = None,
    report: bytes | None = None,
):
    """Return what a verifier left; by default a plain script that honestly says 0."""
    code = None if signal or timed_out else code
    return Evidence(
        ended=ExecResult(exit_code=code, signal=signal, timed_out=timed_out, stdout=said.encode()),
        script=script,
        reward_txt=None if txt is None else txt.encode(),
        reward_json=None if js is None else js.encode(),
        report=report,
    )


ENDLESS = b'{"results": {"summary": {"tests": Infinity}}}'


def ctrf(n_tests: int) -> bytes:
    tests = [{"name": f"t{number}", "status": "failed"} for number in range(n_tests)]
    return json.dumps({"results": {"summary": {"tests": n_tests}, "tests": tests}}).encode()


def assert_failed(evidence, cause, why=""):
    verdict = judge(evidence)
    assert (verdict.reward, verdict.failure_class, verdict.cause) == (
        None, FailureClass.VERIFIER, cause,
    )  # fmt: skip
    assert why in verdict.why
    assert CAUSES[cause] is FailureClass.VERIFIER
    assert not verdict.is_pass


def assert_rewarded(evidence, reward):
    verdict = judge(evidence)
    assert (verdict.reward, verdict.failure_class, verdict.cause) == (
        reward, FailureClass.NONE, None,
    )  # fmt: skip


def test_an_honest_0_from_a_plain_script_stays_0():
    assert_rewarded(left(), 0.0)
    assert_rewarded(left(said="FAIL: out is not there\n", code=1), 0.0)
    assert_rewarded(left(said="cat: /app/out: No such file or directory\n", code=2), 0.0)
    assert_rewarded(left(said="/app/run.sh: line 2: foo: command not found\n"), 0.0)


def test_an_honest_1_stays_1_whatever_the_exit_code():
    assert_rewarded(left(txt="1\n"), 1.0)
    assert_rewarded(left(txt="1", code=3), 1.0)


def test_no_reward_file_is_no_judgement():
    assert_failed(left(txt=None), "reward_missing")


@pytest.mark.parametrize("files", [{"txt": ""}, {"txt": " \n"}, {"js": ""}, {"js": "{}"}])
def test_an_empty_reward_file_is_no_judgement(files):
    assert_failed(left(**files), "reward_empty")


@pytest.mark.parametrize(
    "files",
    [
        {"txt": "one"},
        {"txt": "1 0"},
        {"txt": "1_0"},
        {"txt": "0x1"},
        {"js": "{"},
        {"js": "[1]"},
        {"js": "1"},
        {"js": '{"reward": "1"}'},
        {"js": '{"reward": null}'},
        {"js": '{"reward": 1, "other": [1]}'},
        {"js": "[" * 100_000},
    ],
)
def test_a_reward_that_can_not_be_read_is_no_judgement(files):
    assert_failed(left(**files), "reward_unreadable")


def test_a_reward_that_is_not_utf_8_is_no_judgement():
    evidence = Evidence(ended=ExecResult(exit_code=0), script=PLAIN, reward_txt=b"\xff1")
    assert_failed(evidence, "reward_unreadable")


@pytest.mark.parametrize(
    "files",
    [
        {"txt": "nan"},
        {"txt": "-inf"},
        {"txt": "1e999"},
        {"js": '{"reward": NaN}'},
        {"js": '{"reward": Infinity}'},
        {"js": '{"reward": 1e999}'},
        {"js": '{"reward": 1' + "0" * 400 + "}"},
        {"js": '{"reward": 1, "other": NaN}'},
    ],
)
def test_a_reward_that_is_not_finite_is_no_judgement(files):
    assert_failed(left(**files), "reward_not_finite")


@pytest.mark.parametrize("ended", [{"signal": 9}, {"code": 137}, {"code": 143}])
def test_a_script_ended_by_a_signal_is_no_judgement_though_it_wrote_a_reward(ended):
    assert_failed(left(txt="1", **ended), "verifier_killed", "by signal")


@pytest.mark.parametrize("code", [126, 127])
def test_a_script_that_could_not_be_run_is_no_judgement(code):
    assert_failed(left(code=code), "verifier_not_run", f"ended with {code}")


def test_a_script_that_took_too_long_is_no_judgement_though_it_wrote_a_reward():
    assert_failed(left(timed_out=True, txt="1"), "verifier_timeout")


@pytest.mark.parametrize("txt", ["0", "1"])
def test_a_report_that_says_no_test_was_collected_is_no_judgement(txt):
    assert_failed(left(script=WITH_REPORT, txt=txt, report=ctrf(0)), "no_tests")


@pytest.mark.parametrize("report", [None, b"", b"{", b"[]", b'{"results": 1}', ENDLESS])
def test_a_0_without_the_report_that_the_script_asks_for_is_no_judgement(report):
    said = "/tests/test.sh: line 3: uvx: command not found\n"
    evidence = left(script=WITH_REPORT, said=said, report=report)
    assert_failed(evidence, "no_test_report", "/logs/verifier/ctrf.json")


def test_a_0_with_its_report_stays_0():
    said = "curl: (6) Could not resolve host: example.com\n"
    assert_rewarded(left(script=WITH_REPORT, said=said, report=ctrf(3)), 0.0)


def test_a_1_needs_no_report():
    assert_rewarded(left(script=WITH_REPORT, txt="1"), 1.0)


def test_a_report_asked_for_in_a_comment_is_not_asked_for():
    assert_rewarded(left(script="#!/bin/sh\n# pytest --ctrf /logs/verifier/ctrf.json\n"), 0.0)


@pytest.mark.parametrize(
    "line",
    [
        "/tests/test.sh: line 3: uvx: command not found",
        "/tests/test.sh: 7: pytest: not found",
        "/tests/lib/run.sh: line 12: python3: command not found",
        "/usr/bin/python3: No module named pytest",
    ],
)
def test_a_0_of_a_script_that_missed_a_program_is_no_judgement(line):
    assert_failed(left(said=f"begin\n{line}\nend\n"), "verifier_tool_missing", line)
    assert_rewarded(left(said=f"{line}\n", txt="1"), 1.0)


@pytest.mark.parametrize(
    "line",
    [
        "/tests/test.sh: line 3: frobnicate: command not found",
        "/app/tests/test.sh: line 3: uvx: command not found",
        "sh: 1: uvx: not found",
    ],
)
def test_a_program_that_the_agent_was_to_make_or_to_call_may_be_missing(line):
    assert_rewarded(left(said=f"{line}\n"), 0.0)


@pytest.mark.parametrize(
    "line",
    [
        "curl: (6) Could not resolve host: example.com",
        "curl: (7) Failed to connect to example.com port 443 after 3 ms: Couldn't connect",
        "wget: unable to resolve host address 'example.com'",
        "E: Temporary failure resolving 'example.com'",
        "fatal: unable to look up example.com: Temporary failure in name resolution",
        "connect: Network is unreachable",
        "npm error request failed, reason: getaddrinfo EAI_AGAIN example.com",
        "Failed to establish a new connection: [Errno -3] Temporary failure",
        "  Caused by: dns error: failed to lookup address information",
    ],
)
def test_a_0_of_a_script_that_did_not_reach_the_network_is_no_judgement(line):
    assert_failed(left(said=f"begin\n{line}\nend\n"), "verifier_no_network", line.strip())
    assert_rewarded(left(said=f"{line}\n", txt="1"), 1.0)


def test_a_service_on_this_machine_that_does_not_answer_is_the_agents():
    line = "curl: (7) Failed to connect to localhost port 8080 after 0 ms: Connection refused"
    assert_rewarded(left(said=f"{line}\n"), 0.0)


@pytest.mark.parametrize(
    "test_ran",
    [
        "===== test session starts =====",
        "collected 3 items",
        "Ran 2 tests in 0.1s",
        "not ok 1 - works",
        "=== RUN   TestIt",
        "running 4 tests",
        "FAIL: it does not",
    ],
)
def test_what_is_missed_after_a_test_has_run_is_the_agents(test_ran):
    line = "curl: (6) Could not resolve host: example.com"
    assert_rewarded(left(said=f"{test_ran}\n{line}\n"), 0.0)
    assert_failed(left(said=f"{line}\n{test_ran}\n"), "verifier_no_network")


def test_reward_json_wins_over_reward_txt():
    assert_rewarded(left(js='{"reward": 0.25, "style": 1}', txt="1"), 0.25)
    assert_failed(left(js="{", txt="1"), "reward_unreadable")


def test_the_reward_is_the_key_reward_or_the_only_one_or_the_one_the_run_names():
    assert_rewarded(left(js='{"reward": 0.5, "other": 1}'), 0.5)
    assert_rewarded(left(js='{"accuracy": 0.75}'), 0.75)
    assert_rewarded(left(js='{"reward": true}'), 1.0)
    several = left(js='{"a": 0.1, "b": 0.2}')
    assert_failed(several, "reward_unnamed", "a, b")
    assert judge(several, reward_key="b").reward == 0.2
    assert judge(several, reward_key="b").rewards == {"a": 0.1, "b": 0.2}
    assert judge(several, reward_key="c").cause == "reward_missing"


def test_from_1_on_is_a_pass_unless_the_run_says_otherwise():
    assert judge(left(txt="1")).is_pass
    assert not judge(left(txt="0.99")).is_pass
    assert judge(left(txt="0.8"), pass_at=0.75).is_pass
    assert not judge(left(txt="1"), pass_at=2).is_pass


@given(
    txt=st.none() | st.text(max_size=20),
    js=st.none() | st.text(max_size=20) | st.from_regex(r'\{"\w": -?\d+(\.\d+)?\}', fullmatch=True),
    code=st.integers(0, 255),
    report=st.none() | st.binary(max_size=30),
    said=st.text(max_size=60),
)
def test_whatever_is_left_ends_as_a_finite_reward_or_as_a_known_failure(
    txt, js, code, report, said
):
    verdict = judge(left(txt=txt, js=js, code=code, report=report, said=said))
    if verdict.reward is None:
        assert verdict.cause in CAUSES
        assert verdict.why
        assert verdict.failure_class is FailureClass.VERIFIER
    else:
        assert abs(verdict.reward) < float("inf")
        assert verdict.cause is None
