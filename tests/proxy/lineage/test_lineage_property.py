"""Must hold for any conversation: spliced where only spelling changed, never where meaning did."""

import asyncio
import os
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from budwood.trajectory_store import Store

from .conversations import End, Episode, Start, Step, episodes
from .harness_edits import COSMETIC, MEANINGFUL
from .lineage_check import Violation, check
from .real_lineage import RealLineage, Runs
from .wrong_lineages import AlwaysForks, AlwaysSplices, MergesLanes

N_CASES = int(os.environ.get("BUDWOOD_LINEAGE_CASES", "2000"))
SLOW_IS_FINE = settings(
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    print_blob=False,
)


@pytest.fixture
def runs():
    """The runs of a store that lives in memory where the system has such a folder."""
    shared_memory = Path("/dev/shm")
    place = shared_memory if shared_memory.is_dir() else None
    with tempfile.TemporaryDirectory(dir=place) as folder:
        with Store.open(Path(folder) / "store.db") as store:
            yield Runs(store)


@pytest.fixture
def loop():
    """One loop for all cases; its debug mode would take longer than the cases."""
    with asyncio.Runner(debug=False) as runner:
        yield runner


@pytest.mark.timeout(max(600, N_CASES // 3))
def test_any_conversation_is_spliced_exactly_where_only_its_spelling_changed(runs, loop):
    counts: Counter[str] = Counter()

    @settings(SLOW_IS_FINE, max_examples=N_CASES)
    @given(episodes)
    def any_episode(episode):
        counts["cases"] += 1
        loop.run(check(episode, runs.make, counts))

    any_episode()
    print(dict(counts))
    assert counts["cases"] >= N_CASES
    if N_CASES >= 1000:
        for name in MEANINGFUL:
            assert counts[f"edit {name}"] > 0, f"{name} never occurred"
        assert counts["edit cosmetic"] > len(COSMETIC)
        assert counts["spliced"] > counts["cases"]


DELIVERED = Step(
    lane=0,
    start=Start.MAIN,
    edits=(),
    reasons=False,
    says=False,
    n_calls=0,
    user_follows=False,
    end=End.DELIVERED,
    overlaps=False,
    seed=0,
)


def test_reasoning_kept_by_a_compaction_and_dropped_behind_a_cut_reply_is_restored(runs, loop):
    """Found by the property above."""
    steps = (
        DELIVERED,
        DELIVERED,
        replace(DELIVERED, reasons=True),
        replace(DELIVERED, edits=("compacted",)),
        replace(DELIVERED, end=End.CUT_BY_LENGTH),
        replace(DELIVERED, edits=("reasoning_dropped",)),
    )
    counts: Counter[str] = Counter()
    for seed in range(20):
        seeded = tuple(replace(step, seed=seed) for step in steps)
        episode = Episode(keeps_reasoning=True, drops_thinking=False, steps=seeded)
        loop.run(check(episode, runs.make, counts))
    assert counts["edit compacted"] == 20
    assert counts["edit reasoning_dropped"] > 10


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (AlwaysForks, "spliced was right, it is rendered"),
        (AlwaysSplices, "rendered whole was right, it is spliced|the suffix is not"),
        (MergesLanes, "share a lane|in another lane"),
    ],
)
def test_a_lineage_that_is_wrong_is_found_out(runs, loop, kind: type[RealLineage], told):
    async def make(episode, engine):
        return kind(runs.store, runs.run_of(episode), engine, cache_tokens=1_000_000)

    @settings(SLOW_IS_FINE, max_examples=300, phases=[Phase.generate])
    @given(episodes)
    def any_episode(episode):
        loop.run(check(episode, make, Counter()))

    with pytest.raises(Violation, match=told):
        any_episode()
