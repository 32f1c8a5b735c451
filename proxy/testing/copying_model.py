"""A tiny model that copies names out of its prompt before it has learnt anything.

A large model can do what no tiny one learns in minutes: go on with a name that stands in its
prompt, though it never saw the name before. Without that, imitating a few recordings teaches a
model of three layers those recordings and nothing else. Here the circuit that copies, known as an
induction head (Olsson et al. 2022, arXiv 2209.11895), is written into the first weights by hand:

    layer 0     two heads look one and two tokens back, and write what is there into the residual
    last layer  heads look for the place whose last two tokens are the last two tokens here, and
                write the token at that place into the residual, where the output head reads it

Positions are looked at through the fastest rotary frequencies, equality of tokens through the slow
half of them, which hardly turn over a prompt. All of it is ordinary weights of an ordinary Qwen3
checkpoint, and training changes them like any others. All else is random and knows nothing.

The tokenizer spells: common words of the given conversations are a token each, everything else is
bytes, so names that were never seen are made of tokens that were. A run of lines that stands in
every conversation of a harness is one token, which makes a prompt of 5 kB some hundred tokens long.

Needs the extra `train`.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .checkpoint import random_qwen3, wrapped
from .tiny_model import Conversation, text_of
from .toy_tokenizer import CONTROL_TOKENS, MARKUP_TOKENS

if TYPE_CHECKING:
    import torch

MIN_BLOCK = 12
"""Characters of the shortest run of lines that is worth a token."""
SHARP_POSITION, SHARP_EQUALITY = 1.5, 1.4
"""Scales of the normalised queries and keys: how much the best place wins over the others."""
EMBEDDING = 0.2
"""Standard deviation of the embeddings."""
COPY = 10.0
"""How loudly a copied token is written, in embeddings."""
END = 0.6
"""How much the end of an answer is preferred after every token, while nothing is learnt."""
FREQUENCIES = 6
"""Rotary frequencies, the fastest ones, that tell neighbouring positions apart."""


@dataclass(frozen=True, slots=True)
class CopyingModel:
    """What the model is made of; equal values give equal files."""

    seed: int = 0
    layers: int = 3
    """Two at least: the first and the last are the circuit."""
    hidden: int = 128
    max_position: int = 16_384
    min_tasks: int = 5
    """Conversations, of different tasks, that a word must stand in to be a token of its own."""


def make(
    out: Path, conversations: Mapping[str, Sequence[Conversation]], what: CopyingModel | None = None
) -> None:
    """Write the checkpoint.

    conversations: harness → what was recorded of it; what all of them share is its boilerplate.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    what = what or CopyingModel()
    tokenizer = build_tokenizer(conversations, what)
    model = build_model(tokenizer, what)
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


# -- the tokenizer ---------------------------------------------------------------------------------


