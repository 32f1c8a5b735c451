"""A model that gives one answer to everything: a sentence, a tool call, the end.

    python -m bench.one_call_model OUT --max-position 70000

What it reads costs what it costs any model of its shape: it attends to the whole prompt, and the
result is multiplied by zero. So a conversation of any length ends each turn as a taught model's
would, which no model this small can be taught.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from budwood.proxy.testing.tiny_model import TinyModel, build_model, build_tokenizer

SAYS = "I look once more."
CALL = '{"name": "bash", "arguments": {"command": "ls"}}'
ANSWER = ("\n", SAYS, "<tool_call>", CALL, "</tool_call>", "<|im_end|>")
"""Each token follows the one before it; the first is the prompt's last."""


def make(out: Path, max_position: int, texts: Sequence[str]) -> None:
    """Write the checkpoint to `out`; `texts` train the tokenizer."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    what = TinyModel(vocab=700, max_position=max_position)
    tokenizer = build_tokenizer(what, texts)
    tokenizer.add_tokens([SAYS, CALL])
    model = build_model(what, tokenizer)
    _fix(model, [_id_of(tokenizer, text) for text in ANSWER])
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def _id_of(tokenizer: Any, text: str) -> int:
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert len(ids) == 1, f"{text!r} is {len(ids)} tokens"
    return ids[0]


def _fix(model: Any, chain: Sequence[int]) -> None:
    """Make the next token a function of the last one, by a direction of its own for each."""
    import torch

    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
        n = len(chain) - 1
        embedding[:, :n] = 0.0
        head.zero_()
        for direction, (before, after) in enumerate(pairwise(chain)):
            embedding[before] = 0.0
            embedding[before, direction] = 1.0
            head[after, direction] = 10.0


def main(argv: Sequence[str] | None = None) -> int:
    """Write the model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--max-position", type=int, default=70_000)
    parser.add_argument("--text", type=Path, help="trains the tokenizer")
    options = parser.parse_args(argv)
    make(options.out, options.max_position, [options.text.read_text()] if options.text else [])
    return 0


if __name__ == "__main__":
    sys.exit(main())
