"""The finder: from a recorded conversation and new messages to the suffix ids that join them.

See the package docstring for why this works. One finder serves all rollouts of an engine.
"""

import asyncio
import random
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import structlog

from .markers import END, Markers, MarkersUnstable
from .parts import as_texts, text_of
from .renderer import Renderer, RenderRejected
from .repair import repaired
from .skeleton import Skeleton, TooManyMarkers, Wire, build_skeleton, mark_tools
from .verdict import Kind, Renders, Verdict, judge

log = structlog.get_logger(__name__)

T = TypeVar("T")

_MAX_AUDIT_COUNTS = 65_536


@dataclass(frozen=True, slots=True)
class Suffix:
    """The ids after the sampled stop, or the reason why there are none."""

    ids: "array[int] | None"
    """To be sent after prompt + sampled output; None: render the whole conversation instead."""
    verdict: Kind
    """What the template does to the history; "none" where it could not be asked."""
    reason: str | None
    """Why `ids` is None: template_edits, stop_not_in_gap, marker_lost, marker_in_text,
    empty_suffix, quarantined, rejected, no_markers, too_complex, empty_tail, foreign_assistant,
    media."""
    audit: bool
    """The caller should render the whole conversation and hand it to `check_audit`."""
    signature: bytes
    """Names the structure that an audit acquits or quarantines."""
    repaired: bool = False
    """The template refused the messages as they are; `ids` belong to `repaired` messages."""