def build_tokenizer(conversations: Mapping[str, Sequence[Conversation]], what: CopyingModel) -> Any:
    """Return the tokenizer that spells what is not common to the conversations."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    texts = {name: [text_of(one) for one in given] for name, given in conversations.items()}
    asked = [[text_of(_until_answered(one)) for one in given] for given in conversations.values()]
    blocks = sorted({b for given in asked for b in _blocks(given)}, key=lambda b: -len(b))
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = sorted(_common_words(texts.values(), blocks, splitter, what.min_tasks) - {*alphabet})
    vocabulary = {word: number for number, word in enumerate([*alphabet, *words])}
    # No merges: a word is one token where it is in the vocabulary, else it is spelled.
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    raw.pre_tokenizer = splitter
    raw.decoder = decoders.ByteLevel()
    return wrapped(raw, what.max_position, blocks)


def _until_answered(conversation: Conversation) -> Conversation:
    """Cut what the assistant says and what follows: an answer must be made of tokens of its own."""
    messages = conversation["messages"]
    roles = [message["role"] for message in messages]
    end = roles.index("assistant") if "assistant" in roles else len(roles)
    return {**conversation, "messages": messages[:end]}


def _blocks(texts: Sequence[str]) -> Iterable[str]:
    """Yield the runs of lines that stand in all texts, between control tokens and markup."""
    marks = re.compile("|".join(map(re.escape, (*CONTROL_TOKENS, *MARKUP_TOKENS))))
    lines = Counter(line for text in texts for line in {*marks.sub("\n", text).split("\n")})
    for part in marks.split(texts[0]):
        run: list[str] = []
        for line in [*part.split("\n"), None]:
            if line is not None and lines[line] == len(texts):
                run.append(line)
                continue
            block = "\n".join(run).strip("\n")
            if len(block) >= MIN_BLOCK:
                yield block
            run = []


def _common_words(
    texts: Iterable[Sequence[str]], blocks: Sequence[str], splitter: Any, min_tasks: int
) -> set[str]:
    found: Counter[str] = Counter()
    for given in texts:
        for text in given:
            for block in blocks:
                text = text.replace(block, "\n")
            found.update({word for word, _ in splitter.pre_tokenize_str(text)})
    return {word for word, n in found.items() if n >= min_tasks}


# -- the circuit -----------------------------------------------------------------------------------


def build_model(tokenizer: Any, what: CopyingModel) -> Any:
    """Return the model in float32, with the circuit in it and random weights elsewhere."""
    import torch

    width = what.hidden // 2  # of the residual: its first half holds the token itself
    model = random_qwen3(
        tokenizer,
        seed=what.seed,
        hidden_size=what.hidden,
        num_hidden_layers=what.layers,
        head_dim=width,
        max_position_embeddings=what.max_position,
        tie_word_embeddings=False,  # vLLM's CPU build keeps a stale copy of a tied head on reload
        initializer_range=0.01,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )
    with torch.no_grad():
        _write_circuit(model, width)
        # So that a model that knows nothing says little, and not as much as its window holds.
        model.lm_head.weight[tokenizer.eos_token_id, -1] = END
    return model


def _write_circuit(model: Any, width: int) -> None:
    """Write it into a model whose heads are `width` wide, half of the residual.

    Residual: [0, W) the token; [W, W + n) a signature of the token before, [W + n, W + 2n) of the
    one before that, n = W / 4; the last place is the same for all tokens.
    """
    import torch

    n = width // 4
    embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
    embedding.zero_()
    embedding[:, :width] = torch.randn(len(embedding), width) * EMBEDDING
    embedding[:, -1] = EMBEDDING * math.sqrt(width) / 2
    # Rotated against the embedding, so that a token does not ask for itself.
    rotation = torch.linalg.qr(torch.randn(width, width))[0]
    head.normal_(0, 1e-3)
    head[:, :width] = embedding[:, :width] @ rotation.T / (EMBEDDING * math.sqrt(width))
    signature = torch.randn(n, width) / math.sqrt(width)
    _look_back(model.model.layers[0].self_attn, width, signature, model.config.rope_parameters)
    _look_for_equals(model.model.layers[-1].self_attn, width, signature, rotation)


def _look_back(attention: Any, width: int, signature: torch.Tensor, rope: Any) -> None:
    """Have two heads read one and two tokens back, and write the signatures found there."""
    import torch

    n, half = len(signature), width // 2
    turns = rope["rope_theta"] ** (-torch.arange(half) / half)

    def direction(offset: float) -> torch.Tensor:
        """Return what meets a key of the same for all tokens best at this offset."""
        found = torch.zeros(width)
        found[:FREQUENCIES] = torch.cos(turns[:FREQUENCIES] * offset)
        found[half : half + FREQUENCIES] = torch.sin(turns[:FREQUENCIES] * offset)
        return found

    attention.k_proj.weight[:width] = 0
    attention.k_proj.weight[:width, -1] = direction(0.0)
    attention.v_proj.weight[:width] = 0
    attention.v_proj.weight[:width, :width] = torch.eye(width)
    for number in (0, 1):
        own = slice(number * width, (number + 1) * width)
        attention.q_proj.weight[own] = 0
        attention.q_proj.weight[own, -1] = direction(-1.0 - number)
        attention.o_proj.weight[:, own] = 0
        place = slice(width + number * n, width + (number + 1) * n)
        attention.o_proj.weight[place, own] = signature * EMBEDDING * 2
    attention.q_norm.weight.fill_(SHARP_POSITION)
    attention.k_norm.weight.fill_(SHARP_POSITION)


def _look_for_equals(
    attention: Any, width: int, signature: torch.Tensor, rotation: torch.Tensor
) -> None:
    """Have a head find where the last two tokens stood before, and all heads copy what they see.

    The other heads look where training makes them look: at the places of a prompt that names are
    to be taken from.
    """
    import torch

    n, half = len(signature), width // 2
    slow = torch.arange(half - n, half)
    first, second = slow, slow + half
    query, key = attention.q_proj.weight, attention.k_proj.weight
    query[:width] = 0
    query[first, :width] = signature * 2
    query[second, width + torch.arange(n)] = 1
    for number in (0, 1):
        own = slice(number * width, (number + 1) * width)
        key[own] = 0
        key[number * width + first, width + torch.arange(n)] = 1
        key[number * width + second, width + n + torch.arange(n)] = 1
        attention.v_proj.weight[own] = 0
        attention.v_proj.weight[own, :width] = torch.eye(width)
    for number in range(4):
        own = slice(number * width, (number + 1) * width)
        attention.o_proj.weight[:, own] = 0
        attention.o_proj.weight[:width, own] = rotation * EMBEDDING * COPY
    attention.q_norm.weight.fill_(SHARP_EQUALITY)
    attention.k_norm.weight.fill_(SHARP_EQUALITY)
