"""Imitation through TRL: weights by hand, and rows from text."""

import json
import random
from typing import Any

import pytest

from budwood.trainers import NothingToTrain, SftConfig, sft_batch, train_sft
from budwood.trainers.from_text import sequences_from_text
from budwood.trainers.settings import DataSettings
from budwood.trajectory_store import Store
from budwood.trajectory_store.testing import Scribe

from .sequences import attempt, sequence

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def tokens(rng, n):
    return [rng.randrange(250) for _ in range(n)]


def rollouts(n=4, seed=0):
    rng = random.Random(seed)
    made = []
    for number in range(n):
        name = f"ro_{number}"
        turns = [(tokens(rng, rng.randrange(2, 7)), tokens(rng, rng.randrange(1, 6)))
                 for _ in range(2)]  # fmt: skip
        rows = [sequence(name, turns)]
        if number % 2:
            rows.append(sequence(name, [(tokens(rng, 3), tokens(rng, 8))], lane="la_sub"))
        made.append(attempt(name, None, *rows))
    return made


@pytest.mark.parametrize("weight", ["rollout", "row", "token"])
@pytest.mark.parametrize("together", [1, 2, 6])
def test_loss_and_gradient_are_the_weighted_mean_written_by_hand(
    model_folder, tmp_path, monkeypatch, weight, together
):
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.trainer.sft_config import SFTConfig

    from budwood.trainers.sft import _columns
    from budwood.trainers.weighted_sft import WeightedCollator, WeightedSFTTrainer

    batch = sft_batch(rollouts(), weight=weight)
    assert len(batch.rows) == 6
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    total = torch.zeros(())
    for row in batch.rows:
        logprobs = model(input_ids=torch.tensor(row.input_ids)[None]).logits[0].log_softmax(-1)
        for place in range(1, row.n_tokens):
            if row.loss_mask[place]:
                told = logprobs[place - 1, int(row.input_ids[place])]
                total = total - told * float(row.weights[place]) / batch.normaliser
    total.backward()
    expected = {name: p.grad for name, p in model.named_parameters()}

    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    trainer = WeightedSFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32),
        args=SFTConfig(
            output_dir=str(tmp_path), max_length=None, max_steps=1, bf16=False, use_cpu=True,
            per_device_train_batch_size=together, gradient_accumulation_steps=6 // together,
            max_grad_norm=1e9, report_to=[], save_strategy="no", logging_steps=1,
        ),
        train_dataset=Dataset.from_list([_columns(row) for row in batch.rows]),
        processing_class=tokenizer,
        data_collator=WeightedCollator(pad_token_id=tokenizer.pad_token_id),
    )  # fmt: skip
    found = {}
    real = trainer.create_optimizer

    def create(*args, **kwargs):
        made = real(*args, **kwargs)
        step = made.step

        def kept(*a, **k):
            network: Any = trainer.model
            found.update({n: p.grad.clone() for n, p in network.named_parameters()})
            return step(*a, **k)

        monkeypatch.setattr(made, "step", kept)
        return made

    monkeypatch.setattr(trainer, "create_optimizer", create)
    trainer.train()
    logged = next(entry for entry in trainer.state.log_history if "loss" in entry)
    assert logged["loss"] == pytest.approx(float(total.detach()), abs=1e-4)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-6, rtol=1e-4)


# -- from text -----------------------------------------------------------------------------------

NO_IDS = {
    "prompt_ids": None, "out_ids": None, "logprobs": None, "exact": False, "prompt_base": None,
    "prompt_common": 0, "prompt_mode": None, "reasons": ("no_ids",),
}  # fmt: skip


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory):
    """A random model with a chat template that keeps what it has said."""
    from budwood.proxy.testing.tiny_model import TinyModel, make

    folder = tmp_path_factory.mktemp("chat")
    make(folder, TinyModel())
    return folder


@pytest.fixture
def texts(tmp_path):
    """A store of one rollout without token ids (a tool call, then an answer) and one with."""
    with Store.open(tmp_path / "store.db") as store:
        run = store.open_run("texts")
        plain = store.open_rollout(run.id)
        scribe = Scribe(store, plain)
        lane = scribe.lane()
        ask = [{"role": "user", "content": "List files."}]
        first = scribe.call(
            lane, ask, reasoning="I call bash.", tool_calls=[("bash", '{"command": "ls"}')],
            **NO_IDS,
        )  # fmt: skip
        said = [*scribe.history[first], {"role": "tool", "tool_call_id": "x", "content": "a.txt"}]
        scribe.call(lane, said, "There is a.txt.", parent=first, **NO_IDS)
        exact = store.open_rollout(run.id)
        scribe = Scribe(store, exact)
        scribe.call(scribe.lane(), ask, "Hello.")
        yield store, plain.id, exact.id


def test_text_is_rendered_by_the_template_and_each_answer_is_trained_once(texts, chat_model):
    from collections import Counter

    from transformers import AutoTokenizer

    store, plain, _ = texts
    tokenizer = AutoTokenizer.from_pretrained(chat_model)
    left_out = Counter()
    data = DataSettings(selector="all")
    (row,) = sequences_from_text(store, plain, tokenizer, data, left_out)
    assert not left_out
    assert not row.is_exact
    ids = list(row.input_ids)
    answers = [tokenizer.decode(ids[call.start_out : call.end_out]) for call in row.calls]
    assert [call.is_trained for call in row.calls] == [True, True]
    assert answers[0].endswith("</tool_call><|im_end|>")
    assert "I call bash." in answers[0]
    assert '"command": "ls"' in answers[0]
    assert answers[1].endswith("There is a.txt.<|im_end|>")
    context = [token for token, on in zip(ids, row.loss_mask, strict=True) if not on]
    assert "a.txt\n" in tokenizer.decode(context)
    assert "There is" not in tokenizer.decode(context)


def test_what_a_template_cannot_render_is_counted(texts, chat_model):
    from collections import Counter

    from transformers import AutoTokenizer

    store, plain, _ = texts
    tokenizer = AutoTokenizer.from_pretrained(chat_model)
    tokenizer.chat_template = "{{ raise_exception('no tools') }}"
    left_out = Counter()
    data = DataSettings(selector="all")
    assert sequences_from_text(store, plain, tokenizer, data, left_out) == []
    assert left_out == {"template": 2}


def test_a_run_from_text_says_so(texts, chat_model, tmp_path):
    store, *_ = texts
    said = []
    config = SftConfig.model_validate(
        {
            "model": str(chat_model),
            "output": tmp_path / "run",
            "data": {"selector": "run=texts"},
            "from_text": True,
            "rows_per_step": 2,
            "hardware": {"device": "cpu"},
        }
    )
    trained = train_sft(store, config, say=said.append)
    assert trained.steps == 1
    run = json.loads((tmp_path / "run/run.json").read_text())
    assert run["rows"] == {"recorded": 1, "from_text": 1}
    assert "1 of 2 rows were rendered from text" in said[0]
    assert "1 of 2 rows were rendered from text" in trained.report.read_text()


def test_recordings_without_ids_are_not_trained_unasked(texts, chat_model, tmp_path):
    store, plain, _ = texts
    config = SftConfig.model_validate(
        {"model": str(chat_model), "output": tmp_path / "run", "data": {"selector": plain}}
    )
    with pytest.raises(NothingToTrain, match="from_text = true"):
        train_sft(store, config)
    assert not (tmp_path / "run").exists()
