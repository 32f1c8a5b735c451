"""With and without the proxy, small: the same prompts as text, the same rewards.

`python -m tests.e2e.parity` is the whole of it, on real vLLM.
"""

import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from .parity import parity
from .prompt_differences import (
    ARGUMENTS,
    CALL_IDS,
    REASONING,
    WHITE_SPACE,
    of_own_output,
    of_requests,
    of_two_runs,
)
from .rollout_faults import ScriptedProcess
from .run_command import Place
from .taught_tasks import TASKS, Chosen, laid_out


@pytest.mark.usefixtures("namespaces")
def test_the_proxy_changes_neither_prompts_nor_rewards():
    # Not tmp_path: a socket's path is short.
    with tempfile.TemporaryDirectory() as work, ExitStack() as stack:
        folder = Path(work)
        what = Chosen(laid_out(TASKS[:2], folder / "tasks"), ["react"], 1)
        engine = ScriptedProcess(what, stack)
        engine.start()
        found = parity(Place(folder, engine.url, what))
    print(found.report())
    assert found.faults == []
    assert found.rewards == {"1": 1, "0": 1}
    assert found.counts["calls"] == found.counts["exact"] == 6
    # The first turns at both tasks are spelled oddly, and read again twice.
    assert found.prompts[ARGUMENTS] == found.prompts[WHITE_SPACE] == 2


CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": %s}}\n</tool_call>'


@pytest.mark.parametrize(
    ("own", "echoed", "names"),
    [
        ("I look.\n\n" + CALL % '"ls"', "I look.\n" + CALL % '"ls"', [WHITE_SPACE]),
        (CALL % '"caf\\u00e9"', CALL % '"café"', [ARGUMENTS]),
        (CALL % '"ls"', CALL % '"ls -l"', [None]),
        ("I look.", "I see.", [None]),
        ("I look.", "I look.", []),
    ],
)
def test_only_the_spelling_of_own_output_has_a_name(own, echoed, names):
    found = of_own_output(["system: a.b", own, "user:"], f"system: a.b{echoed}user:")
    assert [each.name for each in found] == names
    (other,) = of_own_output(["system: a.b", own, "user:"], f"system: a,b{echoed}user:")
    assert other.name is None


@pytest.mark.parametrize(
    ("one", "other", "names"),
    [
        ("at 10:02:03.5 on 2026-01-02", "at 10:02:04.1 on 2026-01-02", ["a date or a time"]),
        ("ask 127.0.0.1:8000 now", "ask 127.0.0.1:8001 now", ["a port"]),
        ("3 files", "4 files", [None]),
        ("the same", "the same", []),
    ],
)
def test_only_what_shows_the_run_has_a_name(one, other, names):
    assert [each.name for each in of_two_runs(one, other)] == names


@pytest.mark.parametrize(
    ("one", "other", "names"),
    [
        ('{"messages": [{"tool_call_id": "a"}]}', '{"messages": [{"tool_call_id": "b"}]}',
         [CALL_IDS]),
        ('{"messages": [{"reasoning": "I"}]}', '{"messages": [{"reasoning_content": "I"}]}',
         [REASONING, REASONING]),
        ('{"messages": [{"reasoning": "I"}]}', '{"messages": [{}]}', [None]),
        ('{"temperature": 0}', '{"temperature": 1}', [None]),
        ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}', []),
    ],
)  # fmt: skip
def test_requests_differ_by_ids_and_names_of_fields_alone(one, other, names):
    assert [each.name for each in of_requests(one.encode(), other.encode())] == names
