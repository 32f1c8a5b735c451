"""The tiny model learns by heart, is the same each time, and its template is transformers'."""

import json
import subprocess
import sys

import pytest

from budwood.proxy.testing.chat_template import CHAT_TEMPLATE, DROPS_THINKING, render
from budwood.proxy.testing.real_engine import TAUGHT
from budwood.proxy.testing.tiny_model import _without_untaught


@pytest.mark.slow
def test_it_learns_conversations_by_heart_and_repeatably(tmp_path):
    teach = tmp_path / "teach.jsonl"
    teach.write_text("".join(json.dumps(row) + "\n" for row in TAUGHT[2:4]))
    done = subprocess.run(
        [
            sys.executable, "-m", "budwood.proxy.testing.tiny_model", str(tmp_path / "model"),
            "--teach", str(teach), "--teach-steps", "120", "--vocab", "700", "--check",
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "two builds are identical" in done.stdout


def test_a_turn_that_is_only_there_to_be_read_is_not_learnt():
    messages = [{"role": "user"}, {"role": "assistant", "is_taught": False}, {"role": "user"},
                {"role": "assistant"}]  # fmt: skip
    assert _without_untaught([0, 1, 1, 0, 0, 1], messages) == [0, 0, 0, 0, 0, 1]


@pytest.mark.slow
def test_our_rendering_is_that_of_transformers(tmp_path):
    # In a process of its own: transformers warns, and takes seconds and memory.
    (tmp_path / "in.json").write_text(json.dumps([list(TAUGHT), [CHAT_TEMPLATE, DROPS_THINKING]]))
    code = (
        "import json, sys\n"
        "from transformers.utils.chat_template_utils import render_jinja_template\n"
        "from budwood.proxy.testing.tiny_model import _with_object_arguments as parsed\n"
        "rows, templates = json.load(open(sys.argv[1]))\n"
        "out = []\n"
        "for t in templates:\n"
        "  for row in rows:\n"
        "    messages = [{**m, 'tool_calls': [parsed(c) for c in m.get('tool_calls') or ()]}"
        " for m in row['messages']]\n"
        "    for flag in (True, False):\n"
        "      out.append(render_jinja_template(conversations=[messages], tools=row.get('tools'),"
        " chat_template=t, add_generation_prompt=flag)[0][0])\n"
        "print('RESULT' + json.dumps(out))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "in.json")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout.partition("RESULT")[2])
    ours = [
        render(row["messages"], row.get("tools"), template=template, add_generation_prompt=flag)
        for template in (CHAT_TEMPLATE, DROPS_THINKING)
        for row in TAUGHT
        for flag in (True, False)
    ]
    assert ours == theirs
