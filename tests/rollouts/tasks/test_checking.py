"""A task is sound if its oracle passes and a no-op fails honestly."""

import pytest

from budwood.rollouts import UnsupportedTask
from budwood.rollouts.tasks import check, check_all, load_task


@pytest.fixture
def checked(open_place):
    """Return a function that checks the task in a folder."""

    async def run(folder, **arguments):
        return await check(load_task(folder), open_place, **arguments)

    return run


async def test_a_sound_task_is_checked_as_often_as_asked(checked, make_task):
    report = await checked(make_task(), repeats=3)
    assert report.is_sound
    assert report.task == "test/hello"
    assert report.checksum.startswith("sha256:")
    rewards = [(trial.kind, trial.grade.verdict.reward) for trial in report.trials]
    assert rewards == [("oracle", 1.0), ("no-op", 0.0)] * 3


async def test_a_solution_that_does_not_pass_is_told_with_what_it_said(checked, make_task):
    report = await checked(make_task({"solution/solve.sh": "#!/bin/sh\necho oops; exit 3\n"}))
    assert report.problems == (
        "oracle: reward 0, wanted 1; solve.sh ended with 3: oops; "
        "test.sh said: cat: /app/out.txt: No such file or directory",
    )


async def test_a_task_that_passes_by_itself_is_not_sound(checked, make_task):
    report = await checked(make_task({"environment/files/out.txt": "hello\n"}))
    assert report.problems == ("no-op: reward 1 though nothing was done",)


async def test_a_verifier_that_breaks_where_nothing_was_done_is_not_sound(checked, make_task):
    script = "#!/bin/sh\nset -e\n[ -f out.txt ]\necho 1 > /logs/verifier/reward.txt\n"
    report = await checked(make_task({"tests/test.sh": script}))
    (problem,) = report.problems
    assert problem.startswith("no-op: the verifier failed (reward_missing)")


async def test_a_task_without_a_solution_is_not_sound(checked, make_task):
    report = await checked(make_task({"solution/solve.sh": None}))
    assert report.problems == (
        "solution/solve.sh is missing: nothing shows that the task can be done",
    )
    assert [trial.kind for trial in report.trials] == ["no-op"]


async def test_a_task_that_answers_now_this_now_that_is_not_sound(checked, make_task):
    # The bar is low, so both pass: what differs is the reward.
    script = (
        "#!/bin/sh\n[ -f out.txt ] || { echo 0 > /logs/verifier/reward.txt; exit; }\n"
        "echo $(od -An -N4 -tu4 /dev/urandom).5 > /logs/verifier/reward.txt\n"
    )
    report = await checked(make_task({"tests/test.sh": script}), repeats=2, pass_at=1e-9)
    assert [problem for problem in report.problems if "oracle: not the same each time" in problem]


async def test_the_solution_has_its_variables_and_is_gone_before_the_verifier_comes(
    checked, make_task
):
    toml = (
        '[solution]\nenv = { WORD = "${WORD}" }\n[environment]\nenv = { WORD = "no" }\n'
        "[metadata.budwood]\nlocal = true\n"
    )
    changes = {
        "task.toml": toml,
        "solution/solve.sh": '#!/bin/sh\n[ ! -e /tests ] && echo "$WORD" > out.txt\n',
        "tests/test.sh": (
            "#!/bin/sh\n[ ! -e /solution/solve.sh ] && grep -qx hello out.txt && echo 1 "
            "> /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"
        ),
    }
    assert (await checked(make_task(changes), variables={"WORD": "hello"})).problems == ()


async def test_a_solution_that_does_not_end_is_ended(checked, make_task):
    toml = "[agent]\ntimeout_sec = 2\n[metadata.budwood]\nlocal = true\n"
    solve = "#!/bin/sh\necho begun\nsleep 1000\n"
    report = await checked(make_task({"task.toml": toml, "solution/solve.sh": solve}))
    (problem,) = report.problems
    assert problem.startswith("oracle: reward 0, wanted 1; solve.sh did not end in its time: begun")


async def test_a_place_that_there_can_not_be_is_an_error_and_no_report(checked, make_task):
    toml = '[environment]\nworkdir = "/usr/cannot"\n[metadata.budwood]\nlocal = true\n'
    with pytest.raises(UnsupportedTask, match="/usr/cannot"):
        await checked(make_task({"task.toml": toml}))


async def test_checking_less_than_once_is_a_mistake(checked, make_task):
    with pytest.raises(ValueError, match="1 or more"):
        await checked(make_task(), repeats=0)


async def test_many_tasks_are_told_in_their_order_and_one_that_can_not_be_checked_stops_no_other(
    make_task, open_place
):
    cannot = '[environment]\nworkdir = "/usr/cannot"\n[metadata.budwood]\nlocal = true\n'
    wrong = {"solution/solve.sh": "#!/bin/sh\n"}
    folders = [
        make_task(name="one"),
        make_task({"task.toml": cannot}, name="two"),
        make_task(wrong, name="three"),
    ]
    told = []
    reports = await check_all(
        [load_task(folder) for folder in folders], open_place, concurrency=3, on_report=told.append
    )
    assert [(report.was_checked, report.is_sound) for report in reports] == [
        (True, True), (False, False), (True, False),
    ]  # fmt: skip
    assert reports[1].problems[0].startswith("could not be checked: task two can't run here")
    assert sorted(map(id, told)) == sorted(map(id, reports))
