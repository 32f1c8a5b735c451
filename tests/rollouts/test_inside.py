"""What an agent finds where it works: its task, the model, and nothing that would help it cheat."""

import secrets
import tarfile

import pytest

from .scripted import TEST, Model, running, write_task

pytestmark = pytest.mark.usefixtures("namespaces")

SEARCH = """
found() {
  find / \\( -path /proc -o -path /usr -o -path /opt/harness -o -path /.budwood \\) -prune -o \\
    \\( -name test.sh -o -name solve.sh -o -name '*HIDDEN*' \\) -print
  grep -rlsI HIDDEN / --exclude-dir=proc --exclude-dir=usr --exclude-dir=bin --exclude-dir=lib \\
    --exclude-dir=harness --exclude-dir=.budwood --exclude=seen.txt
  for process in /proc/[0-9]*; do tr '\\0' '\\n' < $process/environ | grep HIDDEN; done
}
found 2>/dev/null >> seen.txt
true
"""
ASK = """
url=$(tr '\\0' '\\n' < /proc/$PPID/environ | sed -n 's#^OPENAI_BASE_URL=http://##p')
port=${url%%/*}
port=${port#*:}
ask() {
  exec 3<>/dev/tcp/127.0.0.1/$port
  printf "$2 $3 HTTP/1.0\\r\\nHost: x\\r\\nContent-Length: 2\\r\\n\\r\\n{}" >&3
  echo $1 $(head -n 1 <&3 | cut -d ' ' -f 2) >> seen.txt
}
ask own GET /${url#*/}/models
for path in /admin/engine /metrics; do ask $path GET $path; done
for path in /admin/rollouts /admin/policy /v1/chat/completions /r/x/v1/chat/completions; do
  ask $path POST $path
done
"""


async def seen(folder, *commands):
    """Make a rollout with these commands, HIDDEN being what it must not find; return its words."""
    hidden = f"hidden{secrets.token_hex(8)}"
    place = folder / "tasks" / "right"
    task = write_task(place, test=f"{TEST}# {hidden}\n")
    (place / "solution").mkdir()
    (place / "solution/solve.sh").write_text(f"#!/bin/sh\n# {hidden}\n")
    (folder / f"{hidden}.txt").write_text(hidden)
    # The commands themselves must not be what is found.
    said = [command.replace("HIDDEN", f"[{hidden[0]}]{hidden[1:]}") for command in commands]
    async with running(folder, Model({"right": said})) as go:
        await go([task], retries=0)
    [kept] = (folder / "runs").rglob("workdir.tar")
    with tarfile.open(kept) as tar:
        file = tar.extractfile("seen.txt")
        assert file is not None
        return file.read().decode().splitlines()


async def test_neither_tests_nor_solution_nor_the_hosts_files_are_in_sight(tmp_path, monkeypatch):
    monkeypatch.setenv("OF_THE_HOST", "hidden")
    assert await seen(tmp_path, SEARCH) == []


async def test_the_search_finds_what_is_there(tmp_path):
    own = "echo HIDDEN | tr -d [] > own; cp own test.sh; A=$(cat own) sleep 1000 & sleep 1"
    found = await seen(tmp_path, own, SEARCH)
    assert {line.rpartition("/")[2] for line in found} >= {"own", "test.sh"}
    assert any(line.startswith("A=hidden") for line in found)


async def test_of_the_proxy_only_the_rollouts_own_path_answers(tmp_path):
    asked = dict(line.split() for line in await seen(tmp_path, ASK))
    assert asked == {
        "own": "200",
        "/admin/engine": "404",
        "/admin/rollouts": "404",
        "/admin/policy": "404",
        "/metrics": "404",
        "/v1/chat/completions": "401",
        "/r/x/v1/chat/completions": "401",
    }