class SuffixFinder:
    """Finds suffixes with a renderer; remembers verdicts, audits and quarantines.

    Verdicts are remembered by structure for the last `cache_size` of them. A structure is audited
    at its first `audit_first` suffixes and with probability `audit_share` later on; one failed
    audit ends splicing for it. `counts` holds what happened, for metrics.
    """

    def __init__(
        self,
        renderer: Renderer,
        *,
        strict: bool = False,
        audit_share: float = 0.01,
        audit_first: int = 3,
        rng: random.Random,
        use_cache: bool = True,
        cache_size: int = 4096,
    ) -> None:
        """A finder that has asked nothing yet. `strict`: edits of early template text count."""
        self.counts: Counter[str] = Counter()
        self._renderer = renderer
        self._strict = strict
        self._audit_share = audit_share
        self._audit_first = audit_first
        self._rng = rng
        self._cache_size = cache_size if use_cache else 0
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()
        self._asking: dict[bytes, asyncio.Event] = {}
        self._audits: OrderedDict[bytes, int] = OrderedDict()
        self._quarantined: set[bytes] = set()
        self._learned: Markers | MarkersUnstable | None = None
        self._learning = asyncio.Lock()

    async def find(
        self,
        history: Sequence[Wire],
        reply: Wire,
        tail: Sequence[Wire],
        stop_id: int,
        tools: list[Any] | None,
        template: dict[str, Any],
        *,
        keep_reasoning: bool = False,
    ) -> Suffix:
        """The suffix for `tail` after `reply`, which was sampled after `history` up to `stop_id`.

        Messages are chat messages with texts as strings, or as lists of text parts, and tool
        arguments as JSON strings. Under
        `keep_reasoning` the history holds the recorded reasoning, and a template that drops it is
        overruled. Raises what the renderer raises but RenderRejected.
        """
        refusal = _unfit([*history, reply], tail)
        if refusal is not None:
            return self._counted(_refused(refusal))
        search = _Search(self, stop_id, tools, template, keep_reasoning)
        try:
            return self._counted(await search.run(history, reply, tail))
        except RenderRejected:
            mended = _mended(history, tail)
        if mended is not None:
            try:
                found = await search.run(mended[0], reply, mended[1])
                return self._counted(replace(found, repaired=True))
            except RenderRejected:
                pass
        return self._counted(_refused("rejected"))

    def check_audit(self, suffix: Suffix, full_ids: "array[int]", stop_id: int) -> bool:
        """Whether the whole render ends with the stop and the suffix; False ends its splicing.

        Only the end is compared: arguments written anew, trimmed white space and dates may differ
        before it, and the recorded tokens are right there.
        """
        self.counts["audits"] += 1
        ids = suffix.ids
        if ids is None:
            raise ValueError("a suffix without ids can't be audited")
        at = len(full_ids) - len(ids)
        if at > 0 and full_ids[at:] == ids and full_ids[at - 1] == stop_id:
            return True
        self.counts["audits_failed"] += 1
        self._quarantined.add(suffix.signature)
        log.error(
            "suffix differs from the whole render: structure quarantined",
            structure=suffix.signature.hex(),
            n_suffix=len(ids),
            n_full=len(full_ids),
            n_quarantined=len(self._quarantined),
        )
        return False

    @property
    def n_quarantined(self) -> int:
        """How many structures are not spliced any more because an audit failed."""
        return len(self._quarantined)

    # -- what a search needs of the finder ---------------------------------------------------

    def is_quarantined(self, structure: bytes) -> bool:
        """Whether an audit of this structure has failed."""
        return structure in self._quarantined

    async def markers(self) -> Markers:
        """The engine's markers, learned once; raises MarkersUnstable where there can't be any."""
        async with self._learning:
            if self._learned is None:
                try:
                    self._learned = await Markers.learn(self._renderer.tokenize)
                except MarkersUnstable as error:
                    log.error(
                        "nothing will be spliced: no markers in this tokenizer", why=str(error)
                    )
                    self._learned = error
        if isinstance(self._learned, MarkersUnstable):
            raise self._learned
        return self._learned

    async def render(
        self,
        messages: list[Wire],
        tools: list[Any] | None,
        template: dict[str, Any],
        gen: bool = True,
    ) -> "array[int]":
        """One counted render."""
        self.counts["renders"] += 1
        return await self._renderer.render(messages, tools, template, add_generation_prompt=gen)

    async def remembered(
        self, signature: bytes, ask: Callable[[], Coroutine[Any, Any, Verdict]]
    ) -> Verdict:
        """The verdict on a signature, asked for once however many calls wait for it.

        A call that waits for another's question asks itself where that one failed or was cut.
        """
        if not self._cache_size:
            return await self._ask(ask)
        while (known := self._verdicts.get(signature)) is None:
            asking = self._asking.get(signature)
            if asking is not None:
                await asking.wait()
                continue
            self._asking[signature] = asyncio.Event()
            try:
                self._verdicts[signature] = await self._ask(ask)
            finally:
                self._asking.pop(signature).set()
            if len(self._verdicts) > self._cache_size:
                self._verdicts.popitem(last=False)
        self._verdicts.move_to_end(signature)
        return known

    async def _ask(self, ask: Callable[[], Coroutine[Any, Any, Verdict]]) -> Verdict:
        self.counts["probes"] += 1
        return await ask()

    def wants_audit(self, structure: bytes) -> bool:
        """Whether this suffix is to be audited; counts it as one of its structure."""
        seen = self._audits.pop(structure, 0)
        self._audits[structure] = seen + 1
        if len(self._audits) > _MAX_AUDIT_COUNTS:
            self._audits.popitem(last=False)
        return seen < self._audit_first or self._rng.random() < self._audit_share

    def refuses(self, verdict: Verdict, *, keep_reasoning: bool) -> str | None:
        """Why a verdict forbids splicing, if it does."""
        overruled = keep_reasoning and verdict.only_reasoning
        if verdict.kind == "semantic" and not overruled:
            return "template_edits"
        if verdict.kind == "early_text" and self._strict:
            return "template_edits"
        return None if verdict.stop_in_gap else "stop_not_in_gap"

    def _counted(self, suffix: Suffix) -> Suffix:
        self.counts[f"verdict_{suffix.verdict}"] += 1
        self.counts["spliced" if suffix.ids is not None else f"refused_{suffix.reason}"] += 1
        return suffix


