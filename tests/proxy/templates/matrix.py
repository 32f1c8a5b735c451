"""Every installed template x every conversation: does the finder find what the oracle says?

    python -m tests.proxy.templates.matrix [--fuzz N] [--seed N] [--kinds KIND ...] [--jobs N]

Prints, per kind of tokenizer, how many rows there were and how they ended; exits 1 if any row is
wrong. A row is one conversation under one template with one set of template arguments.
"""

import argparse
import asyncio
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from budwood.proxy.lineage.suffix import Suffix, SuffixFinder, repaired

from . import oracle
from .conversations import MANNERS, Conversation, fixtures, random_conversation
from .corpus import ChatTemplate, template, templates
from .jinja_renderer import JinjaRenderer
from .toy_tokenizers import KINDS, toy_tokenizer

FAULTS = ("wrong", "missed", "false_alarm", "refused", "audit", "repair", "unrecorded", "unlike")
"""Ends of a row that must not be: wrong suffix; an edit of meaning spliced over; an edit seen where
there is none; not spliced for another reason; a right suffix that its audit would reject; splicing
a conversation that the template refuses with other than the repaired messages' suffix; splicing
over dropped reasoning without saying so; a server that renders otherwise than the oracle."""


@dataclass(slots=True)
class Tally:
    """How rows ended, and examples of those that should not have ended so."""

    ends: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    finder: Counter[str] = field(default_factory=Counter)

    @property
    def n_rows(self) -> int:
        """Rows with a truth to compare with."""
        return sum(n for end, n in self.ends.items() if not end.startswith("unsupported"))

    def add(self, end: str, row: str) -> None:
        """Count one row."""
        self.ends[end] += 1
        if end in FAULTS:
            self.faults.append(f"{end}: {row}")

    def merge(self, other: "Tally") -> None:
        """Add another tally's rows to this one."""
        self.ends += other.ends
        self.verdicts += other.verdicts
        self.faults += other.faults
        self.finder += other.finder

    def __str__(self) -> str:
        ends = ", ".join(f"{end} {n}" for end, n in sorted(self.ends.items()))
        verdicts = ", ".join(
            f"{truth}/{said} {n}" for (truth, said), n in sorted(self.verdicts.items())
        )
        names = ("spliced", "probes", "renders", "audits", "audits_failed")
        finder = ", ".join(f"{name} {self.finder[name]}" for name in names)
        return f"rows {self.n_rows}: {ends}\n  truth/verdict: {verdicts}\n  finder: {finder}"


async def check_template(
    chat_template: ChatTemplate,
    kind: str,
    talks: Iterable[Conversation],
    *,
    use_cache: bool = True,
    make_finder: Callable[..., SuffixFinder] = SuffixFinder,
) -> Tally:
    """All rows of one template; where reasoning is all that is lost, also as keep-reasoning."""
    renderer = JinjaRenderer(chat_template, toy_tokenizer(kind))
    finder = make_finder(renderer, rng=random.Random(0), use_cache=use_cache)
    tally = Tally()
    for talk, arguments in product(talks, chat_template.variants):
        row = f"{kind} {chat_template.name} {arguments} {talk.name}"
        await check_row(tally, finder, renderer, talk, arguments, row)
    tally.finder = Counter({k: n for k, n in finder.counts.items() if n})
    return tally


async def check_row(
    tally: Tally,
    finder: SuffixFinder,
    renderer: JinjaRenderer,
    talk: Conversation,
    arguments: dict[str, Any],
    row: str,
) -> None:
    """Ask the finder about one row, and the oracle (by `renderer`), and count how it ended."""
    try:
        truth = oracle.tell(renderer, talk, arguments)
    except oracle.Unsupported:
        return await _check_refused(tally, finder, renderer, talk, arguments, row)
    found = await _find(finder, talk, arguments, truth.stop_id)
    tally.verdicts[truth.edit, found.verdict if not found.reason else found.reason] += 1
    tally.add(_end(truth, found, finder), row)
    if truth.only_reasoning:
        found = await _find(finder, talk, arguments, truth.stop_id, keep_reasoning=True)
        tally.add(_kept_end(truth, found, finder), row + " keep-reasoning")
    return None


