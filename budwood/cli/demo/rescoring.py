"""Scores every trained token again, by another program than the one that sampled it.

The engine says how likely each token was when it sampled it; transformers reads the exported row
once and says it again, in float32, divided by the temperature. They agree only if the row holds
exactly the tokens that the engine read and sampled, in their places.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .screen import DemoFailed

if TYPE_CHECKING:
    from budwood.trajectory_store import RolloutId, Sequence, Store


def rescore(
    store: Store, rows: Iterable[Mapping[str, Any]], model_folder: Path
) -> dict[RolloutId, tuple[float, int]]:
    """Return for each rollout the largest difference and the number of tokens compared.

    `rows` are those of a `trl-sft` export. Raises DemoFailed where a row is not what is stored.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    found: dict[RolloutId, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    for row in rows:
        sequence = _stored(store, row)
        with torch.no_grad():
            logits = model(torch.tensor([row["input_ids"]])).logits[0].float()
        worst, n_scored = found[row["rollout"]]
        for boundary in sequence.calls:
            temperature = float(store.call(boundary.call_id).sampling["temperature"])
            for place in range(boundary.start_out, boundary.end_out):
                if row["labels"][place] == -100:
                    continue
                scored = (logits[place - 1] / temperature).log_softmax(-1)
                difference = abs(float(scored[row["labels"][place]]) - sequence.logprobs[place])
                worst = math.inf if math.isnan(difference) else max(worst, difference)
                n_scored += 1
        found[row["rollout"]] = worst, n_scored
    return dict(found)


def _stored(store: Store, row: Mapping[str, Any]) -> Sequence:
    for sequence in store.sequences(row["rollout"]):
        if (sequence.lane.id, sequence.branch) == (row["lane"], row["branch"]):
            if list(sequence.input_ids) != list(row["input_ids"]):
                raise DemoFailed(f"a row of {row['rollout']} has other tokens than the store")
            return sequence
    raise DemoFailed(f"a row of {row['rollout']} is not in the store")
