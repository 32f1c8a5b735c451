"""Grades what an agent has left: runs the verifier in the same place and reads what it says.

The order is Harbor's (harbor 0.26.0, `verifier/verifier.py`), with more steps against work that was
left to deceive: every process that still runs is ended before the verifier comes and once it has
ended; everything in /tests and all old rewards and reports are gone before; folders that were
closed are opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from ..errors import NoRoom, Unusable
from .evidence import report_path
from .folder import Task
from .place import TESTS, VERIFIER_LOGS, ExecResult, Place, keep_house
from .variables import fill
from .verdict import Evidence, Verdict, failed_verifier, judge

REWARD_JSON = f"{VERIFIER_LOGS}/reward.json"
REWARD_TXT = f"{VERIFIER_LOGS}/reward.txt"
REPORT = f"{VERIFIER_LOGS}/ctrf.json"

# A folder in whose place a link was left is a folder again; one that is a mount can't be removed.
# What was closed is opened, from the top down: whoever closed it would have the verifier fail.
_CLEAR = """
open() {
  path=
  rest=$1/
  while [ -n "$rest" ]; do
    path=$path${rest%%/*}
    rest=${rest#*/}
    [ ! -d "$path" ] || chmod u+rwx -- "$path" 2>/dev/null || :
    path=$path/
  done
}
remove() {
  [ -L "$1" ] || [ ! -e "$1" ] || chmod -R u+rwX -- "$1"
  rm -rf -- "$1"
}
tests=$1 logs=$2 report=$3 workdir=$4; shift 4
open "$workdir"
[ -d "$workdir" ] || { rm -rf -- "$workdir"; mkdir -p -- "$workdir"; }
open "$tests"
open "$logs"
for folder in "$tests" "${logs%/*}" "$logs"; do
  if [ -L "$folder" ] || [ ! -d "$folder" ]; then rm -rf -- "$folder"; fi
  mkdir -p -- "$folder"
done
chmod -R u+rwX -- "$tests"
find "$tests" -mindepth 1 -delete
open "${report%/*}"
remove "$report"
for reward; do remove "$reward"; done
chmod a+rwx -- "$logs"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """A verdict and what it rests on."""

    verdict: Verdict
    output: bytes = b""
    """What test.sh said, stdout and stderr in their order."""
    report: bytes | None = None
    """Its CTRF report, as it came."""


async def grade(
    task: Task,
    place: Place,
    *,
    variables: Mapping[str, str] | None = None,
    reward_key: str | None = None,
    pass_at: float = 1.0,
) -> Grade:
    """Run the task's verifier in the place where the agent was, and return what it found.

    Every process there is ended first.

    variables: values for the `${NAME}` of the task's `env` tables; raises MissingVariable.
    Other arguments as in `judge`. The place's own errors pass through unchanged.
    """
    env = verifier_env(task, variables or {})
    report_at = _report_at(task)
    await place.kill_all()
    try:
        paths = [TESTS, VERIFIER_LOGS, report_at, task.workdir, REWARD_JSON, REWARD_TXT]
        await keep_house(place, _CLEAR, *paths)
        await place.put_tree(task.tests_dir, TESTS)
        await keep_house(place, 'chmod +x -- "$1"', f"{TESTS}/test.sh")
    except (Unusable, NoRoom) as error:
        cause = "no_room" if isinstance(error, NoRoom) else "verifier_error"
        text = f"the tests could not be laid out: {error}"
        return Grade(verdict=failed_verifier(cause, text))
    ended = await _run_tests(task, place, env)
    # The work ran too, and what it left running could change the reward once it is written.
    await place.kill_all()
    evidence = Evidence(
        ended=ended,
        script=task.test_script,
        reward_json=await place.read(REWARD_JSON),
        reward_txt=await place.read(REWARD_TXT),
        report=await place.read(report_at),
    )
    verdict = judge(evidence, reward_key=reward_key, pass_at=pass_at)
    return Grade(verdict=verdict, output=ended.stdout + ended.stderr, report=evidence.report)


def verifier_env(task: Task, variables: Mapping[str, str]) -> dict[str, str]:
    """Return what the verifier finds in its environment; raises MissingVariable."""
    config = task.config
    return {
        **fill(config.environment.env, variables, table="environment"),
        **fill(config.verifier.env, variables, table="verifier"),
    }


async def _run_tests(task: Task, place: Place, env: Mapping[str, str]) -> ExecResult:
    """Run test.sh with its two streams joined, so that what came first stands first."""
    return await place.exec(
        ["sh", "-c", 'exec "$0" 2>&1', f"{TESTS}/test.sh"],
        env=env,
        cwd=task.workdir,
        timeout_s=task.config.verifier.timeout_sec,
    )


def _report_at(task: Task) -> str:
    """Return where to look for the CTRF report: where the script says, if it says it plainly."""
    path = report_path(task.test_script)
    if path is None or "$" in path:
        return REPORT
    return str(PurePosixPath(task.workdir) / path)
