"""`trl-sft`: what TRL's SFTTrainer takes as it is.

`input_ids` and `labels` are per token and parallel; a label is the token's id where the token is
trained and -100 where it is not (the trainer shifts by one itself). `rollout`, `lane` and `branch`
say where the row comes from; the trainer drops columns that it does not know.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from ..ids import RolloutId
from ..store import Store
from .gate import trainable
from .manifest import Counts
from .options import ExportOptions
from .sinks import Row

IGNORED = -100
COLUMNS = {
    "input_ids": "list<int32>",
    "labels": "list<int32>",
    "rollout": "string",
    "lane": "string",
    "branch": "int32",
}
"""Column name → its type in Parquet."""


def rows(
    store: Store, rollout_id: RolloutId, options: ExportOptions, counts: Counts
) -> Iterator[Row]:
    """Yield a row a sequence."""
    for item in trainable(store, rollout_id, options, counts):
        sequence = item.sequence
        ids = array("i", sequence.input_ids)
        labels = array("i", [IGNORED]) * len(ids)
        for start, end in item.spans:
            labels[start:end] = ids[start:end]
        counts.n_tokens += len(ids)
        counts.n_trained_tokens += sequence.n_trained
        yield {
            "input_ids": ids,
            "labels": labels,
            "rollout": rollout_id,
            "lane": sequence.lane.id,
            "branch": sequence.branch,
        }
