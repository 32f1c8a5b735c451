"""Grading in a real place: a folder, bubblewrap, a real shell."""

import asyncio

import pytest

from budwood.rollouts import MissingVariable, PlaceFailed, UnsupportedTask
from budwood.rollouts.sandbox_place import MAX_READ_BYTES, SandboxPlace, places_of
from budwood.rollouts.tasks import ExecResult, grade, load_task, prepare
from budwood.sandbox import LocalSettings, backend_named
from budwood.trajectory_store import FailureClass

PASSES = "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n"


@pytest.fixture
def graded(open_place):
    """Return a function that grades a task after `agent`, some lines of sh, has worked at it."""

    async def run(folder, *, agent="true", **arguments):
        task = load_task(folder)
        async with open_place(task) as place:
            await prepare(task, place)
            done = await place.exec(["sh", "-ec", agent], env={}, cwd=task.workdir, timeout_s=20)
            assert done.exit_code == 0, done.said
            return await grade(task, place, **arguments)

    return run


async def test_work_that_is_done_is_rewarded_and_work_that_is_not_is_not(graded, make_task):
    folder = make_task()
    assert (await graded(folder, agent="echo hello > out.txt")).verdict.is_pass
    left = (await graded(folder)).verdict
    assert (left.reward, left.failure_class) == (0.0, FailureClass.NONE)


async def test_a_local_task_begins_with_its_files_and_without_tests_and_solution(graded, make_task):
    seen = await graded(make_task(), agent="[ -f in.txt ]; [ ! -e /tests ]; [ ! -e /solution ]")
    assert seen.verdict.reward == 0


@pytest.mark.parametrize(
    "agent",
    [
        "echo 1 > /logs/verifier/reward.txt",
        "echo '{\"reward\": 1}' > /logs/verifier/reward.json",
        "mkdir /logs/verifier/reward.json",
        "rm -r /logs/verifier; mkdir /elsewhere; echo 1 > /elsewhere/reward.txt; "
        "ln -s /elsewhere /logs/verifier",
        "mkdir /x; ln -s /x /tests",
        "touch /tests",
        "mkdir /tests; printf '#!/bin/sh\\necho 1 > /logs/verifier/reward.txt\\n' > /tests/test.sh",
        "mkdir /tests; echo exit > /tests/.profile; mkdir /tests/sub; touch /tests/sub/x",
        "mkdir -p /tests/sub; touch /tests/sub/x; chmod 0 /tests/sub /tests",
        "cd /logs/verifier; mkdir -p ctrf.json reward.txt/x; touch reward.txt/x/y;"
        " chmod 0 reward.txt/x .",
        "chmod 0 /app /logs /",
    ],
)
async def test_what_an_agent_left_in_the_verifiers_folders_counts_for_nothing(
    graded, make_task, agent
):
    script = "#!/bin/sh\nls -A /tests\n"
    verdict = (await graded(make_task({"tests/test.sh": script}), agent=agent)).verdict
    assert verdict.cause == "reward_missing"
    seen = await graded(make_task({"tests/test.sh": script}), agent=agent)
    assert seen.output == b"test.sh\n"


async def test_a_report_that_the_agent_left_is_not_the_verifiers(graded, make_task):
    script = (
        "#!/bin/sh\n: pytest --ctrf /logs/verifier/ctrf.json\necho 0 > /logs/verifier/reward.txt\n"
    )
    left = """echo '{"results": {"tests": [{}]}}' > /logs/verifier/ctrf.json"""
    verdict = (await graded(make_task({"tests/test.sh": script}), agent=left)).verdict
    assert verdict.cause == "no_test_report"


