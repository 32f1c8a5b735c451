"""Real, unmodified harnesses launched headless in a real sandbox: what they do, how they end."""

import asyncio
import json
from pathlib import Path

import pytest

from budwood.harness_adapters import ADAPTERS, LAUNCHED, Status, TurnLimit, installation_of
from budwood.proxy.testing import Reply, ScriptedCall
from budwood.rollouts.sandbox_place import SandboxPlace
from budwood.rollouts.tasks import grade, load_tasks, prepare
from budwood.sandbox import Cause, LocalSettings, Spec, backend_named

from .launching import HOME, commands, launcher

pytestmark = [pytest.mark.usefixtures("namespaces"), pytest.mark.timeout(300)]
EACH = pytest.mark.parametrize("name", LAUNCHED)
HERE = Path(__file__).resolve().parents[2]
TASKS = HERE / "examples" / "tasks"
USERS = sorted(Path.home().iterdir())


@EACH
async def test_a_harness_does_a_task_and_all_of_it_is_exact(name: str, tmp_path: Path) -> None:
    task = load_tasks(TASKS / "count-lines", tmp_path / "tasks", split="held-out")[0]
    solve = (task.folder / "solution" / "solve.sh").read_text().splitlines()[1]
    turns = commands(name, solve, "ls -A; touch tried")
    async with launcher(
        name, lambda call: turns[call.index], tmp_path, workdir=task.workdir
    ) as launch:
        place = SandboxPlace(launch.sandbox)
        await prepare(task, place)
        ran = await launch(task.instruction)
        files = {path.name for path in (task.files_dir or tmp_path).iterdir()}
        listed = await launch.sandbox.list(task.workdir)
        graded = await grade(task, place)
    assert ran.result.status is Status.DONE, ran.done.stderr.text
    assert ran.result.final_text.strip() == "It is done."
    assert ran.result.usage is not None
    assert ran.result.usage.n_calls == 3
    assert ran.done.exit.is_success
    assert graded.verdict.reward == 1
    assert {entry.name for entry in listed} - files - {"tried", solve.split()[-1]} == set()
    assert [call.exact for call in ran.calls] == [True] * 3
    assert [call.prompt_mode for call in ran.calls] == ["rendered", "spliced", "spliced"]
    assert json.dumps(task.instruction.strip())[1:-1] in json.dumps(ran.requests[0])


@EACH
async def test_it_starts_where_there_is_neither_a_home_nor_a_network(
    name: str, tmp_path: Path
) -> None:
    installation = installation_of(name)
    launch = ADAPTERS[name].launch
    assert launch is not None
    async with backend_named("local", LocalSettings(root=tmp_path)) as backend:
        async with await backend.create(Spec(binds=installation.binds)) as sandbox:
            done = await sandbox.run(
                [*installation.command, *launch.version_arguments], env=installation.env
            )
    assert done.exit.is_success, done.stderr.text
    if launch.version_arguments == ("--version",):
        assert done.stdout.text.strip() == installation.version.partition("+")[0]
    assert installation.version == launch.pinned_version


@EACH
async def test_a_model_call_that_fails_for_good_is_a_failure(name: str, tmp_path: Path) -> None:
    async with launcher(name, None, tmp_path) as launch:  # no script: each call is refused
        ran = await launch("Say something.")
    assert ran.result.status is Status.FAILED
    assert "has no script" in ran.result.why
    assert {call.failure_class for call in ran.calls} == {"engine"}


@EACH
async def test_a_limit_of_turns_is_held_by_the_harness_or_by_the_proxy(
    name: str, tmp_path: Path
) -> None:
    turns = commands(name, *(f"echo {number} >> said" for number in range(6)))
    launched = ADAPTERS[name].launch
    assert launched is not None
    async with launcher(name, turns, tmp_path) as launch:
        if launched.turn_limit is TurnLimit.NATIVE:
            ran = await launch("Go on and on.", max_turns=2)
            assert ran.result.status is Status.LIMIT
            assert [call.cause for call in ran.calls] == [None, None]
        else:
            ran = await launch("Go on and on.", max_turns=2, budgets={"max_calls": 2})
            assert ran.result.status is Status.DONE
            assert [call.cause for call in ran.calls] == [None, None, "budget_calls"]
        said = await launch.sandbox.run(["cat", "said"])
    assert said.stdout.data == b"0\n1\n"


@EACH
async def test_a_long_instruction_of_any_characters_arrives_whole(
    name: str, tmp_path: Path
) -> None:
    odd = "\x85\u2028\x7f\ufeff \U0001f600 {{ task }} {% if %} ${HOME} $(id) `id`"
    text = f"-- {odd} 'a' \"b\" \\n # - : @x\n\n" + "All work and no play.\n" * 9_500 + "The end."
    assert len(text) > 200_000
    async with launcher(name, commands(name), tmp_path) as launch:
        ran = await launch(text)
    assert ran.result.status is Status.DONE, ran.result
    sent = json.dumps(ran.requests[0]["messages"])
    assert json.dumps(text)[1:-1] in sent


@EACH
async def test_nothing_of_the_users_is_seen_and_no_secret_is_in_a_list_of_processes(
    name: str, tmp_path: Path
) -> None:
    hidden = " ".join(map(str, [*USERS, HERE, tmp_path]))
    look = f"""
ls -d {hidden} > seen 2> /dev/null
env > env
cat /proc/[0-9]*/cmdline | tr '\\0' ' ' > ps
find {HOME} -type f -perm /077 > open
grep -rl bw_ {HOME} > holders
"""
    async with launcher(name, commands(name, "sh look.sh; true"), tmp_path) as launch:
        await launch.sandbox.put("look.sh", look.encode())
        ran = await launch("Look around.")
        got = {
            file: (await launch.sandbox.run(["cat", file])).stdout.text
            for file in ("seen", "env", "ps", "open", "holders")
        }
    assert ran.result.status is Status.DONE
    assert got["seen"] == ""
    assert "sh look.sh" in got["ps"]
    assert ran.secret not in got["ps"]
    assert "LD_LIBRARY_PATH" not in got["env"]
    assert str(Path.home()) not in got["env"]
    assert str(HERE) not in got["env"] + got["ps"]
    for holder in got["holders"].splitlines():
        assert holder not in got["open"].splitlines()


@EACH
async def test_a_harness_that_is_ended_in_the_middle_is_read_all_the_same(
    name: str, tmp_path: Path
) -> None:
    waits = asyncio.Event()

    def script(call: ScriptedCall) -> Reply:
        if call.index == 0:
            return commands(name, "echo started > said")[0]
        waits.set()
        return Reply("Late.", first_ms=600_000)

    async with launcher(name, script, tmp_path) as launch, asyncio.TaskGroup() as both:
        launched = both.create_task(launch("Start."))
        await waits.wait()
        await launch.sandbox.kill_all()
        ran = await launched
        said = await launch.sandbox.run(["cat", "said"])
    assert ran.done.exit.cause is not Cause.EXITED
    assert ran.result.status is Status.FAILED
    assert ran.result.usage is None or ran.result.usage.n_calls in (1, 2)
    assert said.stdout.data == b"started\n"
