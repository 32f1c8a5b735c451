"""`budwood train`: from a store to weights, killed and gone on with, refused in words."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from budwood.cli import app
from budwood.trajectory_store import Store

from ..trainers.conftest import make_model
from ..trainers.recording import record

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),
]

GRPO = """
model = "{model}"
output = "run"
groups_per_step = 1
epochs = 8
[data]
selector = "run=evening"
[optimizer]
learning_rate = 1e-3
schedule = "linear"
[mismatch]
max_single = 1e-3
[hardware]
device = "cpu"
[checkpoint]
every = 2
"""
SFT = """
model = "{model}"
output = "run"
rows_per_step = 3
epochs = 8
[data]
selector = "run=evening reward>0"
[optimizer]
learning_rate = 1e-3
schedule = "cosine"
[hardware]
device = "cpu"
[checkpoint]
every = 2
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """(path of the store, folder of the model that its logprobs are of)."""
    folder = tmp_path_factory.mktemp("recorded")
    model = make_model(folder / "model")
    return record(folder / "store.db", model), model


def command(kind, *words):
    return [sys.executable, "-m", "budwood", "train", kind, "config.toml", *words]


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@pytest.fixture
def train(recorded, tmp_path, monkeypatch):
    """Run the command in a folder of its own, in this process, where torch is loaded already."""
    import torch

    torch.set_num_threads(1)

    def run(kind, config, *words, folder=tmp_path, code=0, store=recorded[0]):
        folder.mkdir(exist_ok=True)
        (folder / "config.toml").write_text(config.format(model=recorded[1]))
        monkeypatch.chdir(folder)
        done = CliRunner().invoke(
            app, ["train", kind, "config.toml", *words, "--store", str(store)]
        )
        assert done.exit_code == code, (done.stderr, done.exception)
        return done

    return run


def weights(folder):
    return (folder / "run/model/model.safetensors").read_bytes()


def figures(folder):
    lines = (folder / "run/metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def kill_after(kind, n_steps, folder, store):
    """Start the command and end it by SIGKILL once it has logged so many steps."""
    process = subprocess.Popen(
        [*command(kind), "--store", str(store)], cwd=folder, env=environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    metrics = folder / "run/metrics.jsonl"
    while not metrics.exists() or metrics.read_text().count("\n") < n_steps:
        assert process.poll() is None
        time.sleep(0.001)
    process.kill()
    assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize(("kind", "config", "steps"), [("grpo", GRPO, 24), ("sft", SFT, 32)])
def test_a_run_that_is_killed_and_repeated_comes_to_the_same_weights(
    train, recorded, tmp_path, kind, config, steps
):
    done = train(kind, config, folder=tmp_path / "whole")
    assert done.stdout.splitlines()[0] == f"{steps} steps"
    whole = weights(tmp_path / "whole")
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / "config.toml").write_text(config.format(model=recorded[1]))
    kill_after(kind, 3, cut, recorded[0])
    assert not (cut / "run/model").exists()
    again = train(kind, config, folder=cut)
    assert re.search(r"going on after step \d+ ?", again.stderr)
    assert weights(cut) == whole
    assert [f["step"] for f in figures(cut)] == list(range(1, steps + 1))
    kept = ("loss", "grad_norm")
    for mine, other in zip(figures(cut), figures(tmp_path / "whole"), strict=True):
        assert [mine[name] for name in kept] == [other[name] for name in kept]


def test_grpo_counts_what_it_leaves_out_and_closes_with_a_report(train, recorded, tmp_path):
    train("grpo", GRPO)
    run = json.loads((tmp_path / "run/run.json").read_text())
    assert run["finished"] is True
    assert run["left_out"]["reward_none"] == 1
    assert run["left_out"]["class_environment"] == 1
    assert run["mismatch"]["largest"] < 1e-5
    assert run["bars"]["failure classes of the rollouts"] == {"environment": 1, "none": 13}
    facts = run["facts"]
    assert (facts["rollouts"], facts["exact share"], facts["steps"]) == (14, 1, 24)
    assert facts["largest difference"] < 1e-5
    step = figures(tmp_path)[0]
    assert step["rollouts"] == 4
    assert step["ratio/mean"] == pytest.approx(1, abs=1e-5)
    assert step["exact_share"] == 1
    report = (tmp_path / "run/report.html").read_text()
    for title in ("reward", "trained tokens of a rollout", "ratio of new to recorded probability",
                  "failure classes of the rollouts", "exact share of calls"):  # fmt: skip
        assert f"<figcaption>{title}" in report
    assert "://" not in report
    assert report.count("<svg") >= 10
    assert list((tmp_path / "run/tensorboard").glob("events.out.tfevents.*"))


def test_a_control_run_hands_the_same_advantages_to_other_rollouts(train, tmp_path):
    train("grpo", GRPO)
    done = train("grpo", GRPO, "--shuffle-advantages", "-o", "control", "--json")
    assert json.loads(done.stdout)["folder"] == "control"
    assert weights(tmp_path) != (tmp_path / "control/model/model.safetensors").read_bytes()
    assert "advantages were shuffled" in (tmp_path / "control/report.html").read_text()


def test_the_alarm_ends_a_run_on_another_model_before_it_trains(train, recorded, tmp_path):
    other = make_model(tmp_path / "other", seed=7)
    config = GRPO.replace("{model}", str(other))
    done = train("grpo", config, code=3)
    assert "recorded and recomputed logprobs" in done.stderr
    assert "the model is not the one that sampled" in done.stderr
    assert not list((tmp_path / "run").glob("checkpoints/*"))
    assert not (tmp_path / "run/model").exists()
    # Put right, the same folder will do.
    train("grpo", GRPO)


def test_what_cannot_be_used_is_said_in_words(train, recorded, tmp_path):
    done = train("grpo", GRPO.replace("epochs = 8", "epoch = 8"), code=2)
    assert "epoch: Extra inputs are not permitted" in done.stderr
    done = train("grpo", GRPO.replace("run=evening", "reward=none"), code=4)
    assert "not one row is left to train on; left out:" in done.stderr
    assert "reward_none 1" in done.stderr
    train("grpo", GRPO)
    done = train("grpo", GRPO.replace("1e-3", "1e-4"), code=1)
    assert "holds another run: its decides differs (optimizer" in done.stderr


def test_recordings_at_several_temperatures_are_not_mixed(train, recorded, tmp_path):
    from ..trainers.recording import Scribe

    path = tmp_path / "mixed.db"
    with Store.open(path) as store:
        run = store.open_run("evening")
        for number in range(2):
            rollout = store.open_rollout(run.id, group_id="g", attempt=number)
            scribe = Scribe(store, rollout)
            scribe.call(scribe.lane(), [{"role": "user", "content": "x"}], "y",
                        sampling={"temperature": 0.5 + number / 2})  # fmt: skip
            store.score(rollout.id, float(number), by="test")
    done = train("grpo", GRPO, store=path, code=2)
    assert "several temperatures: 0.5 (2 tokens), 1 (2 tokens)" in done.stderr