async def test_the_report_is_read_where_the_script_says(graded, make_task):
    for path, where in (
        ("/logs/verifier/r.json", None),
        ("out/r.json", "out"),
        ("$D/ctrf.json", ""),
    ):
        script = (
            f"#!/bin/sh\nD=/logs/verifier\nmkdir -p {where or '/tmp'}\n: pytest --ctrf {path}\n"
            f"""echo '{{"results": {{"summary": {{"tests": 2}}}}}}' > {path}\n"""
            "echo 0 > /logs/verifier/reward.txt\n"
        )
        seen = await graded(make_task({"tests/test.sh": script}))
        assert seen.verdict.reward == 0, seen
        assert seen.report is not None


async def test_both_streams_are_kept_in_their_order(graded, make_task):
    script = "#!/bin/sh\necho one\necho two >&2\necho three\n"
    seen = await graded(make_task({"tests/test.sh": script}))
    assert seen.output == b"one\ntwo\nthree\n"


async def test_the_verifier_has_its_variables_and_works_in_the_tasks_folder(graded, make_task):
    toml = (
        '[environment]\nworkdir = "/work"\nenv = { A = "${A}", B = "b" }\n'
        '[verifier]\nenv = { B = "${B:-verifier}" }\n[metadata.budwood]\nlocal = true\n'
    )
    script = '#!/bin/sh\necho "$A $B $PWD"\n'
    folder = make_task({"task.toml": toml, "tests/test.sh": script})
    assert (await graded(folder, variables={"A": "a"})).output == b"a verifier /work\n"
    with pytest.raises(MissingVariable, match=r"environment\.env\.A"):
        await graded(folder)


async def test_the_run_names_the_reward_and_the_bar(graded, make_task):
    script = '#!/bin/sh\necho \'{"a": 0.5, "b": 2}\' > /logs/verifier/reward.json\n'
    folder = make_task({"tests/test.sh": script})
    assert (await graded(folder)).verdict.cause == "reward_unnamed"
    verdict = (await graded(folder, reward_key="a", pass_at=0.5)).verdict
    assert (verdict.reward, verdict.is_pass) == (0.5, True)


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("#!/bin/sh\nkill -9 $$\n", "verifier_killed"),
        ("#!/bin/sh\nexec no-such-program\n", "verifier_not_run"),
        ("#!/no/such/shell\n", "verifier_not_run"),
        ("#!/bin/sh\n: > /logs/verifier/reward.txt\n", "reward_empty"),
        ("#!/bin/sh\nmkdir /logs/verifier/reward.txt\n", "reward_missing"),
        ("#!/bin/sh\nmkfifo /logs/verifier/reward.txt\n", "reward_missing"),
        ("#!/bin/sh\nuvx pytest\necho 0 > /logs/verifier/reward.txt\n", "verifier_tool_missing"),
        ("#!/bin/bash\nuvx pytest\necho 0 > /logs/verifier/reward.txt\n", "verifier_tool_missing"),
    ],
)
async def test_a_broken_verifier_is_named_by_what_broke(graded, make_task, script, cause):
    seen = await graded(make_task({"tests/test.sh": script}))
    assert seen.verdict.cause == cause, seen
    assert seen.verdict.reward is None


async def test_a_verifier_that_does_not_end_is_ended_and_what_it_said_is_kept(graded, make_task):
    toml = "[verifier]\ntimeout_sec = 2\n[metadata.budwood]\nlocal = true\n"
    script = PASSES + "trap '' TERM\necho waiting\nwhile :; do sleep 1000; done\n"
    seen = await graded(make_task({"task.toml": toml, "tests/test.sh": script}))
    assert seen.verdict.cause == "verifier_timeout"
    assert seen.output == b"waiting\n"


async def test_a_script_that_can_not_be_executed_yet_is_made_so(graded, make_task):
    folder = make_task({"tests/test.sh": PASSES})
    (folder / "tests" / "test.sh").chmod(0o644)
    assert (await graded(folder)).verdict.is_pass


