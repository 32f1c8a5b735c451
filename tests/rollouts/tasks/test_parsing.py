"""What `task.toml` says, and what is said of one that is wrong."""

import copy
import pickle
import tomllib
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from budwood.rollouts import BrokenTask, Problem
from budwood.rollouts.tasks.config import TaskConfig
from budwood.rollouts.tasks.parsing import parse_config

FILE = Path("task.toml")
EVERY_KEY = """
schema_version = "1.4"
source = "somewhere"
multi_step_reward_strategy = "final"
artifacts = ["/app/out", {source = "/app/log", destination = "l", exclude = ["*.o"], service = "a"}]

[task]
name = "org/task"
version = "2"
description = "d"
keywords = ["a"]
authors = [{ name = "A", email = "a@example.com" }]

[metadata]
anything = { goes = [1, "two"] }

[metadata.budwood]
local = true
split = "train"

[agent]
timeout_sec = 120
user = "agent"
network_mode = "allowlist"
allowed_hosts = ["Example.com", "*.example.org", "192.0.2.1", "2001:db8::/32"]

[verifier]
timeout_sec = 60.5
env = { KEY = "${KEY:-x}" }
user = 1000
network_mode = "no-network"
environment_mode = "separate"

[verifier.environment]
docker_image = "verifier:1"

[[verifier.collect]]
command = "dump"
service = "db"
timeout_sec = 5
user = "postgres"

[environment]
build_timeout_sec = 900
docker_image = "image:1"
os = "Linux"
cpus = 0.5
memory_mb = 2048
storage_mb = 10240
gpus = 1
gpu_types = ["H100"]
tpu = { type = "v6e", topology = "2x4" }
env = { A = "${A}" }
skills_dir = "/skills"
workdir = "/work"
network_mode = "public"

[environment.healthcheck]
command = "true"
interval_sec = 1
timeout_sec = 2
start_period_sec = 3
start_interval_sec = 4
retries = 5

[[environment.mcp_servers]]
name = "web"
transport = "http"
url = "http://localhost:8000/mcp"
headers = { Authorization = "Bearer ${TOKEN}" }

[[environment.mcp_servers]]
name = "tool"
transport = "stdio"
command = "tool"
args = ["--x"]

[solution]
env = { B = "b" }

[[steps]]
name = "one"
min_reward = 0.5
artifacts = ["/a"]

[steps.agent]
timeout_sec = 1

[steps.verifier]
timeout_sec = 2

[steps.healthcheck]
command = "true"

[[steps]]
name = "two"
min_reward = { reward = 1, style = 0.2 }
"""


def parse(text: str) -> TaskConfig:
    return parse_config(text, FILE)


def problems(text: str) -> list[str]:
    with pytest.raises(BrokenTask) as caught:
        parse(text)
    return [str(problem) for problem in caught.value.problems]


def unset(table: BaseModel, path: str = "") -> list[str]:
    """Return every key of a value that was left at its default."""
    missing = [
        f"{path}{key}" for key in type(table).model_fields if key not in table.model_fields_set
    ]
    for key in table.model_fields_set:
        value = getattr(table, key)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, BaseModel):
                missing += unset(each, f"{path}{key}.")
    return missing


def test_every_key_of_the_format_is_read():
    config = parse(EVERY_KEY)
    optional = ("verifier.environment.", "verifier.allowed", "environment.allowed", "steps.")
    optional += ("artifacts.", "environment.mcp_servers.", "verifier.collect.")
    assert [key for key in unset(config) if not key.startswith(optional)] == []
    assert config.task is not None
    assert config.task.name == "org/task"
    assert config.metadata.budwood.local
    assert config.agent.allowed_hosts == (
        "example.com", "*.example.org", "192.0.2.1", "2001:db8::/32",
    )  # fmt: skip
    assert config.verifier.is_separate
    assert config.verifier.user == 1000
    assert config.environment.os == "linux"
    assert config.environment.mcp_servers[0].transport == "streamable-http"
    assert [artifact.source for artifact in config.artifacts] == ["/app/out", "/app/log"]
    assert [step.min_reward for step in config.steps] == [
        {"reward": 0.5}, {"reward": 1, "style": 0.2},
    ]  # fmt: skip


def test_an_empty_file_has_the_formats_defaults():
    config = parse("")
    assert config.verifier.timeout_sec == 600
    assert config.agent.timeout_sec is None
    assert config.environment.network_mode is None
    assert not config.metadata.budwood.local
    assert not config.verifier.is_separate


