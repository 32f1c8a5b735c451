"""A store of graded groups whose logprobs are a model's own, without an engine."""

from __future__ import annotations

import random
from array import array

from budwood.trainers.reading import read_for_sft
from budwood.trainers.rows import sft_batch
from budwood.trainers.settings import DataSettings, PolicySettings
from budwood.trajectory_store import FailureClass, Store
from budwood.trajectory_store.testing import Scribe

N_ATTEMPTS = 4


def record(path, model_folder, *, n_groups=3):
    """Write `n_groups` groups of 4 graded rollouts, and two whose failure was another's."""
    from budwood.trainers.policy import Policy

    with Store.open(path.with_name("scratch.db")) as scratch:
        _write(scratch, n_groups, {})
        rows = sft_batch(read_for_sft(scratch, DataSettings(selector="all")).attempts).rows
        cpu = PolicySettings.model_validate({"hardware": {"device": "cpu"}})
        found = Policy(model_folder, cpu).logprobs(rows)
        names = {r.id: (r.group_id, r.attempt) for r in scratch.rollouts()}
    known = {}
    for row, values in zip(rows, found, strict=True):
        for turn, call in enumerate(row.calls):
            own = array("f", values[call.start_out : call.end_out].tolist())
            known[names[row.rollout_id], turn] = own
    with Store.open(path) as store:
        _write(store, n_groups, known)
    return path


def _write(store, n_groups, known):
    run = store.open_run("evening", seed=1)
    for group in range(n_groups):
        rng = random.Random(group)
        for number in range(N_ATTEMPTS + (group == 0)):
            rollout = store.open_rollout(
                run.id, group_id=f"g{group}", attempt=number, task=f"task-{group}"
            )
            scribe = Scribe(store, rollout)
            lane, parent = scribe.lane(), None
            messages = [{"role": "user", "content": f"Do {group}."}]
            for turn in range(2):
                text = "".join(rng.choices("abcdef ", k=rng.randrange(3, 12)))
                own = known.get(((f"g{group}", number), turn))
                more = {} if own is None else {"logprobs": own}
                parent = scribe.call(lane, messages, text, parent=parent, **more)
                messages = [*scribe.history[parent], {"role": "user", "content": "Go on."}]
            store.close_rollout(rollout.id)
            if number == N_ATTEMPTS:
                store.score(rollout.id, None, by="test", failure_class=FailureClass.ENVIRONMENT,
                            cause="sandbox_lost")  # fmt: skip
            else:
                store.score(rollout.id, float(number % 2 + group), by="test")
    ungraded = store.open_rollout(run.id, group_id="g0", attempt=9)
    scribe = Scribe(store, ungraded)
    scribe.call(scribe.lane(), [{"role": "user", "content": "Do 0."}], "x")
    store.close_rollout(ungraded.id)
