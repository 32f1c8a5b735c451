"""`trl-grpo`: the rows that a `rollout_func` of TRL's GRPOTrainer returns.

`prompt_ids` are the tokens before the first sampled one; `completion_ids`, `logprobs` and
`env_mask` are per token after that and parallel. `env_mask` is 1 on tokens that the policy sampled
and that are trained, 0 on what the environment wrote, and on sampled tokens that are trained in
another row or not at all. `logprobs` are the sampler's, **0.0 where `env_mask` is 0** (TRL makes a
tensor of them, so there is no room for "none"; masked positions are never read).

A rollout without a reward is refused, since none is not 0. Rows of one rollout (sub-agents,
segments, branches) share its reward; `group` is the group as recorded, or null.
`policy_versions` are the distinct known versions that sampled the trained tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from ..ids import RolloutId
from ..store import Store
from .gate import Trainable, trainable
from .manifest import Counts
from .options import ExportOptions
from .sinks import Row

COLUMNS = {
    "prompt_ids": "list<int32>",
    "completion_ids": "list<int32>",
    "logprobs": "list<float32>",
    "env_mask": "list<int8>",
    "reward": "float64",
    "group": "string",
    "rollout": "string",
    "lane": "string",
    "branch": "int32",
    "policy_versions": "list<int32>",
}
"""Column name → its type in Parquet."""


def rows(
    store: Store, rollout_id: RolloutId, options: ExportOptions, counts: Counts
) -> Iterator[Row]:
    """Yield a row a sequence; needs a reward and the logprob of every trained token."""
    for item in trainable(store, rollout_id, options, counts, for_rl=True):
        counts.n_tokens += len(item.sequence.input_ids)
        counts.n_trained_tokens += item.sequence.n_trained
        if item.rollout.group_id is None:
            counts.notes["ungrouped_rows"] += 1
        yield _row(item)


def _row(item: Trainable) -> Row:
    sequence = item.sequence
    ids = array("i", sequence.input_ids)
    first = min(sequence.calls[0].start_out if sequence.calls else len(ids), item.spans[0][0])
    logprobs = array("f", [0.0]) * len(ids)
    for start, end in item.spans:
        logprobs[start:end] = sequence.logprobs[start:end]
    versions = {c.policy for c in sequence.calls if c.is_trained and c.policy is not None}
    return {
        "prompt_ids": ids[:first],
        "completion_ids": ids[first:],
        "logprobs": logprobs[first:],
        "env_mask": array("b", sequence.loss_mask[first:]),
        "reward": item.outcome.reward,
        "group": item.rollout.group_id,
        "rollout": item.rollout.id,
        "lane": sequence.lane.id,
        "branch": sequence.branch,
        "policy_versions": array("i", sorted(versions)),
    }
