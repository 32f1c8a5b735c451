"""The manual describes what is here, and what it prints can be typed."""

import asyncio
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel
from typer.main import get_command

from budwood.cli import COMMANDS, app, load_command
from budwood.harness_adapters import ADAPTERS, GENERIC, LAUNCHED, Endpoint, HarnessError
from budwood.proxy.admin import Admin
from budwood.proxy.engine.exactness import Inexact
from budwood.proxy.engine.info import Problem
from budwood.proxy.lineage.reasons import Reason
from budwood.proxy.testing import Reply, ScriptedEngine
from budwood.rollouts.tasks import TaskConfig
from budwood.sandbox import Cause, SandboxError
from budwood.trainers import GrpoConfig, SftConfig
from budwood.trajectory_store import CAUSES, CallState, FailureClass, Store
from budwood.trajectory_store.export import EXPORTERS
from budwood.trajectory_store.why import FLAGS

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("proxy", "trajectory_store", "harness_adapters", "sandbox", "rollouts", "trainers")
AGENT = """#!{python}
import json, os, urllib.request

messages = [dict(role="user", content="hi")]
for _ in range(2):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(dict(model="any", messages=messages)).encode(),
        dict([("Content-Type", "application/json")]),
    )
    with urllib.request.urlopen(request) as answer:
        messages.append(json.load(answer)["choices"][0]["message"])
    messages.append(dict(role="user", content="go on"))
"""


