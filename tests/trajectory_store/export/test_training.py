"""An exported file trains as it is: real TRL, a tiny random model made here."""

import json

import pytest

from budwood.trajectory_store.export import export

pytestmark = [
    pytest.mark.slow,
    # Other people's: torch and accelerate warn about machines without a GPU, TRL about its own.
    pytest.mark.filterwarnings("ignore"),
]

N_TOKENS = 260
"""Bytes, the two markers of the examples, padding and end."""


@pytest.fixture
def model(tmp_path):
    """A random Qwen3 with a byte vocabulary, and the tokenizer that TRL asks for."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=N_TOKENS,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=2048,
    )
    words = {f"t{i}": i for i in range(N_TOKENS - 2)} | {
        "<pad>": N_TOKENS - 2,
        "<eos>": N_TOKENS - 1,
    }
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="<eos>",
    )
    return Qwen3ForCausalLM(config), tokenizer


def test_one_sft_step_from_an_exported_file(store, recorded, tmp_path, model):
    from datasets import load_dataset
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    out = tmp_path / "rows.jsonl"
    manifest = export(store, "all", "trl-sft", out)
    rows = load_dataset("json", data_files=str(out), split="train", cache_dir=str(tmp_path / "c"))
    assert len(rows) == manifest.counts.n_rows
    network, tokenizer = model
    trainer = SFTTrainer(
        model=network,
        processing_class=tokenizer,
        train_dataset=rows,
        args=SFTConfig(
            output_dir=str(tmp_path / "sft"),
            max_steps=1,
            per_device_train_batch_size=len(rows),
            report_to=[],
            use_cpu=True,
            save_strategy="no",
            logging_steps=1,
            max_length=None,
        ),
    )
    batch = next(iter(trainer.get_train_dataloader()))
    n_trained = int((batch["labels"] != -100).sum())
    assert n_trained == manifest.counts.n_trained_tokens
    trained = trainer.train()
    assert trained.training_loss > 0


def test_one_grpo_step_from_an_exported_file(store, recorded, tmp_path, model):
    """`rollout_func` hands the rows over as they are; the reward functions see the rewards."""
    from datasets import Dataset
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    out = tmp_path / "rows.jsonl"
    export(store, "task=tree", "trl-grpo", out)
    lines = out.read_text().splitlines()
    export(store, "task=hostile", "trl-grpo", out)
    rows = [json.loads(line) for line in [lines[0], *out.read_text().splitlines()]]
    assert [row["reward"] for row in rows] == [1.0, 0.0]
    assert {row["group"] for row in rows} == {"g1"}
    handed = []

    def rollout_func(prompts, trainer):
        handed.append(len(prompts))
        columns = ("prompt_ids", "completion_ids", "logprobs", "env_mask", "reward")
        return {name: [row[name] for row in rows] for name in columns}

    def recorded_reward(reward, **_):
        return reward

    network, tokenizer = model
    trainer = GRPOTrainer(
        model=network,
        processing_class=tokenizer,
        reward_funcs=recorded_reward,
        rollout_func=rollout_func,
        train_dataset=Dataset.from_list([{"prompt": "t1"}] * 2),
        args=GRPOConfig(
            output_dir=str(tmp_path / "grpo"),
            max_steps=1,
            per_device_train_batch_size=2,
            num_generations=2,
            report_to=[],
            use_cpu=True,
            save_strategy="no",
            logging_steps=1,
            learning_rate=1e-3,
        ),
    )
    before = network.model.embed_tokens.weight.detach().clone()
    trainer.train()
    assert handed == [2]
    assert not before.equal(network.model.embed_tokens.weight)
    log = next(entry for entry in trainer.state.log_history if "reward" in entry)
    assert log["reward"] == pytest.approx(0.5)
    lengths = [sum(row["env_mask"]) for row in rows]
    assert log["completions/mean_length"] == pytest.approx(sum(lengths) / 2)
