"""The verbs that read a store: show, score, export, config, and their errors and exit codes."""

import importlib.util
import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from budwood.cli import COMMANDS, app
from budwood.cli.terminal import safe
from budwood.trajectory_store import (
    CallIntent,
    FailureClass,
    PromptMode,
    Store,
    new_call_id,
    new_lane_id,
)
from budwood.trajectory_store.testing import SECRET, Scribe

ESCAPE = "\x1b"


@pytest.fixture
def budwood(recorded_path, recorded, monkeypatch, tmp_path):
    """Return a function that runs a command on the example store: (exit code, out, err)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BUDWOOD_STORE__URL", str(recorded_path))

    def run(*words):
        done = CliRunner().invoke(app, list(words))
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.stdout, done.stderr

    return run


def test_without_a_selector_the_runs_are_listed(budwood, recorded):
    code, out, _ = budwood("show")
    assert code == 0
    header, line = out.splitlines()
    assert header.split("\t")[0] == "run"
    assert line.split("\t")[:5] == [recorded.run_id, "examples", "record", "as-sent", "5"]


def test_a_selector_of_several_lists_rollouts(budwood, recorded):
    code, out, _ = budwood("show", "reward>=0")
    assert code == 0
    assert [line.split("\t")[0] for line in out.splitlines()[1:]] == [
        recorded.tree,
        recorded.hostile,
    ]


def test_a_rollout_is_shown_as_a_tree_of_lanes(budwood, recorded):
    code, out, _ = budwood("show", recorded.tree)
    lines = out.splitlines()
    assert code == 0
    assert "9 calls, 6 exact" in out
    main = lines.index("main")
    assert lines[main + 1].startswith("  1. turn 0 delivered exact")
    assert lines[main + 2].startswith("  2. turn 1 delivered exact spliced")
    assert any(line.startswith("    6. fork turn 2") for line in lines)
    assert "  sub-agent" in lines
    assert "side" in lines


def test_a_call_is_shown_by_number_or_id_as_messages(budwood, recorded):
    _, by_number, _ = budwood("show", recorded.tree, "--call", "2")
    _, by_id, _ = budwood("show", recorded.tree, "--call", recorded.calls["tree.2"])
    assert by_number == by_id
    assert "a.py\nb.py" in by_number
    assert "Two files." in by_number
    assert "First I look." in by_number


def test_tokens_and_reasons_are_shown(budwood, recorded):
    _, out, _ = budwood("show", recorded.tree, "--call", "1", "--tokens")
    assert "0\t70\t-0.100000" in out.splitlines()
    _, out, _ = budwood("show", recorded.tree, "--call", "6", "--why")
    assert "without the model's reasoning" in out
    assert "-First I look." in out
    _, out, _ = budwood("show", recorded.tree, "--why")
    assert "client_gone" in out


def test_json_is_for_programs(budwood, recorded):
    _, out, _ = budwood("show", recorded.tree, "--json", "--tokens", "--why")
    facts = json.loads(out)
    assert len(facts["calls"]) == 9
    first = facts["calls"][0]
    assert first["n_prompt"] == len(first["tokens"]["prompt_ids"])
    _, out, _ = budwood("show", recorded.tree, "--call", "1", "--json")
    assert json.loads(out)["reply"]["reasoning"] == "First I look."
    assert len(json.loads(budwood("show", "--json")[1])) == 1


def test_follow_ends_when_the_rollout_is_closed(budwood, recorded):
    code, out, _ = budwood("show", recorded.hostile, "--follow")
    assert code == 0
    assert [line[:15] for line in out.splitlines()] == ["main: 1. turn 0", "main: 2. turn 1"]


def test_follow_shows_a_call_that_comes_later(recorded_path, recorded):
    words = ["-m", "budwood", "show", recorded.running, "--follow", "--store", str(recorded_path)]
    command = [sys.executable, "-u", *words]
    with (
        Store.open(recorded_path) as store,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower,
    ):
        try:
            assert follower.stdout is not None
            assert follower.stdout.readline().startswith("main: 1.")
            assert follower.stdout.readline().startswith("main: 2.")
            scribe = Scribe(store, store.rollout(recorded.running))
            scribe.call(scribe.lane(), [{"role": "user", "content": "late"}], "ok")
            assert "3. turn 0 delivered exact" in follower.stdout.readline()
            store.close_rollout(recorded.running)
            assert follower.wait(30) == 0
        finally:
            follower.kill()


def test_hostile_text_reaches_no_terminal_as_it_came(budwood, recorded):
    for words in (["--call", "2"], ["--call", "2", "--why"], []):
        _, out, _ = budwood("show", recorded.hostile, *words)
        assert ESCAPE not in out
        assert "\x07" not in out
    assert "\\x1b[2J" in budwood("show", recorded.hostile, "--call", "2")[1]
    assert safe("a\x1b[1mb\u202ec\n\x85") == "a\\x1b[1mb\\u202ec\n\\x85"


def test_a_secret_is_shown_nowhere(budwood, recorded):
    for words in ([], ["--call", "2"], ["--tokens", "--why"], ["--json", "--tokens"]):
        _, out, _ = budwood("show", recorded.secret, *words)
        assert SECRET not in out
    code, out, _ = budwood("show", recorded.secret, "--call", "2", "--tokens")
    assert code == 0
    assert "not shown" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "nonsense"], "allowed are: last"),
        (["show", "all", "--tokens"], "names 5 rollouts"),
        (["show", "--why"], "need a selector"),
        (["show", "last", "--call", "99"], "calls 1 to 2"),
        (["export", "reward>7", "--to", "trl-sft"], "no rollout in this store"),
        (["export", "last", "--to", "csv"], "trl-sft"),
        (["score", "last"], "--reward X, --csv FILE and --verifier"),
        (["score", "--reward", "1"], "needs a selector"),
        (["score", "last", "--reward", "much"], "a number or none"),
        (["score", "last", "--reward", "nan"], "finite"),
        (["score", "last", "--reward", "1", "--class", "luck"], "none, policy, environment"),
        (["score", "last", "--reward", "1", "--by", ""], "who judged"),
        (
            ["score", "last", "--reward", "1", "--class", "engine", "--cause", "out_of_memory"],
            "belongs to class policy",
        ),
        (["export", "all", "--to", "jsonl", "--out", ""], "a file or a folder"),
        (["export", "all", "--to", "jsonl", "--out", "-"], "a file or a folder"),
        (["export", "all", "--to", "jsonl", "--out", "/dev/null"], "no file that can be replaced"),
        (["export", "all", "--to", "jsonl", "--out", "x" * 300], "File name too long"),
        (["export", "all", "--to", "jsonl", "--rows", "trl-sft"], "the rows of parquet"),
        (["replay", "last", "--port", "99999"], "65535"),
        (["engine", "m", "--port", "99999"], "65535"),
        (["replay", "all"], "names 5 rollouts"),
        (["replay", "last", "--ignore", "("], "no regular expression"),
        (["nope"], "nope"),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_says_what_to_do(budwood, words, said):
    code, out, err = budwood(*words)
    assert code == 2
    assert said in " ".join((out + err).replace("│", " ").split())


def test_a_store_that_is_not_there_says_how_to_make_one(tmp_path):
    done = CliRunner().invoke(app, ["show", "--store", str(tmp_path / "none.db")])
    assert done.exit_code == 1
    assert "budwood record" in done.stderr
    assert not (tmp_path / "none.db").exists()


def test_a_reward_is_a_new_version(budwood, recorded, recorded_path):
    code, out, _ = budwood("score", recorded.tree, "--reward", "0.25", "--by", "me")
    assert code == 0
    assert out.splitlines()[1].split("\t") == [recorded.tree, "3", "0.25", "none"]
    assert budwood("score", recorded.hostile, "--reward", "none", "--class", "verifier")[0] == 0
    with Store.open(recorded_path) as store:
        assert [o.reward for o in store.outcomes(recorded.tree)] == [0.5, 1.0, 0.25]
        assert store.outcome(recorded.tree).by == "me"
        assert store.outcome(recorded.hostile).failure_class == "verifier"


def test_a_known_cause_brings_its_class(budwood, recorded, recorded_path):
    words = ["--reward", "none", "--cause", "out_of_memory"]
    assert budwood("score", recorded.tree, *words)[0] == 0
    with Store.open(recorded_path) as store:
        assert store.outcome(recorded.tree).failure_class is FailureClass.POLICY


def test_a_file_scores_many(budwood, recorded, recorded_path, tmp_path):
    file = tmp_path / "rewards.csv"
    file.write_text(
        f"rollout,reward,class,cause\n{recorded.tree},1,,\n{recorded.secret},none,policy,budget_calls\n"
    )
    assert budwood("score", "--csv", str(file))[0] == 0
    with Store.open(recorded_path) as store:
        assert store.outcome(recorded.tree).version == 3
        assert store.outcome(recorded.secret).cause == "budget_calls"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("rollout,score\nlast,1\n", "the columns are rollout, reward"),
        ("rollout,reward\nlast,1\nro_nothing,1\n", "line 3"),
        ("rollout,reward\nlast,1\nlast,0\n", "twice"),
        ("rollout,reward\nall,1\n", "names 5 rollouts"),
        ("rollout,reward\nlast,x\n", "line 2: a reward is a number"),
        ("rollout,reward\nlast,1,2,3\n", "more values than columns"),
        ("rollout,reward\n", "no line to score"),
        ("rollout,reward,class,cause\nlast,0,engine,out_of_memory\n", "line 2: the cause"),
    ],
)
def test_a_wrong_file_scores_nothing(budwood, recorded, recorded_path, tmp_path, lines, said):
    file = tmp_path / "rewards.csv"
    file.write_text(lines)
    code, _, err = budwood("score", "--csv", str(file))
    assert code == 2
    assert said in err
    with Store.open(recorded_path) as store:
        assert store.outcome(recorded.running).version == 0


def test_a_selector_limits_what_a_file_may_score(budwood, recorded, tmp_path):
    file = tmp_path / "rewards.csv"
    file.write_text(f"rollout,reward\n{recorded.tree},1\n")
    assert budwood("score", recorded.tree, "--csv", str(file))[0] == 0
    assert budwood("score", recorded.hostile, "--csv", str(file))[0] == 2


def test_an_export_names_its_file_and_counts_what_was_left_out(budwood, tmp_path):
    code, out, _ = budwood("export", "all", "--to", "trl-sft")
    assert code == 0
    assert "budwood-trl-sft.jsonl: 6 rows of 4 rollouts (5 selected)" in out
    assert "rollouts\tclass_environment\t1" in out.splitlines()
    assert (tmp_path / "budwood-trl-sft.jsonl.manifest.json").exists()
    assert budwood("export", "all", "--to", "trl-sft")[0] == 0


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--to", "jsonl"], "budwood.jsonl"),
        (["--to", "parquet"], "budwood-trl-sft.parquet"),
        (["--to", "parquet", "--rows", "trl-grpo"], "budwood-trl-grpo.parquet"),
        (["--to", "trl-grpo", "-o", "x.txt"], "x.txt"),
        (["--to", "trl-grpo", "-o", "folder"], "folder/budwood-trl-grpo.jsonl"),
    ],
)
def test_each_format_has_a_file_name(budwood, tmp_path, words, name):
    (tmp_path / "folder").mkdir()
    assert budwood("export", "all", *words)[0] == 0
    assert (tmp_path / name).stat().st_size > 0


def test_an_empty_export_is_told_by_its_code(budwood, recorded):
    code, _, err = budwood("export", recorded.broken, "--to", "trl-grpo", "--json")
    assert code == 4
    assert "not one row" in err


def test_another_file_is_replaced_only_by_force(budwood, tmp_path):
    (tmp_path / "mine").write_text("mine")
    assert budwood("export", "all", "--to", "jsonl", "-o", "mine")[0] == 0
    assert (tmp_path / "mine").read_text() == "mine"
    (tmp_path / "mine.jsonl").unlink()
    (tmp_path / "mine.jsonl.manifest.json").unlink()
    (tmp_path / "mine.jsonl").write_text("mine")
    code, _, err = budwood("export", "all", "--to", "jsonl", "-o", "mine.jsonl")
    assert code == 1
    assert "no export made it" in err
    assert budwood("export", "all", "--to", "jsonl", "-o", "mine.jsonl", "--force")[0] == 0
    (tmp_path / "other.jsonl.manifest.json").write_text('["mine"]')
    code, _, err = budwood("export", "all", "--to", "jsonl", "-o", "other.jsonl")
    assert code == 1
    assert "no manifest of an export" in err


def test_help_lists_every_command_there_is_and_loads_none():
    script = "import sys; from budwood.cli import app; app(['--help'], standalone_mode=False); "
    script += "print(sorted(m for m in sys.modules if m.startswith(('budwood.cli.', 'aiohttp',"
    script += " 'sqlalchemy', 'pydantic', 'budwood.trajectory_store', 'budwood.proxy'))))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    there = {p.stem for p in (Path(__file__).parents[2] / "budwood" / "cli").glob("*.py")}
    for name in set(COMMANDS) & there:
        assert name in done.stdout


def test_every_command_that_is_there_registers_itself_under_its_name():
    for name in ("show", "view", "score", "export", "replay", "config"):
        done = CliRunner().invoke(app, [name, "--help"])
        assert done.exit_code == 0
        assert f"budwood {name}" in done.stdout or f"root {name}" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_view_prints_an_address_that_opens_and_ends_on_a_signal(recorded_path, recorded, number):
    words = ["-m", "budwood", "view", recorded.tree, "--port", "0", "--store", str(recorded_path)]
    command = [sys.executable, "-u", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as viewer:
        try:
            assert viewer.stdout is not None
            address = viewer.stdout.readline().strip()
            opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            with opener.open(address) as page:
                assert page.url.endswith(f"/rollout/{recorded.tree}")
                assert recorded.tree.encode() in page.read()
            viewer.send_signal(number)
            assert viewer.communicate(timeout=100)[1] == ""
            assert viewer.returncode == 0
        finally:
            viewer.kill()


def test_view_refuses_an_address_that_others_reach(budwood):
    code, _, err = budwood("view", "--host", "0.0.0.0", "--port", "0")
    assert code == 2
    assert "BUDWOOD_VIEWER__TOKEN" in err


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("postgresql://someone@127.0.0.1:9/x", "pip install 'budwood[postgres]'"),
        ("a.py", "can't be opened (DatabaseError: file is not a database): it is another kind"),
    ],
)
def test_a_store_that_cannot_be_opened_is_named_with_what_to_do(
    budwood, tmp_path, monkeypatch, store, said
):
    (tmp_path / "a.py").write_text("print('no store')\n" * 100)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "psycopg" else find(name)
    )
    for command in (("show",), ("export", "all", "--to", "jsonl"), ("score", "all", "--reward=1")):
        code, _, err = budwood(*command, "--store", store)
        assert code == 1
        assert said in err
        assert "Traceback" not in err


@pytest.mark.parametrize(("where", "code"), [(">&-", 0), (">/dev/full", 1)])
def test_output_that_goes_nowhere_ends_without_a_traceback(recorded_path, recorded, where, code):
    words = f"show {recorded.tree} --store {recorded_path}"
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m budwood {words} {where}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert ("can't be written" in done.stderr) is bool(code)


def test_a_call_without_a_result_is_listed(budwood, recorded_path, recorded):
    with Store.open(recorded_path) as store:
        rollout = store.open_rollout(recorded.run_id)
        intent = CallIntent(
            id=new_call_id(), rollout_id=rollout.id, dialect="chat", lane=new_lane_id(),
            parent=None, prompt_mode=PromptMode.RENDERED, body_hash=b"x" * 32,
            body=b'{"messages":[]}', stream=False, asked_model=None, client={},
        )  # fmt: skip
        store.begin_call(intent).result()
    code, out, _ = budwood("show", rollout.id)
    assert code == 0
    assert "1 calls, 0 exact" in out
    assert "begun, without a result" in out
    assert "1. turn 0 intent" in out
