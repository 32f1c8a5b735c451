"""Starting an engine: the flags, the guesses, the words of failure, and its end."""

import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from budwood.proxy.engine import environment, launch
from budwood.proxy.engine.environment import find_python
from budwood.proxy.engine.launch import Launch, command, engine_running, flags, variables
from budwood.proxy.engine.launch_errors import LaunchError, hint
from budwood.proxy.engine.parsers import Parsers, guess_parsers
from budwood.proxy.testing.chat_template import CHAT_TEMPLATE


def test_the_flags_of_exact_recording_are_always_there():
    words = flags(Launch("m", tool_parser="hermes", reasoning_parser="qwen3"), 1)
    text = " ".join(words)
    for wanted in (
        "--generation-config vllm", "--logprobs-mode processed_logprobs", "--enable-scale-out",
        "--enable-prefix-caching", "--enable-auto-tool-choice --tool-call-parser hermes",
        "--reasoning-parser qwen3", "--host 127.0.0.1 --port 1",
    ):  # fmt: skip
        assert wanted in text


def test_flags_of_the_user_come_last():
    words = flags(Launch("m", extra=("--seed", "3")), 1)
    assert words[-2:] == ["--seed", "3"]


def test_no_parser_can_be_asked_for():
    assert not any("parser" in word for word in flags(Launch("m"), 1))
    none = Launch("qwen3-x", tool_parser="none", reasoning_parser="none")
    assert not any("parser" in word for word in flags(none, 1))


def test_the_cpu_build_is_started_through_its_launcher(tmp_path):
    words = command(Launch("m", cpu=True), tmp_path / "python", 1)
    assert words[1] == "-P"
    assert words[2].endswith("vllm_cpu_launcher.py")
    assert "--enforce-eager" in words
    assert variables(Launch("m", cpu=True, kv_cache_gib=2))["VLLM_CPU_KVCACHE_SPACE"]
    assert "VLLM_SERVER_DEV_MODE" not in variables(Launch("m"))


