"""Whole runs: a real harness in real sandboxes, a real proxy, and an engine that plays a script."""

import asyncio
import json
import shutil
from functools import partial

import pytest

from budwood.proxy.testing import Reply
from budwood.rollouts import RunRefused
from budwood.rollouts.attempt import Rules
from budwood.rollouts.direct import direct
from budwood.rollouts.harnesses import harness_named
from budwood.rollouts.regrade import grade_again
from budwood.rollouts.report import report_of
from budwood.rollouts.run import Plan, carry_out
from budwood.sandbox import LocalSettings, Spec, backend_named
from budwood.trajectory_store import FailureClass, Purpose

from . import scripted
from .scripted import Model, write, write_task

pytestmark = pytest.mark.usefixtures("namespaces")


@pytest.fixture
def task(tmp_path):
    """A function: a task `name` that wants its name in out.txt."""
    return lambda name, **more: write_task(tmp_path / "tasks" / name, **more)


@pytest.fixture
def running(tmp_path):
    """A context manager: a bench, with a store that stays."""
    return partial(scripted.running, tmp_path)


async def test_attempts_are_graded_recorded_exactly_and_told_as_they_end(running, task, tmp_path):
    model = Model({"right": ["cat in.txt", write("right")], "wrong": [write("else")]})
    told = []
    async with running(model) as go:
        done = await go(
            [task("right"), task("wrong")], attempts=2, concurrency=2, purpose=Purpose.TRAIN,
            on_tried=lambda tried, again: told.append((tried.planned.task.name, again)),
        )  # fmt: skip
        assert (done.n_before, len(done.tried), done.n_retries) == (0, 4, 0)
        assert sorted(told) == [("right", False)] * 2 + [("wrong", False)] * 2
        rollouts = go.store.rollouts(done.run.id)
        rewards = {one.task: go.store.outcome(one.id).reward for one in rollouts}
        assert rewards == {"right": 1.0, "wrong": 0.0}
        assert {one.state for one in rollouts} == {"closed"}
        assert len({one.group_id for one in rollouts}) == 2
        for one in rollouts:
            assert all(call.exact for call in go.store.calls(one.id))
            assert go.store.sequences(one.id)
        report = report_of(go.store, done.run)
        assert report.is_complete
        (react,) = report.harnesses
        assert (react.n_tasks, react.n_attempts, react.n_passed) == (2, 4, 2)
        assert react.pass_at == {1: 0.5, 2: 0.5}
        assert react.counts.n_exact == react.counts.n_complete == 10
        assert react.counts.n_spliced == react.counts.n_continuing == 6
        (folder,) = (tmp_path / "runs" / done.run.id).glob("right.*/react/0/1")
        assert b"It is done." in (folder / "stdout").read_bytes()
        assert not list((tmp_path / "sandboxes").rglob("out.txt"))


async def test_the_same_command_runs_nothing_again_and_another_is_another_run(running, task):
    model = Model({"right": [write("right")]})
    async with running(model) as go:
        first = await go([task("right")])
        n_calls = model.n_calls
        again = await go([task("right")])
        assert (again.run.id, again.n_before, again.tried) == (first.run.id, 1, [])
        assert model.n_calls == n_calls
        more = await go([task("right")], attempts=2)
        assert more.run.id != first.run.id
        anew = await go([task("right")], is_new=True)
        assert anew.run.id not in (first.run.id, more.run.id)
        assert len(anew.tried) == 1


async def test_what_a_killed_run_left_open_never_counts_and_is_made_again(running, task):
    model = Model({"right": [write("right")]})
    async with running(model) as go:
        # A killed process leaves the run, and a rollout without an outcome.
        done = await go([task("right")], attempts=3)
        run, store = done.run, go.store
        (third,) = [one for one in store.rollouts(run.id) if one.attempt == 2]
        fresh = store.open_run(run.name, settings=run.settings)
        for one in store.rollouts(run.id):
            copy = store.open_rollout(
                fresh.id, attempt=one.attempt, task=one.task, harness=one.harness,
                labels=one.labels,
            )  # fmt: skip
            if one.id != third.id:
                store.score(copy.id, 1.0, by="verifier")
        again = await go([task("right")], attempts=3)
        assert (again.run.id, again.n_before) == (fresh.id, 2)
        assert [one.planned.attempt for one in again.tried] == [2]
        outcomes = [store.outcome(one.id) for one in store.rollouts(fresh.id) if one.attempt == 2]
        assert [(found.reward, found.cause) for found in outcomes] == [
            (None, "interrupted"), (1.0, None),
        ]  # fmt: skip
        report = report_of(store, fresh)
        assert (report.n_counted, dict(report.failures)) == (3, {("ours", "interrupted"): 1})


async def test_what_was_not_the_policys_doing_is_tried_again_and_never_counts(running, task):
    fault = Reply(content="x", fault="status@500")
    said: dict[str, list] = {"right": [fault]}
    model = Model(said)

    def heal(tried, again):
        said["right"] = [write("right")]

    async with running(model, tries=1, backoff_max_s=0.01) as go:
        done = await go([task("right")], on_tried=heal)
        assert done.n_retries == 1
        outcomes = [go.store.outcome(one.id) for one in go.store.rollouts(done.run.id)]
        assert [(one.reward, one.failure_class, one.cause) for one in outcomes] == [
            (None, FailureClass.ENGINE, "server_error"),
            (1.0, FailureClass.NONE, None),
        ]