def page(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def manual() -> str:
    return "\n".join([page("README.md"), *(path.read_text("utf-8") for path in guides())])


def guides() -> list[Path]:
    return sorted((ROOT / "docs").glob("*.md"))


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def coded(text: str) -> set[str]:
    """Return every word that stands in code marks."""
    return {
        word for code in re.findall(r"`([^`\n]+)`", text) for word in re.split(r"[ =|,]+", code)
    }


def run_script(name: str, *arguments: str) -> None:
    command = [sys.executable, str(ROOT / "docs" / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_link_of_the_manual_leads_somewhere():
    run_script("links.py")


def test_the_page_of_settings_says_what_the_models_say():
    run_script("settings.py", "--check")


def test_every_target_of_make_is_explained():
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    for target in ("setup", "demo", "test", "lint", "docs", "bench"):
        assert f"make {target} " in listed.stdout


def test_every_page_is_in_the_map_of_the_readme():
    missing = [path.name for path in guides() if f"(docs/{path.name})" not in page("README.md")]
    assert missing == []


def test_every_command_is_in_the_manual():
    missing = [name for name in COMMANDS if f"budwood {name}" not in manual()]
    assert missing == []


def verbs(name: str) -> list:
    """Return a command, or those below it."""
    command = load_command(name)
    return list(getattr(command, "commands", {}).values()) or [command]


def test_every_option_of_every_command_is_in_the_manual():
    words = set(re.findall(r"--[a-z][a-z-]+", manual()))
    missing = [
        f"{name} {option}"
        for name in COMMANDS
        for command in verbs(name)
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--") and option != "--help" and option not in words
    ]
    assert missing == []


def test_the_manual_names_no_command_that_is_not_there():
    given = "\n".join(block for block in blocks(manual(), "sh"))
    named = set(re.findall(r"^\s*budwood ([a-z]+)", given, re.MULTILINE))
    assert named
    assert named <= set(COMMANDS)
    assert get_command(app) is not None


@pytest.mark.parametrize(
    ("where", "codes"),
    [
        ("docs/exactness.md", [*Reason, *Inexact, *FLAGS]),
        ("docs/engines.md", [*Problem]),
        ("docs/store.md", [*FailureClass, *CAUSES, *CallState]),
        ("docs/exports.md", [*EXPORTERS]),
        ("docs/harnesses.md", [*LAUNCHED, *(e.__name__ for e in HarnessError.__subclasses__())]),
        ("docs/sandbox.md", [*Cause, *(error.__name__ for error in SandboxError.__subclasses__())]),
    ],
)
def test_every_code_is_explained(where, codes):
    missing = {str(code) for code in codes} - coded(page(where))
    assert missing == set()


def test_every_reason_for_leaving_out_is_explained():
    gate = (ROOT / "trajectory_store" / "export" / "gate.py").read_text("utf-8")
    sequences = (ROOT / "trajectory_store" / "sequences.py").read_text("utf-8")
    codes = {*re.findall(r'return "([a-z_]+)"', gate + sequences), "reward_none"}
    codes |= set(re.findall(r'left_out\["([a-z_]+)"\]', gate))
    assert {"no_logprobs", "no_ids", "undelivered", "nothing_to_train"} <= codes
    assert codes - coded(page("docs/exports.md")) == set()


def test_every_key_of_a_task_is_in_the_manual():
    missing = _keys(TaskConfig) - coded(page("docs/tasks.md"))
    assert missing == set()


@pytest.mark.parametrize("model", [GrpoConfig, SftConfig])
def test_every_key_of_a_training_run_is_in_the_manual_with_its_default(model):
    rows = dict(re.findall(r"^\| `([a-z_.0-9]+)` \| ([^|]+) \|", page("docs/training.md"), re.M))
    for name, default in _defaults(model):
        assert name in rows, name
        if model is GrpoConfig or name not in ("optimizer.learning_rate",):
            assert rows[name].strip() == default, name


def _defaults(model, before=""):
    """Yield the dotted name and the default of each field, as the manual spells them."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _defaults(kind, f"{before}{name}.")
        elif field.is_required():
            yield before + name, "must be given"
        else:
            yield before + name, f"`{_spelled(field.default)}`"


def _spelled(value) -> str:
    if value is None:
        return "none"
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def _keys(kind) -> set[str]:
    """Return the keys of a table and of those in it."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        fields = kind.model_fields
        return set(fields).union(*(_keys(field.annotation) for field in fields.values()))
    return set().union(*map(_keys, get_args(kind)))


def test_every_admin_route_is_in_the_manual():
    recorder = rollouts = None
    routes = Admin(recorder, rollouts, "").app().router.resources()  # pyright: ignore
    missing = [
        resource.canonical
        for resource in routes
        if resource.canonical.replace("{id}", "ID") not in page("docs/recording.md")
    ]
    assert missing == []


def test_every_benchmark_is_in_the_manual():
    programs = [
        path.stem for path in (ROOT / "bench").glob("*.py") if "__main__" in path.read_text("utf-8")
    ]
    assert "store" in programs
    missing = [name for name in programs if f"bench.{name}" not in page("docs/benchmarks.md")]
    assert missing == []


def test_the_table_of_harnesses_says_what_each_adapter_sets():
    endpoint = Endpoint("http://127.0.0.1:1", "bw_x", "m", 8192, 1024)
    rows = re.findall(r"^\| (.+?) \| (.+?) \| ((?:chat|responses|messages|gemini)\b.*) \|$",
                      page("README.md"), re.MULTILINE)  # fmt: skip
    told = {_plain(name): row for row in rows for name in row[0].split(", ")}
    for adapter in ADAPTERS.values():
        name = "anything on an OpenAI SDK" if adapter is GENERIC else adapter.name
        _, obeys, dialect = told.pop(_plain(name))
        assert adapter.dialect is None or dialect.startswith(adapter.dialect.value)
        pointing = adapter.point(["x"], endpoint, Path("/home"), Path("/work"))
        known = {*pointing.env, *(Path(name).name for name in pointing.files)}
        named = set(re.findall(r"`([A-Za-z_.]+)`", obeys))
        assert named
        assert named <= known, adapter.name
    assert told == {}


def _plain(name: str) -> str:
    return re.sub("[^a-z]", "", name.lower()).removesuffix("code")


@pytest.mark.parametrize("room", ROOMS)
def test_a_rooms_readme_is_short_and_its_example_runs(room, tmp_path, request):
    if room == "sandbox":
        request.getfixturevalue("namespaces")
    if room == "trainers":
        pytest.importorskip("numpy")
    text = page(f"{room}/README.md")
    assert len(text.splitlines()) < 70
    (example,) = blocks(text, "python")
    assert run_example(example, tmp_path).strip()


def run_example(example: str, folder: Path) -> str:
    command = [sys.executable, "-c", example]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_of_sandboxes_runs(namespaces, tmp_path):
    (example,) = blocks(page("docs/sandbox.md"), "python")
    assert run_example(example, tmp_path) == "0 hello from /work\n\nleft out: []\n"
    assert (tmp_path / "results/said").read_text() == "hello from /work\n"


async def test_the_readmes_commands_record_and_export_and_the_stores_example_runs(tmp_path):
    """Its second block, with a harness and a scripted engine where the reader's stand."""
    given = next(block for block in blocks(page("README.md"), "sh") if "my-agent" in block)
    typed = [line.split("#")[0].strip() for line in given.splitlines()]
    assert "pip install '.[vllm]'" in typed[0]
    assert typed[1] == "budwood engine MODEL"
    agent = tmp_path / "my-agent"
    agent.write_text(AGENT.format(python=sys.executable))
    agent.chmod(0o755)
    async with ScriptedEngine(lambda _: Reply("Hello.")) as engine:
        environment = {
            **os.environ,
            "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "BUDWOOD_STORE__URL": "first.db",
            "BUDWOOD_PROXY__ENGINE__URLS": engine.url,
        }
        process = await asyncio.create_subprocess_exec(
            "sh", "-e", "-c", "\n".join(typed[2:]), cwd=tmp_path, env=environment,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert "exact     2/2 (100 %)" in err.decode()
    assert "1 rows of 1 rollouts" in out.decode()

    (example,) = blocks(page("docs/store.md"), "python")
    command = [sys.executable, "-c", example]
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    with Store.open(tmp_path / "first.db", read_only=True) as store:
        assert store.outcome(store.select("last")[0]).by == "example"


@pytest.mark.usefixtures("namespaces")
def test_the_example_of_the_page_of_tasks_runs():
    (example,) = blocks(page("docs/tasks.md"), "python")
    command = [sys.executable, "-c", example]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"budwood/sort-unique-held-out-{number} True ()" for number in (1, 2, 3)
    ]


def test_the_tutorial_and_the_manual_hold_only_python_that_compiles():
    for path in guides():
        for block in blocks(path.read_text("utf-8"), "python"):
            compile(block, path.name, "exec")


def test_every_setting_has_a_row():
    spec = importlib.util.spec_from_file_location("docs_settings", ROOT / "docs" / "settings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert len(module.names()) > 30
    assert [
        name for name in module.names() if f"| `{name}` |" not in page("docs/settings.md")
    ] == []
