"""What must hold of recorded conversations, found out from the record and by transformers alone.

* A call after a cosmetic edit, or none, continues the call before it by splicing, wherever that
  one ended by its end id. A call after an edit of meaning is never spliced.
* No lane holds calls of two agents.
* First calls and whole renders were prompted with `apply_chat_template` of what the client sent.
* Every trained token has, in float32, the logprob that was recorded, and each token sampled for a
  delivered, exact call is trained exactly once.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from budwood.trajectory_store import Call, CallId, CallState, PromptMode, RolloutId, Store
from budwood.trajectory_store.export import export

from .transformers_oracle import Oracle

if TYPE_CHECKING:
    from .drift import Sent

MOST_DIFFERENCE = 1e-3
MENDED = "replies that the parsers mended (they render to another text)"
LANES = ("main", "sub-agent", "side")


@dataclass(slots=True)
class Audit:
    """What was found; `faults` is empty where everything held."""

    counts: Counter[str] = field(default_factory=Counter[str])
    edits: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter[str]))
    """By name of the edit: how many calls, how many followed an end id, how many were spliced."""
    reasons: Counter[str] = field(default_factory=Counter[str])
    largest_difference: float = 0.0
    faults: list[str] = field(default_factory=list)

    def fault(self, call_id: object, what: str) -> None:
        """Note something that must not be."""
        self.faults.append(f"{call_id}: {what}")

    def share(self, *, meaning: bool) -> tuple[int, int]:
        """Spliced calls and calls, of those whose parent ended by its end id."""
        rows = [row for row in self.edits.values() if bool(row["meaning"]) == meaning]
        return sum(row["spliced"] for row in rows), sum(row["continued"] for row in rows)

    def report(self) -> str:
        """The figures, for people."""
        lines = [f"{'edit':28}{'calls':>7}{'of ended':>10}{'spliced':>9}"]
        for name, row in sorted(self.edits.items(), key=lambda item: bool(item[1]["meaning"])):
            kind = " (meaning)" if row["meaning"] else ""
            lines.append(f"{name + kind:28}{row['calls']:7}{row['continued']:10}{row['spliced']:9}")
        for kind, meaning in (("cosmetic or none", False), ("of meaning", True)):
            spliced, n = self.share(meaning=meaning)
            lines.append(f"{kind}: {spliced} of {n} spliced")
        lines += [f"{name}: {n}" for name, n in sorted(self.counts.items())]
        lines.append("reasons: " + ", ".join(f"{k} {n}" for k, n in self.reasons.most_common()))
        lines.append(f"largest logprob difference: {self.largest_difference:.2e}")
        lines.append(f"faults: {len(self.faults)}")
        return "\n".join(lines + [f"  {fault}" for fault in self.faults[:20]])


def audit(
    store: Store, sent: "SequenceOf[Sent]", oracle: Oracle, temperature: float, rows: Path
) -> Audit:
    """Check the record of all calls that were sent."""
    found = Audit()
    calls = {one.call_id: store.call(one.call_id) for one in sent}
    found.counts["calls"] = len(calls)
    for rollout_id in dict.fromkeys(one.rollout for one in sent):
        found.counts["conversations"] += 1
        n = len(store.calls(rollout_id))
        if n != sum(one.rollout == rollout_id for one in sent):
            found.fault(rollout_id, f"{n} calls are recorded, others were made")
        _check_rows(found, store, rollout_id, oracle, temperature)
    for one in sent:
        _check_call(found, store, one, calls, oracle)
    _check_lanes(found, sent, calls)
    _check_export(found, store, rows)
    if not found.counts[MENDED]:
        found.fault("engine", "no parser mended anything: the conversations are too tame")
    return found


def _check_call(
    found: Audit,
    store: Store,
    one: "Sent",
    calls: dict[CallId, Call],
    oracle: Oracle,
) -> None:
    call = calls[one.call_id]
    found.reasons.update(call.reasons)
    if call.state is not CallState.DELIVERED:
        found.fault(call.id, f"is {call.state.value}: {call.cause}")
        return
    if not call.exact:
        found.fault(call.id, f"is not exact: {', '.join(call.reasons)}")
    spliced = call.prompt_mode is PromptMode.SPLICED
    body = json.loads(store.request_body(call.id))
    tokens = store.tokens(call.id)
    if not spliced:
        found.counts["whole renders"] += 1
        if tokens.prompt_ids.tolist() != oracle.prompt(body["messages"], body["tools"]):
            found.fault(call.id, "was prompted with other ids than the template's")
    if call.finish == "length":
        found.counts["replies cut by length"] += 1
    else:
        written = oracle.reply(body["messages"], body["tools"], one.message)
        if written != tokens.out_ids.tolist():
            found.counts["replies that render to other ids"] += 1
            if written is None or oracle.words(written) != oracle.words(tokens.out_ids):
                found.counts[MENDED] += 1
    if one.follows is not None:
        _check_edit(found, one, call, calls[one.follows], ended=_ended(store, one.follows, oracle))


def _ended(store: Store, call_id: CallId, oracle: Oracle) -> bool:
    out_ids = store.tokens(call_id).out_ids
    return bool(out_ids) and out_ids[-1] == oracle.end_id


def _check_edit(found: Audit, one: "Sent", call: Call, before: Call, *, ended: bool) -> None:
    spliced = call.prompt_mode is PromptMode.SPLICED
    name = one.edit.name if one.edit else "none"
    row = found.edits[name]
    row["calls"] += 1
    row["continued"] += ended
    row["spliced"] += spliced
    if one.edit and one.edit.is_meaning:
        row["meaning"] += 1
        if spliced:
            found.fault(call.id, f"was spliced after an edit of meaning ({name})")
        return
    if call.parent != before.id:
        found.fault(call.id, f"does not continue the call before it ({name})")
    if ended and not spliced:
        found.fault(call.id, f"was not spliced ({name}): {', '.join(call.reasons)}")


def _check_lanes(found: Audit, sent: "SequenceOf[Sent]", calls: dict[CallId, Call]) -> None:
    agents: dict[str, set[int]] = defaultdict(set)
    for one in sent:
        agents[calls[one.call_id].lane].add(one.agent)
    found.counts["lanes"] = len(agents)
    for lane, numbers in agents.items():
        if len(numbers) > 1:
            found.fault(lane, "holds calls of two agents")


def _check_rows(
    found: Audit, store: Store, rollout_id: RolloutId, oracle: Oracle, temperature: float
) -> None:
    trained: Counter[CallId] = Counter()
    for row in store.sequences(rollout_id, lanes=LANES):
        found.counts["rows"] += 1
        found.counts["trained tokens"] += row.n_trained
        scored = [0.0, *oracle.logprobs(row.input_ids, temperature)]
        for at, mask in enumerate(row.loss_mask):
            if mask:
                difference = abs(scored[at] - row.logprobs[at])
                found.largest_difference = max(found.largest_difference, difference)
                if not difference <= MOST_DIFFERENCE:
                    found.fault(rollout_id, f"token {at} of a row scores {difference:.2e} off")
        masks = 0
        for part in row.calls:
            tokens = store.tokens(part.call_id)
            if row.input_ids[: part.end_out] != tokens.prompt_ids + tokens.out_ids:
                found.fault(part.call_id, "a row holds other ids than were read and sampled")
            inside = row.loss_mask[part.start_out : part.end_out]
            if inside.count(1) != (len(tokens.out_ids) if part.is_trained else 0):
                found.fault(part.call_id, "an output is masked in part")
            masks += inside.count(1)
            trained[part.call_id] += part.is_trained
        if masks != row.n_trained:
            found.fault(rollout_id, "a row trains tokens that were not sampled")
    for call in store.calls(rollout_id):
        wanted = int(call.exact and call.state is CallState.DELIVERED and bool(call.n_out))
        if trained[call.id] != wanted:
            found.fault(call.id, f"is trained {trained[call.id]} times instead of {wanted}")


def _check_export(found: Audit, store: Store, rows: Path) -> None:
    """The file that a trainer reads holds the same tokens."""
    manifest = export(store, "all", "trl-sft", rows)
    lines = [json.loads(line) for line in rows.read_text().splitlines()]
    n = sum(label != -100 for row in lines for label in row["labels"])
    found.counts["exported rows"], found.counts["exported trained tokens"] = len(lines), n
    if n != found.counts["trained tokens"] or manifest.counts.n_trained_tokens != n:
        found.fault(rows.name, f"trains {n} tokens, the store {found.counts['trained tokens']}")
    for row in lines:
        for number, label in zip(row["input_ids"], row["labels"], strict=True):
            if label not in (-100, number):
                found.fault(rows.name, "a label is not the token's id")
