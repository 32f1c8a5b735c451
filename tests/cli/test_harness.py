"""`budwood harness`: what it says of what is here and what is not, and its exit codes."""

import json

import pytest
from typer.testing import CliRunner

from budwood.cli import app
from budwood.harness_adapters import InstallFailed, installation, installing


@pytest.fixture
def harness(tmp_path, monkeypatch):
    """Return a function that runs the command where nothing is installed: (code, out, err)."""
    monkeypatch.setattr(installation, "checkout", lambda: None)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    def run(*words):
        done = CliRunner().invoke(app, ["harness", *words])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.stdout, done.stderr

    return run


def test_what_is_not_installed_is_listed_with_the_command_that_installs_it(harness):
    code, out, _ = harness("list")
    assert code == 0
    assert out.splitlines() == [
        "harness\tversion\tpinned\twhere",
        "mini-swe-agent\tnot installed\t2.4.6\t-",
        "pi\tnot installed\t1.6.0\t-",
        "react\tnot installed\t1+openai.3.57.0\t-",
        "budwood harness install mini-swe-agent pi react",
    ]


def test_the_list_for_programs_says_what_was_looked_at(harness, tmp_path):
    _, out, _ = harness("list", "--json")
    rows = {row["harness"]: row for row in json.loads(out)}
    assert rows["pi"]["version"] is None
    assert str(tmp_path / "budwood" / "harnesses") in rows["pi"]["why"]


def test_an_unknown_harness_is_refused_before_anything_is_done(harness, tmp_path):
    code, _, err = harness("install", "react", "no-such")
    assert code == 2
    assert "no harness 'no-such'; there are mini-swe-agent, pi, react" in err
    assert list(tmp_path.iterdir()) == []


def test_an_installation_that_fails_ends_with_1_and_says_which_step(harness, monkeypatch):
    def fails(*_: object, **__: object) -> None:
        raise InstallFailed("what react.txt names could not be installed: exit code 2 from uv")

    monkeypatch.setattr(installing, "_fill", fails)
    code, _, err = harness("install", "react")
    assert code == 1
    assert "installing react, 10 MB to download" in err
    assert "budwood: what react.txt names could not be installed" in err
    code, out, _ = harness("list")
    assert "react\tnot installed" in out
