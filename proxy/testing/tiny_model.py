"""A tiny chat model on disk, without a network and without downloaded weights.

    python -m budwood.proxy.testing.tiny_model OUT [--teach CONVERSATIONS.jsonl] [--vocab 640] ...

The folder written is an ordinary Hugging Face checkpoint: a Qwen3-shaped decoder of two layers with
seeded random weights, a byte-level BPE tokenizer, the chat template of `chat_template`. vLLM serves
it, TRL trains it, transformers loads it: the real code paths, with nothing sensible to say.

`--teach` makes it learn a few conversations by heart, so that it answers their prompts with
well-formed tool calls and stops by itself: enough for a real harness to do a scripted task on a
real server. One JSON object a line, `{"messages": [...], "tools": [...]}` in the chat form; only
what the assistant says is learnt, and not where its message has `"is_taught": false`. The tokenizer
is then trained on these conversations too, so that a vocabulary of 2,048 makes a harness's long
prompt short (about 1,000 tokens for a prompt of 5 kB), which is what makes teaching cheap: 400
steps of one conversation each suffice for six, in half a minute of one core.

The same arguments and the same versions of the libraries give the same bytes on one machine
(`--check` builds twice and compares). Needs the extra `train`.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from .chat_template import render
from .checkpoint import random_qwen3, wrapped
from .toy_tokenizer import CONTROL_TOKENS, MARKUP_TOKENS

Conversation = dict[str, Any]
"""`messages` and `tools`, in the form of the chat API."""

# Enough text for the BPE to learn common English, JSON and shell pieces.
CORPUS = [
    "system user assistant tool",
    "You are a helpful agent. Read the task, call a tool, look at its result, then answer.",
    "The quick brown fox jumps over the lazy dog while the other dogs are sleeping in the sun.",
    '{"name": "bash", "arguments": {"command": "ls -la /tmp"}}',
    '{"name": "read_file", "arguments": {"path": "src/main.py", "line": 10}}',
    '{"type": "function", "function": {"name": "bash", "description": "Run a shell command.", '
    '"parameters": {"type": "object", "properties": {"command": {"type": "string"}}, '
    '"required": ["command"]}}}',
    "Tools you may call, one JSON schema a line:\n<tools>\n</tools>\nCall one like this:\n",
    "cat setup.py && grep -rn 'def test_' tests/ | head -20; git diff --stat; python -m pytest -q",
    "diff --git a/calc.py b/calc.py\n--- a/calc.py\n+++ b/calc.py\n@@ -1,4 +1,4 @@\n"
    "-    return a - b\n+    return a + b\n",
    "def add(a, b):\n    return a + b\n\n\n"
    "class Error(Exception):\n    pass\n\nimport os, sys, json\n",
    "I should look at the file first. The test fails because the function returns the wrong value.",
    "exit code 0 1 2 3 4 5 6 7 8 9 10 42 100 1000 2026 "
    "Traceback (most recent call last): ValueError",
    "Done. The bug is fixed and all the tests pass. Yes. No. Thanks, that is right. What is next?",
]


@dataclass(frozen=True, slots=True)
class TinyModel:
    """What the model is made of; equal values give equal files."""

    seed: int = 0
    vocab: int = 640
    """Size of the vocabulary, at least 300."""
    layers: int = 2
    hidden: int = 64
    max_position: int = 16_384
    tied: bool = False
    """Share the output head. vLLM 0.32's CPU build keeps a stale copy of a tied head on reload."""
    steps: int = 400
    """Of teaching, one conversation each."""


@dataclass(frozen=True, slots=True)
class Learnt:
    """How well one conversation was learnt."""

    n_tokens: int
    n_taught: int
    worst: float
    """The smallest probability of a taught token: above 0.5 it is known by heart."""


class NotLearnt(ValueError):
    """A conversation was not learnt by heart: more steps, or shorter conversations."""


def make(
    out: Path, what: TinyModel = TinyModel(), teach: Sequence[Conversation] = ()
) -> list[Learnt]:
    """Write the checkpoint to `out`; raises NotLearnt where teaching did not suffice."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    tokenizer = build_tokenizer(what, [text_of(conversation) for conversation in teach])
    model = build_model(what, tokenizer)
    learnt = teach_by_heart(model, tokenizer, teach, what.steps) if teach else []
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    weak = [i for i, found in enumerate(learnt) if found.worst <= 0.5]
    if weak:
        raise NotLearnt(
            f"conversations {weak} are not known by heart after {what.steps} steps"
            f" (probability {min(found.worst for found in learnt):.3f}); raise the steps"
        )
    return learnt


def text_of(conversation: Conversation) -> str:
    """Return a conversation as the template renders it."""
    return render(conversation["messages"], conversation.get("tools"), add_generation_prompt=False)


def build_tokenizer(what: TinyModel, texts: Iterable[str] = ()) -> Any:
    """Return a byte-level BPE tokenizer trained on a few lines of ours and on `texts`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=what.vocab - len(CONTROL_TOKENS) - len(MARKUP_TOKENS),
        min_frequency=1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    raw.train_from_iterator([*CORPUS, *texts], trainer)
    return wrapped(raw, what.max_position)


