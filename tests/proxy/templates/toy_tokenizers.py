"""Real tokenizers of four kinds, trained in a second on the templates' own text.

What differs between them is what bites when ids are cut: whether special tokens swallow white
space after them, and whether a space is put before text (at the start, or after each special
token). Every control token that any template writes is one id in all of them.
"""

import re
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from .conversations import HOSTILE, STOP_SPELLINGS, fixtures
from .corpus import BOS, EOS, PAD, templates

KINDS = ("byte", "byte-rstrip", "metaspace-first", "metaspace-always")

_CONTROL = re.compile(
    r"<\|[A-Za-z_]+\|>|<\uff5c[^\uff5c]+\uff5c>|\[/?[A-Z_]{3,}\]|</?think>|</?tool_call>"
    r"|</?tool_response>|<(?:start|end)_of_turn>|<turn\|>|<\|turn>|<\|tool_response>"
    r"|<tool_response\|>|<\|tool_call>|<tool_call\|>|<\|channel>|<channel\|>|<end_of_utterance>"
    r'|</?s>|<\|"\|>|\[gMASK\]|<sop>'
)


@cache
def control_tokens() -> tuple[str, ...]:
    """All control tokens of the corpus and of the hostile texts."""
    texts = [*(found.source for found in templates()), HOSTILE]
    found = {token for text in texts for token in _CONTROL.findall(text)}
    return tuple(sorted(found | {BOS, EOS, PAD, "<|endoftext|>", *STOP_SPELLINGS}))


@cache
def toy_tokenizer(kind: str) -> Tokenizer:
    """The tokenizer of that kind (one of KINDS)."""
    style, _, option = kind.partition("-")
    if style == "byte":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=1200, initial_alphabet=alphabet, show_progress=False
        )
    else:
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=option)
        trainer = trainers.BpeTrainer(
            vocab_size=1500, special_tokens=["<unk>"], show_progress=False
        )
    tokenizer.train_from_iterator([_CONTROL.sub(" ", text) for text in _training_texts()], trainer)
    tokenizer.add_special_tokens(
        [
            AddedToken(token, rstrip=option == "rstrip", normalized=False, special=True)
            for token in control_tokens()
        ]
    )
    return tokenizer


def _training_texts() -> list[str]:
    letters = " ".join(map(chr, range(32, 127)))
    texts = [found.source[:6000] for found in templates() if not found.name.endswith("_training")]
    return [*texts, letters, *(str([*c.history, c.reply, *c.tail]) for c in fixtures())]