async def test_a_process_that_the_agent_left_running_is_ended_before_the_verifier_comes(
    open_place, make_task
):
    script = "#!/bin/sh\nsleep 0.3\ncat mark\necho 0 > /logs/verifier/reward.txt\nsleep 0.3\n"
    task = load_task(make_task({"tests/test.sh": script}))
    left = "while :; do echo > mark; echo 1 > /logs/verifier/reward.txt; sleep 0.05; done"
    wait = "until [ -e mark ]; do sleep 0.05; done"
    async with open_place(task) as place, asyncio.TaskGroup() as group:
        await prepare(task, place)
        running = group.create_task(
            place.exec(["sh", "-c", left], env={}, cwd=task.workdir, timeout_s=60)
        )
        await place.exec(["sh", "-c", wait], env={}, cwd=task.workdir, timeout_s=60)
        seen = await grade(task, place)
    assert seen.verdict.reward == 0
    assert running.result().signal == 9


@pytest.mark.parametrize(
    "agent",
    ["rm -r /logs; touch /logs", "cd /; rm -r /app", "cd /; rm -r /app; ln -s /nowhere /app"],
)
async def test_an_agent_that_takes_folders_away_is_graded_all_the_same(graded, make_task, agent):
    verdict = (await graded(make_task(), agent=agent)).verdict
    assert (verdict.reward, verdict.cause) == (0.0, None)


class Full(SandboxPlace):
    """A place in which no more folders can be made."""

    async def exec(self, argv, **more):
        if any("mkdir" in word for word in argv):
            return ExecResult(exit_code=1, stderr=b"mkdir: No space left on device")
        return await super().exec(argv, **more)


async def test_a_place_in_which_tests_can_not_be_laid_out_is_no_zero(make_task, open_place):
    task = load_task(make_task())
    async with open_place(task) as place:
        seen = await grade(task, Full(place._sandbox))
    assert (seen.verdict.reward, seen.verdict.cause) == (None, "verifier_error")
    assert "could not be laid out" in seen.verdict.why
    assert "No space left" in seen.verdict.why


async def test_a_limit_that_can_not_be_held_is_refused_by_name(make_task, open_place):
    toml = "[environment]\ncpus = 1\n[metadata.budwood]\nlocal = true\n"
    task = load_task(make_task({"task.toml": toml}))
    with pytest.raises(UnsupportedTask, match="cpu"):
        await open_place(task).__aenter__()


async def test_a_limit_that_the_task_names_is_held(make_task, open_place):
    toml = "[environment]\nstorage_mb = 1\n[metadata.budwood]\nlocal = true\n"
    task = load_task(make_task({"task.toml": toml}))
    async with open_place(task) as place:
        await prepare(task, place)
        fill = ["sh", "-c", "head -c 2000000 /dev/zero > big"]
        done = await place.exec(fill, env={}, cwd=task.workdir, timeout_s=60)
    assert done.exit_code != 0
    assert "No space left" in done.said


async def test_a_backend_that_would_lay_tests_into_the_host_is_refused(tmp_path):
    settings = LocalSettings(root=tmp_path / "sandboxes")
    async with backend_named("local-unisolated", settings) as backend:
        with pytest.raises(PlaceFailed, match="this machine's root"):
            places_of(backend)


async def test_a_sandbox_that_ends_is_no_verdict(make_task, open_place):
    task = load_task(make_task())
    async with open_place(task) as place:
        await prepare(task, place)
        await place._sandbox.close()
        with pytest.raises(PlaceFailed):
            await grade(task, place)


async def test_nothing_runs_on_that_a_verifier_left_and_no_file_is_too_long(make_task, open_place):
    script = (
        "#!/bin/sh\n(setsid sleep 1000 >/dev/null 2>&1 &)\n"
        "truncate -s 1T /logs/verifier/ctrf.json\necho 1 > /logs/verifier/reward.txt\n"
    )
    task = load_task(make_task({"tests/test.sh": script}))
    async with open_place(task) as place:
        seen = await grade(task, place)
        assert seen.verdict.reward == 1.0
        assert seen.report is not None
        assert len(seen.report) == MAX_READ_BYTES
        assert (await place._sandbox.stats()).n_processes == 0