def _kept_end(truth: oracle.Truth, found: Suffix, finder: SuffixFinder) -> str:
    """How a row ended in a run that keeps the reasoning that the template would drop."""
    end = _end(replace(truth, edit="none"), found, finder)
    if found.ids is not None and found.verdict != "semantic":
        return "unrecorded"
    return end if end in FAULTS else f"kept_{end}"


def _end(truth: oracle.Truth, found: Suffix, finder: SuffixFinder) -> str:
    """How a row ended."""
    if found.ids is None:
        if not truth.splice:
            return "right_refused_edit" if truth.edit == "semantic" else "right_refused_stop"
        return "false_alarm" if found.reason == "template_edits" else "refused"
    if truth.edit == "semantic":
        return "missed"
    if found.ids != truth.suffix:
        return "wrong"
    full, n = truth.full, len(found.ids)
    if full[-n:] != found.ids or full[-n - 1] != truth.stop_id:
        return "audit"
    if found.audit and not finder.check_audit(found, full, truth.stop_id):
        return "audit"
    return "right"


async def _check_refused(
    tally: Tally,
    finder: SuffixFinder,
    renderer: JinjaRenderer,
    talk: Conversation,
    arguments: dict[str, Any],
    row: str,
) -> None:
    """A conversation that the template refuses: spliced only as its repaired form would be."""
    found = await _find(finder, talk, arguments, oracle.stop_id_of(renderer, talk.reply))
    before, after = repaired(talk.history), repaired(talk.tail, leading=False)
    mended = replace(talk, history=before or talk.history, tail=after or talk.tail)
    try:
        truth = oracle.tell(renderer, mended, arguments) if mended != talk else None
    except oracle.Unsupported:
        truth = None
    if truth is None:
        return tally.add("unsupported" if found.ids is None else "unsupported_spliced", row)
    end = _end(truth, found, finder)
    if found.ids is not None and not found.repaired:
        end = "repair"
    return tally.add(end if end in FAULTS else f"repaired_{end}", row)


async def _find(
    finder: SuffixFinder,
    talk: Conversation,
    arguments: dict[str, Any],
    stop_id: int,
    *,
    keep_reasoning: bool = False,
) -> Suffix:
    return await finder.find(
        talk.history,
        talk.reply,
        talk.tail,
        stop_id,
        talk.tools,
        {"chat_template_kwargs": arguments} if arguments else {},
        keep_reasoning=keep_reasoning,
    )


def fuzz(seed: int, n: int) -> Iterator[Conversation]:
    """`n` random conversations of each manner."""
    for manner in MANNERS:
        for i in range(n):
            yield random_conversation(f"{seed}.{i}", manner)


def _job(name: str, kind: str, seed: int, n_fuzz: int, use_cache: bool) -> tuple[str, str, Tally]:
    talks = [*fixtures(), *fuzz(seed, n_fuzz)]
    work = check_template(template(name), kind, talks, use_cache=use_cache)
    return kind, "remembered" if use_cache else "asked anew", asyncio.run(work)


def main() -> int:
    """Run the whole matrix; 0 if every row is right."""
    parser = argparse.ArgumentParser(description="check the suffix finder on installed templates")
    parser.add_argument("--fuzz", type=int, default=20, help="random conversations a manner")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--templates", default="", help="only names that contain this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    names = [found.name for found in templates() if options.templates in found.name]
    jobs = [
        (name, kind, options.seed, options.fuzz, cached)
        for kind, cached, name in product(options.kinds, (True, False), names)
    ]
    tallies: dict[tuple[str, str], Tally] = {}
    started = time.monotonic()
    n_talks = len(fixtures()) + options.fuzz * len(MANNERS)
    print(f"{len(names)} templates, {n_talks} conversations, seed {options.seed}", flush=True)
    with ProcessPoolExecutor(options.jobs) as pool:
        for n, (kind, way, tally) in enumerate(pool.map(_job, *zip(*jobs, strict=True)), 1):
            tallies.setdefault((kind, way), Tally()).merge(tally)
            if n % 25 == 0 or n == len(jobs):
                took = time.monotonic() - started
                print(f"{n} of {len(jobs)} pieces, {took:.0f} s", file=sys.stderr, flush=True)
    faults = [fault for tally in tallies.values() for fault in tally.faults]
    for (kind, way), tally in tallies.items():
        print(f"{kind}, verdicts {way}\n  {tally}")
    for fault in faults[:50]:
        print("FAULT", fault)
    print(f"{len(faults)} faults, {time.monotonic() - started:.0f} s")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
