"""Real, unmodified harnesses through the proxy: mini-swe-agent and pi, as a user records them."""

import json
import os
import subprocess
import sys

import pytest

from budwood.cli.demo.acts import Part
from budwood.cli.demo.tasks import GREET, REPAIR
from budwood.cli.summary import summarise
from budwood.trajectory_store import Store

from .harnesses import digests, place, programs, recorded, requests, teacher

__all__ = ["place", "programs", "teacher"]

MINI, PI, PI_WRITES = Part("mini-swe-agent", REPAIR), Part("pi", REPAIR), Part("pi", GREET)
BOTH = pytest.mark.parametrize("part", [MINI, PI], ids=str)
POISON = "POISON-of-the-users-own-setup"
OWN = {
    ".config/mini-swe-agent/.env": f"MSWEA_MODEL_NAME='{POISON}'\nOPENAI_API_KEY='{POISON}'\n",
    ".pi/agent/models.json": json.dumps(
        {"providers": {POISON: {"baseUrl": "http://127.0.0.1:9/v1", "apiKey": POISON}}}
    ),
    ".pi/agent/settings.json": json.dumps({"defaultProvider": POISON, "defaultModel": POISON}),
    ".pi/agent/AGENTS.md": f"{POISON}\n",
    ".pi/agent/SYSTEM.md": f"{POISON}\n",
}
"""What a user has of their own: path in the home → text."""


@pytest.fixture(scope="module")
def done(place, teacher):
    """Each harness recorded at its task, in a home that holds a user's own setup."""
    home = place.folder / "home"
    for name, text in OWN.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    before = digests(home)
    for part in (MINI, PI, PI_WRITES):
        part.record(place, teacher)
        assert part.is_done(place)
    return {"place": place, "home before": before, "home after": digests(home)}


@BOTH
def test_each_call_of_a_harness_is_exact_and_spliced(part, place, done):
    rollout, calls = recorded(place, part)
    assert [call.exact for call in calls] == [True, True, True]
    assert [call.prompt_mode for call in calls] == ["rendered", "spliced", "spliced"]
    assert [call.turn_index for call in calls] == [0, 1, 2]
    assert {call.state for call in calls} == {"delivered"}
    with Store.open(place.store, read_only=True) as store:
        assert store.rollout(rollout).harness == part.harness
        (sequence,) = store.sequences(rollout)
        assert sequence.n_trained == sum(call.n_out or 0 for call in calls)


def test_pi_writes_arguments_anew_and_is_spliced_all_the_same(place, done):
    _, calls = recorded(place, PI_WRITES)
    reply = calls[0].reply
    assert reply is not None
    sampled = reply["tool_calls"][0]["arguments"]
    sent = json.loads(requests(place, calls)[1])["messages"][-2]
    again = sent["tool_calls"][0]["function"]["arguments"]
    assert again != sampled
    assert json.loads(again) == json.loads(sampled)
    assert calls[1].prompt_mode == "spliced"


@BOTH
def test_a_replay_is_identical_and_a_changed_tool_output_is_found_at_its_call(part, place, done):
    rollout, _ = recorded(place, part)
    assert part.replay(place, rollout) == "identical"
    folder = part.lay_out(place)
    (folder / "greet.py").write_text('pritn("other")\n')
    out = place.budwood("replay", rollout, "--", *part.command, cwd=folder, allowed=(1,))
    assert "\ncall 2 (" in f"\n{out}"
    assert "message 3 (tool)" in out
    assert "hello" in out
    assert "other" in out


def test_the_users_own_setup_is_neither_read_nor_changed(place, done):
    before, after = done["home before"], done["home after"]
    assert {name: after[name] for name in before} == before
    for part in (MINI, PI):
        _, calls = recorded(place, part)
        assert POISON not in "".join(requests(place, calls))


@BOTH
def test_on_real_vllm_all_that_is_complete_is_exact(part, place, vllm_engine):
    """The engine's tiny model has never seen these prompts: it may say anything, and does."""
    place.budwood(
        "record", "--engine", vllm_engine.url, "--purpose", "train",
        "--label", f"vllm={part.name}", "--config", str(_short_answers(place)),
        "--", *_limited(part), cwd=part.lay_out(place), log="vllm.txt",
    )  # fmt: skip
    with Store.open(place.store, read_only=True) as store:
        (rollout,) = store.select(f"label.vllm={part.name}")
        calls = sorted(store.calls(rollout), key=lambda call: call.seq or 0)
        assert calls
        summary = summarise(store, rollout)
        assert not summary.failures
        assert summary.n_exact == summary.n_calls
        for sequence in store.sequences(rollout):
            assert sequence.is_exact
        trained = sum(sequence.n_trained for sequence in store.sequences(rollout))
        assert trained == summary.n_sampled_tokens
    for call in calls[1:]:
        # Where it is not spliced, the record says why: here only that an answer was cut short.
        assert call.prompt_mode == "spliced" or call.reasons


def _short_answers(place):
    path = place.folder / "budwood.toml"
    path.write_text("[proxy.sampling]\nmax_tokens = 150\ntemperature = 1.0\n")
    return path


def _limited(part):
    return [word.replace("step_limit=8", "step_limit=3") for word in part.command]


def test_the_openai_sdk_keeps_a_conversation_on_real_vllm(place, vllm_engine):
    script = place.folder / "sdk.py"
    script.write_text(
        "from openai import OpenAI\n"
        "messages = [{'role': 'user', 'content': 'What is next?'}]\n"
        "for turn in range(3):\n"
        "    with OpenAI().chat.completions.stream(\n"
        "        model='any', messages=messages, max_tokens=200\n"
        "    ) as stream:\n"
        "        said = stream.get_final_completion().choices[0].message\n"
        "    messages += [said.to_dict(), {'role': 'user', 'content': 'And then?'}]\n"
    )
    environment = {**os.environ, **place.environment()}
    words = [sys.executable, "-m", "budwood", "record", "--engine", vllm_engine.url]
    words += ["--store", str(place.store), "--"]
    done = subprocess.run(
        [*words, sys.executable, str(script)],
        env=environment, capture_output=True, text=True, check=False, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with Store.open(place.store, read_only=True) as store:
        (rollout,) = store.select("last")
        calls = store.calls(rollout)
    assert [call.exact for call in calls] == [True, True, True]
    assert all(call.prompt_mode == "spliced" or call.reasons for call in calls[1:])
