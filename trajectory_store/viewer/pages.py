"""What each page says: plain values from the store, for the templates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..ids import CallId, RolloutId, RunId
from ..overview import lane_names, shown, tree
from ..records import Call
from ..redaction import Redaction
from ..store import Store
from ..why import explain

TOKENS_PER_PAGE = 2000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part:
    """One page of a longer list."""

    number: int
    last: int

    @property
    def before(self) -> int | None:
        """Return the page before, if there is one."""
        return self.number - 1 if self.number > 1 else None

    @property
    def after(self) -> int | None:
        """Return the page after, if there is one."""
        return self.number + 1 if self.number < self.last else None


def cut(items: Sequence[T], query: Mapping[str, str], size: int) -> tuple[Sequence[T], Part]:
    """Return the items of the page that a query asks for; a page out of range is the nearest."""
    last = max(1, math.ceil(len(items) / size))
    asked = query.get("page", "1")
    number = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 10 else 1
    number = min(max(1, number), last)
    return items[(number - 1) * size : number * size], Part(number, last)


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled token; `weight` is how probable it was, 0 (hardly) to 4 (nearly certain)."""

    place: int
    id: int
    logprob: float | None
    weight: int


class Pages:
    """Reads the store for each page; every text is masked here and escaped by the template."""

    def __init__(self, store: Store, explanations: Mapping[str, str], page_size: int) -> None:
        """Read from `store`."""
        self._store = store
        self._explanations = explanations
        self._page_size = page_size

    def runs(self, query: dict[str, str]) -> dict[str, object]:
        """Return all runs, newest first."""
        runs, part = cut(self._store.runs()[::-1], query, self._page_size)
        rows = [(run, len(self._store.rollouts(run.id))) for run in runs]
        return {"rows": rows, "part": part, "mask": self._store.secrets.mask}

    def run(self, query: dict[str, str], run_id: str) -> dict[str, object]:
        """Return a run with its rollouts."""
        run = self._store.run(RunId(run_id))
        rollouts, part = cut(self._store.rollouts(run.id), query, self._page_size)
        rows = [(rollout, self._store.outcome(rollout.id)) for rollout in rollouts]
        return {
            "run": run,
            "rows": rows,
            "part": part,
            "settings": self._store.secrets.mask_value(run.settings),
            "mask": self._store.secrets.mask,
        }

    def rollout(self, query: dict[str, str], rollout_id: str) -> dict[str, object]:
        """Return a rollout with its lanes and calls as a tree."""
        rollout = self._store.rollout(RolloutId(rollout_id))
        lanes, calls = self._store.lanes(rollout.id), self._store.calls(rollout.id)
        lines, part = cut(list(tree(lanes, calls)), query, 4 * self._page_size)
        return {
            "rollout": rollout,
            "run": self._store.run(rollout.run_id),
            "outcomes": self._store.outcomes(rollout.id)[::-1],
            "labels": self._store.secrets.mask_value(rollout.labels),
            "lines": lines,
            "names": lane_names(lanes),
            "n_calls": len(calls),
            "n_exact": sum(call.exact for call in calls),
            "part": part,
            "mask": self._store.secrets.mask,
        }

    def call(self, query: dict[str, str], call_id: str) -> dict[str, object]:
        """Return a call as messages, its reply last."""
        call, facts = self._call(call_id)
        redaction = Redaction(call, self._store.secrets)
        raw = self._store.request_messages(call.id)
        messages, part = cut(redaction.messages(raw), query, self._page_size)
        first = (part.number - 1) * self._page_size
        reply = redaction.reply(self._store.request_body(call.id))
        return {
            **facts,
            "messages": [(first + i, shown(m)) for i, m in enumerate(messages)],
            "reply": shown(reply) if reply is not None and part.number == part.last else None,
            "part": part,
        }

    def tokens(self, query: dict[str, str], call_id: str) -> dict[str, object]:
        """Return a call's sampled tokens with logprobs, and its prompt's ids."""
        call, facts = self._call(call_id)
        redaction = Redaction(call, self._store.secrets)
        facts |= {"is_hidden": redaction.hides_tokens, "has_ids": call.has_ids}
        if redaction.hides_tokens or not call.has_ids:
            return {**facts, "prompt": [], "out": [], "part": Part(1, 1), "reply": None}
        arrays = self._store.tokens(call.id)
        everything = range(len(arrays.prompt_ids) + len(arrays.out_ids))
        places, part = cut(everything, query, TOKENS_PER_PAGE)
        n_prompt = len(arrays.prompt_ids)
        reply = redaction.reply()
        return {
            **facts,
            "prompt": [arrays.prompt_ids[i] for i in places if i < n_prompt],
            "out": [
                _token(i - n_prompt, arrays.out_ids[i - n_prompt], arrays.logprobs[i - n_prompt])
                for i in places
                if i >= n_prompt
            ],
            "part": part,
            "reply": None if reply is None else shown(reply),
        }

    def why(self, query: dict[str, str], call_id: str) -> dict[str, object]:
        """Return why a call is not exact, not trained, or starts a branch."""
        call, facts = self._call(call_id)
        return {**facts, "why": explain(self._store, call, self._explanations)}

    def _call(self, call_id: str) -> tuple[Call, dict[str, Any]]:
        call = self._store.call(CallId(call_id))
        lanes = self._store.lanes(call.rollout_id)
        return call, {
            "call": call,
            "lane": lane_names(lanes).get(call.lane, call.lane),
            "mask": self._store.secrets.mask,
        }


def _token(place: int, token_id: int, logprob: float) -> Token:
    if math.isnan(logprob):
        return Token(place, token_id, None, 0)
    steps = (-4.0, -2.0, -0.7, -0.05)
    return Token(place, token_id, logprob, sum(logprob > step for step in steps))
