"""Which harness a command is."""

import pickle

import pytest

from budwood.harness_adapters import ADAPTERS, UnknownHarness, adapter_named, adapter_of


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("mini --yolo", "mini-swe-agent"),
        ("/opt/x/bin/mini-swe-agent -t y", "mini-swe-agent"),
        ("python -m minisweagent.run.mini", "mini-swe-agent"),
        ("python3.12 -u -m minisweagent", "mini-swe-agent"),
        ("uvx --from mini-swe-agent mini", "mini-swe-agent"),
        ("uv run mini -t x", "mini-swe-agent"),
        ("pi --print hello", "pi"),
        ("env -u X A=b pi hello", "pi"),
        ("timeout 10 nice -n 5 pi hello", "pi"),
        ("npx -y @earendil-works/pi-coding-agent@1.6.0 hi", "pi"),
        ("node x/node_modules/@earendil-works/pi-coding-agent/dist/bundle/cli.js", "pi"),
        ("C:\\tools\\pi.cmd hello", "pi"),
        ("python -m budwood.harness_adapters.react hi", "react"),
        ("codex exec hi", "codex"),
        ("claude -p hi", "claude-code"),
        ("openclaw agent exec hi", "openclaw"),
        ("zeroclaw agent -a main", "zeroclaw"),
        ("gemini --yolo", "gemini-cli"),
        ("qwen --yolo", "qwen-code"),
        ("kimi --prompt x", "kimi"),
        ("hermes chat", "hermes"),
        ("aider --message x", "aider"),
        ("opencode run x", "opencode"),
        ("vibe --prompt x", "vibe"),
        ("python agent.py pi", "generic"),
        ("python -c 'import pi' pi", "generic"),
        ("bash -c pi", "generic"),
        ("./my-agent --harness pi", "generic"),
    ],
)
def test_a_harness_is_known_by_its_program(command: str, name: str) -> None:
    assert adapter_of(command.split(" ")).name == name


def test_a_harness_is_found_by_its_name_or_its_program() -> None:
    assert adapter_named("claude").name == "claude-code"
    assert adapter_named("Claude_Code").name == "claude-code"
    assert adapter_named("generic").name == "generic"


def test_no_program_or_package_belongs_to_two_harnesses() -> None:
    names = [n for a in ADAPTERS.values() for n in (*a.programs, *a.packages)]
    for adapter in ADAPTERS.values():
        assert len(set(adapter.programs)) == len(adapter.programs)
    owners = [(n, a.name) for a in ADAPTERS.values() for n in {*a.programs, *a.packages}]
    assert len(owners) == len(set(names))


def test_the_error_of_an_unknown_harness_survives_a_process_boundary() -> None:
    with pytest.raises(UnknownHarness) as caught:
        adapter_named("no-such")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
