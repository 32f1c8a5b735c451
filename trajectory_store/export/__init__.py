"""Exports: recorded rollouts as files that trainers read.

`export(store, selector, to, out)` writes one file and, beside it, `<out>.manifest.json`, which
counts what is in the file and everything that was left out, by reason. `EXPORTERS` maps a
format's name to what writes it:

    trl-sft    JSON lines, a row a sequence: input_ids, labels
    trl-grpo   JSON lines, a row a sequence: prompt_ids, completion_ids, logprobs, env_mask, reward
    jsonl      JSON lines, whole records, for other programs and for a later import
    parquet    the rows of trl-sft or trl-grpo in Parquet (needs pyarrow)

`trainable` yields the sequences that may go out, for other writers of rows.

Rules that hold for all: rollouts come one after the other, oldest first, so memory is
that of one rollout; the file appears whole or not at all; the same store gives the same bytes.
"""

from .errors import ExportError, MissingExtra
from .gate import Trainable, trainable
from .job import EXPORTERS, Exporter, export
from .manifest import Counts, Manifest, manifest_path
from .options import ExportOptions

__all__ = [
    "EXPORTERS",
    "Counts",
    "ExportError",
    "ExportOptions",
    "Exporter",
    "Manifest",
    "MissingExtra",
    "Trainable",
    "export",
    "manifest_path",
    "trainable",
]