async def test_an_attempt_without_an_outcome_that_counts_is_told_and_made_by_the_next_go(
    running, task
):
    broken = "#!/bin/sh\nexit 3\n"
    model = Model({"right": [write("right")]})
    async with running(model) as go:
        done = await go([task("right", test=broken)], retries=1)
        assert [one.judged.cause for one in done.tried] == ["reward_missing"]
        assert not report_of(go.store, done.run).is_complete
        again = await go([task("right", test=broken)], retries=0)
        assert (again.run.id, len(again.tried)) == (done.run.id, 1)


async def test_a_limit_of_turns_is_the_harnesss(running, task):
    model = Model({"right": ["true"] * 10})
    async with running(model) as go:
        done = await go([task("right")], rules=Rules(max_turns=2))
        ((judged),) = [one.judged for one in done.tried]
        assert (judged.reward, judged.cause) == (0.0, "out_of_turns")


async def test_a_sandbox_that_is_killed_is_the_environments_failure(running, task):
    model = Model({"right": ["sleep 300"]})
    async with running(model) as go:
        going = asyncio.create_task(go([task("right")], retries=0))
        while not model.n_calls:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        (sandbox,) = go.backend.sandboxes()
        await sandbox.close()
        done = await going
        ((judged),) = [one.judged for one in done.tried]
        assert (judged.failure_class, judged.cause) == (FailureClass.ENVIRONMENT, "sandbox_lost")


async def test_a_cancelled_run_says_interrupted_and_goes_on_later(running, task):
    said = {"right": ["sleep 300"]}
    model = Model(said)
    async with running(model) as go:
        going = asyncio.create_task(go([task("right")]))
        while not model.n_calls:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going
        assert go.backend.sandboxes() == []
        (rollout,) = go.store.rollouts()
        assert (rollout.state, go.store.outcome(rollout.id).cause) == ("closed", "interrupted")
        said["right"] = [write("right")]
        done = await go([task("right")])
        assert (done.run.id, len(done.tried)) == (rollout.run_id, 1)
        assert done.tried[0].judged.reward == 1.0


async def test_two_of_the_same_run_at_once_are_refused(running, task):
    model = Model({"right": ["sleep 5", write("right")]})
    async with running(model) as go:
        going = asyncio.create_task(go([task("right")]))
        while not model.n_calls:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        with pytest.raises(RunRefused, match="another process"):
            await go([task("right")])
        assert (await going).tried[0].judged.reward == 1.0


async def test_without_the_proxy_the_same_rewards_and_only_two_routes(running, task, tmp_path):
    model = Model({"right": [write("right")], "wrong": [write("else")]})
    tasks = [task("right"), task("wrong")]
    async with running(model) as go:
        recorded = await go(tasks)
        async with direct(go.engine.url, go.store, requests=tmp_path / "requests") as relay:
            plan = Plan(
                name="direct", tasks=tasks, harnesses=[harness_named("react")],
                settings={"way": "direct"},
            )  # fmt: skip
            compared = await carry_out(plan, go.store, go.backend, relay, tmp_path / "runs")
        rewards = [
            {one.planned.task.name: one.judged.reward for one in done.tried}
            for done in (recorded, compared)
        ]
        assert rewards[0] == rewards[1] == {"right": 1.0, "wrong": 0.0}
        for one in go.store.rollouts(compared.run.id):
            assert go.store.calls(one.id) == []
            kept = (tmp_path / "requests" / f"{one.id}.jsonl").read_text().splitlines()
            assert [json.loads(json.loads(line))["messages"][1]["role"] for line in kept] == [
                "user", "user",
            ]  # fmt: skip


async def test_a_mended_verifier_grades_again_what_was_kept(running, task, tmp_path):
    model = Model({"right": [write("right")]})
    async with running(model) as go:
        done = await go([task("right", test="#!/bin/sh\nexit 3\n")], retries=0)
        rollout = done.tried[0].rollout_id
        mended = task("right")
        again = await grade_again(
            go.store, rollout, {"right": mended}, go.backend, tmp_path / "runs", Rules()
        )
        assert (again.reward, again.failure_class, again.version) == (1.0, FailureClass.NONE, 2)
        with pytest.raises(RunRefused, match="not among those given"):
            await grade_again(go.store, rollout, {}, go.backend, tmp_path / "runs", Rules())
        shutil.rmtree(tmp_path / "runs")
        with pytest.raises(RunRefused, match="not kept"):
            await grade_again(
                go.store, rollout, {"right": mended}, go.backend, tmp_path / "runs", Rules()
            )


async def test_a_sandbox_that_does_not_start_is_stored_as_the_environments_failure(
    running, task, tmp_path
):
    model = Model({"right": [write("right")]})
    async with running(model) as go:
        full = LocalSettings(root=tmp_path / "full", max_sandboxes=1)
        async with backend_named("local", full) as go.backend:
            await go.backend.create(Spec())
            done = await go([task("right")], retries=0)
        (rollout,) = go.store.rollouts(done.run.id)
        outcome = go.store.outcome(rollout.id)
        assert (outcome.failure_class, outcome.cause) == (FailureClass.ENVIRONMENT, "sandbox_start")
        assert (outcome.reward, rollout.state) == (None, "closed")
