"""A tiny model on disk, random and untaught: real transformers, real TRL."""

import pytest

N_TOKENS = 260
"""Bytes, the two markers of the store's examples, padding and end."""


def make_model(folder, *, n_tokens=N_TOKENS, seed=0):
    """Write a random Qwen3 and the tokenizer that TRL asks for; return the folder."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=n_tokens,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        initializer_range=0.2,  # so that probabilities differ from token to token
    )
    words = {f"t{i}": i for i in range(n_tokens - 2)}
    words |= {"<pad>": n_tokens - 2, "<eos>": n_tokens - 1}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="<eos>",
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """The model's folder, the same for all tests."""
    return make_model(tmp_path_factory.mktemp("model"))
