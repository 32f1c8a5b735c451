"""What our tiny checkpoints have in common: a Qwen3 and a byte-level tokenizer in ChatML.

Needs the extra `train`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .chat_template import CHAT_TEMPLATE
from .toy_tokenizer import CONTROL_TOKENS, MARKUP_TOKENS

END, PAD = "<|im_end|>", "<|endoftext|>"


def wrapped(raw: Any, max_position: int, more_tokens: Sequence[str] = ()) -> Any:
    """Return a trained `tokenizers.Tokenizer` as transformers read it, with our template.

    Control tokens are skipped when decoding; markup stays in the text, parsers look for it there.
    So do `more_tokens`, which are found before anything is split.
    """
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    def added(tokens: Sequence[str], *, is_control: bool) -> list[AddedToken]:
        return [AddedToken(text, special=is_control, normalized=False) for text in tokens]

    raw.add_special_tokens(added(CONTROL_TOKENS, is_control=True))
    raw.add_tokens(added((*MARKUP_TOKENS, *more_tokens), is_control=False))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        bos_token=None,
        eos_token=END,
        pad_token=PAD,
        model_max_length=max_position,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def random_qwen3(tokenizer: Any, *, seed: int, hidden_size: int, **shape: Any) -> Any:
    """Return a model of random weights in float32 that samples at temperature 1.

    shape: further fields of `Qwen3Config`.
    """
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        # Rounded up so that the embedding splits evenly under tensor parallelism.
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_attention_heads=4,
        num_key_value_heads=2,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        **shape,
    )
    model = Qwen3ForCausalLM(config).float().eval()
    model.generation_config = GenerationConfig(
        eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id],
        pad_token_id=tokenizer.pad_token_id,
        do_sample=True,
        temperature=1.0,
    )
    return model