def test_old_keys_are_read_as_their_successors():
    config = parse(
        'version = "1.0"\n[environment]\nmemory = "2G"\nstorage = "512M"\nallow_internet = false\n'
    )
    assert config.schema_version == "1.0"
    assert config.environment.memory_mb == 2048
    assert config.environment.storage_mb == 512
    assert config.environment.network_mode == "no-network"
    assert parse("[environment]\nallow_internet = true").environment.network_mode == "public"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('version = "1.0"\nschema_version = "1.4"', "version says '1.0'"),
        ('[environment]\nmemory = "2G"\nmemory_mb = 1', "memory says 2048 and memory_mb says 1"),
        ('[environment]\nmemory = "lots"', 'environment: memory: wants a size such as "2G"'),
        ('[environment]\nallow_internet = "no"', "allow_internet: wants true or false"),
    ],
)
def test_an_old_key_that_contradicts_or_is_wrong_is_an_error(text, said):
    assert said in problems(text)[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[verifier]\ntimeout = 5",
         "verifier.timeout: is not a key that is known here; did you mean timeout_sec?"),
        ("[environment]\nmemry = '2G'", "environment.memry: is not a key that is known here; "
         "did you mean memory?"),
        ("[metadata.budwood]\nlocl = true", "metadata.budwood.locl: is not a key that is known "
         "here; did you mean local?"),
        ("[[steps]]\nname = 'a'\n[steps.verifier.environment]\nworkdr = '/'",
         "steps[0].verifier.environment.workdr: is not a key that is known here; "
         "did you mean workdir?"),
        ("artifacts = [{ sourc = '/a' }]", "artifacts[0].sourc: is not a key that is known here; "
         "did you mean source?"),
        ("[solution]\nzzz = 1", "solution.zzz: is not a key that is known here; take it out, "
         "or move it into [metadata]; known here: env"),
    ],
)  # fmt: skip
def test_an_unknown_key_is_named_with_the_near_one(text, said):
    assert said in problems(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[verifier]\ntimeout_sec = "10"', "verifier.timeout_sec: wants a number, found '10'"),
        ("[verifier]\ntimeout_sec = true", "verifier.timeout_sec: wants a number, found true"),
        ("[verifier]\ntimeout_sec = 0", "verifier.timeout_sec: wants greater than 0, found 0"),
        ("[verifier]\nenv = { A = 1 }", "verifier.env.A: wants text in quotes, found 1"),
        ("[agent]\nuser = true", "agent.user: wants a user's name or number, found True"),
        ("[environment]\ncpus = nan", "environment.cpus: wants a finite number, found nan"),
        ("[environment]\nmemory_mb = 1.5", "environment.memory_mb: wants a whole number, found"),
        ('[environment]\nos = "mac"', 'environment.os: wants "linux" or "windows", found \'mac\''),
        ('[environment]\nworkdir = "app"', "environment.workdir: wants an absolute path"),
        ('[metadata.budwood]\nlocal = "yes"', "metadata.budwood.local: wants true or false"),
        ('[task]\nname = "plain"', "task.name: wants org/name"),
        ("[task]\nversion = '1'", "task.name: is missing; add it"),
        ('schema_version = "2.0"', 'schema_version: wants "1.0", "1.1", "1.2", "1.3" or "1.4"'),
        ("verifier = 3", "verifier: wants a table, found 3"),
        ("steps = 3", "steps: wants a list in [ ], found 3"),
        ('[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["http://x.org"]',
         "agent.allowed_hosts[0]: wants host names"),
        ('[agent]\nallowed_hosts = ["x.org"]', "agent: allowed_hosts is only read with"),
        ('[verifier]\nenvironment_mode = "shared"\nenvironment = {}',
         'verifier: environment_mode = "shared" has no [verifier.environment]'),
        ('[[environment.mcp_servers]]\nname = "a"',
         'environment.mcp_servers[0]: transport = "sse" wants the key url'),
        ('artifacts = ["/a/../b"]', "artifacts[0].source: wants a path without"),
        ('[[steps]]\nname = "a"\n[[steps]]\nname = "A"', "steps: wants a name of its own"),
        ('[[steps]]\nname = "../a"', "steps[0].name: wants the name of a folder"),
        ("a = [", "is not TOML"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_with_its_key_and_what_is_wanted(text, said):
    assert [problem for problem in problems(text) if said in problem]


def test_all_problems_are_told_at_once_below_the_file():
    with pytest.raises(BrokenTask) as caught:
        parse("[agent]\nuser = true\n[solution]\nenv = 3")
    assert str(caught.value).splitlines() == [
        "task.toml:",
        "  agent.user: wants a user's name or number, found True",
        "  solution.env: wants a table, found 3",
    ]
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert isinstance(again.problems[0], Problem)


def test_what_was_read_can_not_be_changed():
    config = parse("")
    with pytest.raises(ValueError, match="frozen"):
        config.schema_version = "1.0"  # pyright: ignore[reportAttributeAccessIssue]


def test_the_tests_file_has_every_key_there_is():
    """Held to the models: a key added to them must be added to `EVERY_KEY`."""
    given = tomllib.loads(EVERY_KEY)
    given["environment"]["allowed_hosts"] = []
    assert _keys(TaskConfig) <= _given(copy.deepcopy(given))


def _keys(table: type[BaseModel]) -> set[str]:
    keys: set[str] = set(table.model_fields)
    for field in table.model_fields.values():
        for part in _models(field.annotation):
            keys |= _keys(part)
    return keys


def _models(annotation) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


def _given(value) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*(_given(part) for part in value.values()))
    if isinstance(value, list):
        return set().union(*(_given(part) for part in value))
    return set()
