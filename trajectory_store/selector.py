"""The selector: one little language for every verb that takes rollouts.

    last                        the rollout opened most recently
    all                         every rollout
    ro_… or ru_…                a rollout, or all of a run; a prefix will do where it is unique
    harness=pi reward>0         terms, all of which must hold

Keys of terms: run, group, task, harness, model, state, class, cause, attempt, reward, label.NAME.
Operators: = != > >= < <= (the last four compare numbers). `reward=none` finds the ungraded.
"""

from __future__ import annotations

import operator
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from . import tables
from .errors import SelectorError
from .ids import RolloutId
from .outcome import FailureClass

ALLOWED = (
    "allowed are: last, all, a run or rollout id or a unique prefix of one, or terms such as "
    "harness=pi reward>0 class=none model=NAME task=NAME state=closed run=NAME label.KEY=VALUE"
)
_TERM = re.compile(r"(?P<key>[a-z]+(?:\.[^=!<>]+)?)(?P<op>!=|>=|<=|=|>|<)(?P<value>.*)", re.DOTALL)
_ID = re.compile(r"(?:ro|ru)_[0-9a-z]*")
_KEYS = {"run", "group", "task", "harness", "model", "state", "class", "cause", "attempt", "reward"}
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


@dataclass(frozen=True, slots=True)
class Term:
    """One condition, such as `reward>0`."""

    key: str
    op: str
    value: str

    def holds(self, facts: dict[str, Any]) -> bool:
        """Return whether a rollout's facts meet the condition."""
        if self.key.startswith("label."):
            found = facts["labels"].get(self.key.removeprefix("label."))
        elif self.key == "run":
            same = self.value in (facts["run"], facts["run_name"])
            return same if self.op == "=" else not same
        else:
            found = facts[self.key]
        if self.value == "none" and self.key != "class" and self.op in ("=", "!="):
            return (found is None) == (self.op == "=")
        if found is None:
            return self.op == "!="
        left, right = _number(found), _number(self.value)
        if left is not None and right is not None:
            return _COMPARE[self.op](left, right)
        same = _spelled(found) == self.value
        return same if self.op == "=" else not same and self.op == "!="


def parse(selector: str) -> list[Term]:
    """Return the terms of a filter; raises `SelectorError` with what is allowed."""
    try:
        words = shlex.split(selector)
    except ValueError as error:
        raise SelectorError(f"{selector!r} cannot be read ({error}); {ALLOWED}") from error
    terms: list[Term] = []
    for word in words:
        match = _TERM.fullmatch(word)
        key = match["key"] if match else ""
        if match is None or not (key in _KEYS or key.startswith("label.")):
            raise SelectorError(f"{word!r} is no term; {ALLOWED}")
        if match["op"] not in ("=", "!=") and (_number(match["value"]) is None or key == "run"):
            raise SelectorError(f"{word!r} compares numbers, {match['value']!r} is none; {ALLOWED}")
        if key == "class" and match["value"] not in set(FailureClass):
            raise SelectorError(f"{word!r}: classes are {', '.join(FailureClass)}")
        terms.append(Term(key, match["op"], match["value"]))
    if not terms:
        raise SelectorError(f"an empty selector names nothing; {ALLOWED}")
    return terms


def select_rollouts(connection: Connection, selector: str) -> list[RolloutId]:
    """Return the rollouts that a selector names, oldest first; never an empty list."""
    selector = selector.strip()
    rollout = tables.rollout.c
    if selector == "last":
        newest = select(rollout.id).order_by(rollout.created_at.desc(), rollout.id.desc()).limit(1)
        found = list(connection.execute(newest).scalars())
        if not found:
            raise SelectorError("nothing is recorded in this store yet")
        return [RolloutId(found[0])]
    if _ID.fullmatch(selector):
        return _by_id(connection, selector)
    terms = [] if selector == "all" else parse(selector)
    chosen = [
        facts["id"] for facts in _facts(connection) if all(term.holds(facts) for term in terms)
    ]
    if not chosen:
        raise SelectorError(f"no rollout in this store meets {selector!r}")
    return chosen


def _by_id(connection: Connection, prefix: str) -> list[RolloutId]:
    table = tables.run if prefix.startswith("ru_") else tables.rollout
    matches = select(table.c.id).where(table.c.id.startswith(prefix, autoescape=True)).limit(3)
    found = list(connection.execute(matches).scalars())
    if not found:
        raise SelectorError(f"no id in this store begins with {prefix!r}")
    if len(found) > 1 and prefix not in found:
        raise SelectorError(f"{prefix!r} is not unique: {', '.join(sorted(found))}, …")
    name = prefix if prefix in found else found[0]
    if table is tables.rollout:
        return [RolloutId(name)]
    rollout = tables.rollout.c
    members = select(rollout.id).where(rollout.run_id == name)
    chosen = connection.execute(members.order_by(rollout.created_at, rollout.id)).scalars().all()
    if not chosen:
        raise SelectorError(f"run {name} has no rollouts")
    return [RolloutId(x) for x in chosen]


def _facts(connection: Connection) -> list[dict[str, Any]]:
    rollout, run, outcome = tables.rollout.c, tables.run.c, tables.outcome.c
    query = (
        select(
            rollout.id,
            rollout.run_id.label("run"),
            run.name.label("run_name"),
            rollout.group_id.label("group"),
            rollout.task,
            rollout.harness,
            rollout.model,
            rollout.state,
            rollout.attempt,
            rollout.labels,
        )
        .join(tables.run, run.id == rollout.run_id)
        .order_by(rollout.created_at, rollout.id)
    )
    facts = [dict(row._mapping) for row in connection.execute(query)]
    graded: dict[str, dict[str, Any]] = {}
    scores = select(outcome.rollout_id, outcome.reward, outcome.failure_class, outcome.cause)
    for row in connection.execute(scores.order_by(outcome.rollout_id, outcome.version)):
        graded[row.rollout_id] = {
            "reward": row.reward,
            "class": row.failure_class,
            "cause": row.cause,
        }
    ungraded = {"reward": None, "class": FailureClass.NONE.value, "cause": None}
    return [fact | graded.get(fact["id"], ungraded) for fact in facts]


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _spelled(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