def test_the_launcher_lets_a_waiting_engine_nap_and_names_the_package(tmp_path):
    """A loop of `sched_yield` keeps all other processes of a small machine from running."""
    entry = tmp_path / "vllm" / "entrypoints" / "cli" / "main.py"
    entry.parent.mkdir(parents=True)
    for package in entry.parents[:3]:
        (package / "__init__.py").touch()
    entry.write_text(
        "import importlib.metadata, os, sys\n"
        "def main():\n"
        "    importlib.metadata.version('vllm')\n"
        "    print(os.sched_yield.__module__, sys.argv)\n"
    )
    (tmp_path / "vllm_cpu-9.dist-info").mkdir()
    (tmp_path / "vllm_cpu-9.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 9\n"
    )
    launcher = Path(launch.__file__).with_name("vllm_cpu_launcher.py")
    done = subprocess.run(
        [sys.executable, "-P", str(launcher), "serve"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "__main__ ['vllm', 'serve']\n"


@pytest.mark.parametrize(
    ("name", "parsers"),
    [
        ("Qwen/Qwen3-8B", Parsers("hermes", "qwen3")),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", Parsers("qwen3_coder", None)),
        ("Qwen/Qwen2.5-7B-Instruct", Parsers("hermes", None)),
        ("openai/gpt-oss-20b", Parsers("openai", "openai_gptoss")),
        ("zai-org/GLM-4.6", Parsers(None, None)),
        ("moonshotai/Kimi-K2-Instruct", Parsers("kimi_k2", "kimi_k2")),
        ("meta-llama/Llama-3.1-8B-Instruct", Parsers("llama3_json", None)),
        ("somebody/unheard-of", Parsers(None, None)),
    ],
)
def test_parsers_are_guessed_from_a_name(name, parsers):
    assert guess_parsers(name) == parsers


def test_the_template_s_markup_decides_where_it_can_be_read(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    assert guess_parsers(str(tmp_path)) == Parsers("hermes", "qwen3")
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert guess_parsers(str(tmp_path)) == Parsers(None, None)


def test_every_guess_is_a_parser_of_the_installed_vllm():
    # Read from the source: importing vLLM takes most of a minute.
    import importlib.util
    import re
    from pathlib import Path

    from budwood.proxy.engine.parsers import _BY_MARKUP, _BY_TYPE

    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        return  # the light set of packages
    folder = Path(spec.origin).parent
    known = {
        kind: set(re.findall(r'"([a-z0-9_]+)": ?\(', (folder / kind / "__init__.py").read_text()))
        for kind in ("tool_parsers", "reasoning")
    }
    tools = {name for _, name in _BY_MARKUP} | {tool for _, tool, _ in _BY_TYPE if tool}
    assert tools <= known["tool_parsers"]
    assert {reasoning for _, _, reasoning in _BY_TYPE if reasoning} <= known["reasoning"]


@pytest.fixture
def fake_python(tmp_path):
    """An 'interpreter' that plays vLLM: a shell script; `{port}` stands for the port it is told."""

    def make(body):
        path = tmp_path / "python"
        find_port = 'while [ "$1" != --port ]; do shift; done; port=$2\n'
        path.write_text(f"#!/bin/sh\n{find_port}{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return make


def test_progress_is_told_and_all_processes_end(fake_python, tmp_path):
    child = tmp_path / "child"
    python = fake_python(
        f"sleep 300 & echo $! > {child}\n"
        "echo 'Resolved architecture: X'; echo 'Loading weights took 1 s'\n"
        f"{sys.executable} -m budwood.proxy.testing.scripted_engine --port $port"
    )
    said = []
    with engine_running(Launch("m", port=0, python=python), say=said.append) as running:
        assert running.is_alive
        assert running.url.startswith("http://127.0.0.1:")
    text = "\n".join(said)
    assert "model found" in text
    assert "weights loaded" in text
    assert f"ready at {running.url}/v1" in text
    assert not running.is_alive
    pid = int(child.read_text())
    deadline = time.monotonic() + 10
    while _is_running(pid):
        assert time.monotonic() < deadline, "a process outlived the engine"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_an_engine_does_not_outlive_a_killed_command(fake_python):
    python = fake_python(
        f"exec {sys.executable} -m budwood.proxy.testing.scripted_engine --port $port"
    )
    command = """
import pathlib, sys, time
from budwood.proxy.engine.launch import Launch, engine_running
with engine_running(Launch("m", port=0, python=pathlib.Path(sys.argv[1]))) as running:
    print(running.pid, flush=True)
    time.sleep(300)
"""
    with subprocess.Popen(
        [sys.executable, "-c", command, str(python)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
    deadline = time.monotonic() + 60
    while _is_running(pid):
        assert time.monotonic() < deadline, "the engine outlived its command"


def _is_running(pid):
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as file:
            return file.read().split()[2] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_an_engine_that_dies_says_why_and_what_to_do(fake_python):
    python = fake_python("echo 'ValueError: invalid tool call parser: nope'; exit 3")
    with pytest.raises(LaunchError) as failed:
        with engine_running(Launch("m", port=0, python=python)):
            pass
    assert "code 3" in str(failed.value)
    assert "invalid tool call parser: nope" in str(failed.value)
    assert "--tool-parser" in str(failed.value)


def test_a_port_that_another_server_has_is_not_taken_for_the_engine(fake_python):
    python = fake_python("sleep 300")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(LaunchError, match=f"127.0.0.1:{port} cannot be listened on"):
            with engine_running(Launch("m", port=port, python=python)):
                pass


def test_an_engine_that_never_answers_is_ended(fake_python):
    python = fake_python("sleep 300")
    with pytest.raises(LaunchError, match="in time"):
        with engine_running(Launch("m", port=0, python=python), ready_s=0.5):
            pass


def test_an_unknown_failure_gives_no_hint():
    assert hint(["something else"]) is None


def test_without_vllm_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(environment, "has_vllm", lambda *, cpu: False)
    with pytest.raises(LaunchError, match=r"budwood\[vllm\]"):
        find_python(cpu=False, say=print)


def test_a_private_environment_that_is_ready_is_used_again(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "has_vllm", lambda *, cpu: False)
    if sys.platform != "linux":
        return
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    (tmp_path / "budwood-ready").touch()
    assert find_python(cpu=True, say=print, folder=tmp_path) == tmp_path / "bin" / "python"


def test_what_the_cpu_build_needs_leaves_out_what_does_not_fit():
    import importlib.metadata

    try:
        importlib.metadata.version("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return  # the light set of packages
    done = subprocess.run(
        [sys.executable, "-c", environment._REQUIREMENTS],
        capture_output=True,
        text=True,
        check=True,
    )
    names = done.stdout.splitlines()
    assert [name for name in names if name.startswith("torch")] == ["torch==2.13.0"]
    assert any(name.startswith("transformers") for name in names)
