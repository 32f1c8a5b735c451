"""The quick demo: the same steps without an engine and without a real harness, on any system.

What plays the model is a script, what plays the harness a small loop; both say so. What records,
stores, shows, exports and replays is the real thing.
"""

from __future__ import annotations

import json

from budwood.proxy.testing import ToyTokenizer

from ..summary import summarise
from .acts import Part, n_repaired
from .closing import Column
from .screen import Place, teacher_running
from .tasks import GREET, REPAIR

PARTS = (Part("loop", GREET), Part("loop", REPAIR))


def run(place: Place) -> list[Column]:
    """Run it; return the table's columns. Raises DemoFailed."""
    from budwood.trajectory_store import Store

    place.clock.say(
        "This is the quick demo, under a minute, nothing to download. SCRIPTED: a script plays the "
        "model and a small loop plays the harness. `make demo` in a checkout shows real ones."
    )
    with teacher_running(place.environment()) as url:
        for part in PARTS:
            part.record(place, f"{url}/v1")
    place.budwood("show", "last")
    columns = []
    with Store.open(place.store, read_only=True) as store:
        for part in PARTS:
            rollout_id, is_done = part.rollout(store), part.is_done(place)
            out = place.folder / f"{part.name}.jsonl"
            place.budwood("export", rollout_id, "--to", "trl-sft", "--out", str(out))
            rows = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
            columns.append(
                Column(
                    title=f"{part.name} (scripted)",
                    rollout_id=rollout_id,
                    summary=summarise(store, rollout_id),
                    is_done=is_done,
                    n_repaired=n_repaired(
                        store, rollout_id, lambda ids: ToyTokenizer().decode(ids)
                    ),
                    n_rows=len(rows),
                    n_trained=sum(label != -100 for row in rows for label in row["labels"]),
                    difference=None,
                    n_scored=0,
                    replay=part.replay(place, rollout_id),
                )
            )
    return columns