@dataclass(frozen=True, slots=True)
class _Search:
    """One call's question to a finder."""

    finder: SuffixFinder
    stop_id: int
    tools: list[Any] | None
    template: dict[str, Any]
    keep_reasoning: bool

    async def run(self, history: Sequence[Wire], reply: Wire, tail: Sequence[Wire]) -> Suffix:
        finder = self.finder
        try:
            markers = await finder.markers()
            recorded, new = as_texts([*history, reply]), as_texts(tail)
            skeleton = build_skeleton(
                recorded[:-1], recorded[-1], new, self.stop_id, self.tools, self.template
            )
        except MarkersUnstable:
            return _refused("no_markers")
        except TooManyMarkers:
            return _refused("too_complex")
        structure = skeleton.structure
        if finder.is_quarantined(structure):
            return _refused("quarantined", signature=structure)
        verdict = await finder.remembered(
            skeleton.signature, lambda: self._probe(skeleton, markers)
        )
        reason = finder.refuses(verdict, keep_reasoning=self.keep_reasoning)
        if reason is not None:
            return _refused(reason, verdict.kind, structure)
        messages = [*skeleton.history, skeleton.reply, *tail]
        ids = await finder.render(messages, self.tools, self.template)
        cut = _cut(ids, markers, self.stop_id)
        if isinstance(cut, str):
            return _refused(cut, verdict.kind, structure)
        return Suffix(cut, verdict.kind, None, finder.wants_audit(structure), structure)

    async def _probe(self, skeleton: Skeleton, markers: Markers) -> Verdict:
        closed = [*skeleton.history, skeleton.reply]
        asked = [
            (skeleton.history, True),
            (skeleton.history, False),
            (closed + skeleton.tail, True),
        ]
        if skeleton.gap_tail is not skeleton.tail:
            asked.append((closed + skeleton.gap_tail, True))
        render, tools = self.finder.render, mark_tools(self.tools)
        prompt, bare, whole, *gap = await _together(
            *(render(messages, tools, self.template, gen) for messages, gen in asked)
        )
        renders = Renders(prompt, bare, whole, gap[0] if gap else whole)
        return judge(renders, skeleton, markers, self.stop_id)


async def _together(*questions: Coroutine[Any, Any, T]) -> list[T]:
    """All answers; the first refusal ends the others and is raised as itself."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(question) for question in questions]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


def _cut(ids: "array[int]", markers: Markers, stop_id: int) -> "array[int] | str":
    """The ids after the first stop that follows the end marker, or why there are none."""
    ends = [found.end for found in markers.find(ids) if found.number == END]
    if len(ends) != 1:
        return "marker_in_text" if ends else "marker_lost"
    try:
        suffix = ids[ids.index(stop_id, ends[0]) + 1 :]
    except ValueError:
        return "stop_not_in_gap"
    if not suffix:
        return "empty_suffix"
    return "marker_in_text" if markers.touch(suffix) else suffix


def _unfit(recorded: Sequence[Wire], tail: Sequence[Wire]) -> str | None:
    """Why no template needs to be asked, if so."""
    if not tail:
        return "empty_tail"
    if any(message["role"] == "assistant" for message in tail):
        return "foreign_assistant"
    if any(text_of(message.get("content")) is None for message in (*recorded, *tail)):
        return "media"
    return None


def _mended(
    history: Sequence[Wire], tail: Sequence[Wire]
) -> tuple[Sequence[Wire], Sequence[Wire]] | None:
    """Both parts repaired, if there is anything to repair in either."""
    before, after = repaired(history), repaired(tail, leading=False)
    if before is None and after is None:
        return None
    return before or history, after or tail


def _refused(reason: str, verdict: Kind = "none", signature: bytes = b"") -> Suffix:
    return Suffix(None, verdict, reason, False, signature)