def build_model(what: TinyModel, tokenizer: Any) -> Any:
    """Return the untaught model, in float32."""
    return random_qwen3(
        tokenizer,
        seed=what.seed,
        hidden_size=what.hidden,
        num_hidden_layers=what.layers,
        head_dim=32,  # the smallest that vLLM's CPU attention takes
        max_position_embeddings=what.max_position,
        tie_word_embeddings=what.tied,
        initializer_range=0.06,  # wide enough that sampling is not uniform
    )


def encode(tokenizer: Any, conversation: Conversation) -> tuple[list[int], list[int]]:
    """Return a conversation's ids and, for each, whether the assistant wrote it."""
    messages = []
    for message in conversation["messages"]:
        calls = [_with_object_arguments(call) for call in message.get("tool_calls") or ()]
        messages.append({**message, "tool_calls": calls})
    out = tokenizer.apply_chat_template(
        messages,
        tools=conversation.get("tools") or None,
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    return out["input_ids"], _without_untaught(out["assistant_masks"], messages)


def _without_untaught(mask: list[int], messages: Sequence[dict[str, Any]]) -> list[int]:
    """Return the mask without the turns that are only there to be read."""
    said = (message for message in messages if message["role"] == "assistant")
    kept: list[int] = []
    for is_said, run in groupby(mask):
        is_taught = is_said and next(said).get("is_taught", True)
        kept += [int(is_taught)] * len(list(run))
    return kept


def _with_object_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    if isinstance(function["arguments"], str):
        function["arguments"] = json.loads(function["arguments"])
    return {**call, "function": function}


def teach_by_heart(
    model: Any, tokenizer: Any, conversations: Sequence[Conversation], steps: int
) -> list[Learnt]:
    """Overfit the conversations, one a step in turn, and say how well each is known."""
    import torch

    torch.set_num_threads(1)  # matrices this small only lose time to thread hand-offs
    rows = []
    for conversation in conversations:
        ids, mask = encode(tokenizer, conversation)
        labels = [number if taught else -100 for number, taught in zip(ids, mask, strict=True)]
        rows.append((torch.tensor([ids]), torch.tensor([labels])))
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
    for step in range(steps):
        ids, labels = rows[step % len(rows)]
        optimizer.zero_grad()
        model(input_ids=ids, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()
    return [_learnt(model, ids, labels) for ids, labels in rows]


def _learnt(model: Any, ids: Any, labels: Any) -> Learnt:
    import torch

    with torch.no_grad():
        logprobs = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
    wanted = labels[0, 1:]
    taught = wanted != -100
    chosen = logprobs[taught].gather(1, wanted[taught][:, None])
    return Learnt(ids.shape[1], int(taught.sum()), float(chosen.min().exp()))


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file in `folder`."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def read_conversations(path: Path) -> list[Conversation]:
    """Return the conversations of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def main(argv: Sequence[str] | None = None) -> int:
    """Make the model that the arguments describe."""
    parser = argparse.ArgumentParser(description="Make a tiny chat model on disk.")
    parser.add_argument("out", type=Path, help="folder to write")
    for name, default in (
        ("seed", 0), ("vocab", 640), ("layers", 2), ("hidden", 64), ("max-position", 16_384)
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--tied", action="store_true", help="share the output head")
    parser.add_argument("--teach", type=Path, help="conversations to learn, JSON lines")
    parser.add_argument("--teach-steps", type=int, default=400)
    parser.add_argument("--check", action="store_true", help="build twice and compare")
    given = parser.parse_args(argv)
    what = TinyModel(
        given.seed, given.vocab, given.layers, given.hidden, given.max_position, given.tied,
        given.teach_steps,
    )  # fmt: skip
    conversations = read_conversations(given.teach) if given.teach else []
    for index, found in enumerate(make(given.out, what, conversations)):
        print(
            f"conversation {index}: {found.n_tokens} tokens, {found.n_taught} taught,"
            f" smallest probability {found.worst:.4f}"
        )
    made = digests(given.out)
    print(f"{given.out}: {len(made)} files")
    if given.check:
        with tempfile.TemporaryDirectory() as second:
            make(Path(second), what, conversations)
            if made != digests(Path(second)):
                print("two builds differ", file=sys.stderr)
                return 1
        print("two builds are identical")
    return 0


if __name__ == "__main__":
    sys.exit(main())
