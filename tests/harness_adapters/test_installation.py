"""Where a harness is, what of it goes into a sandbox, and what is said where it is not."""

import json
import pickle
import sys
from pathlib import Path

import pytest

from budwood.harness_adapters import (
    LAUNCHED,
    InstallFailed,
    NotInstalled,
    NotLaunched,
    UnknownHarness,
    installation_of,
)
from budwood.harness_adapters import installation as module
from budwood.harness_adapters.installing import install

INSIDE = "/opt/harness"


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No checkout, and a data folder of its own; returns where installations are looked for."""
    monkeypatch.setattr(module, "checkout", lambda: None)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "budwood" / "harnesses"


def python_environment(folder: Path, home: Path, package: str, version: str) -> Path:
    site = folder / "lib" / "python3.11" / "site-packages"
    described = site / f"{package.replace('-', '_')}-{version}.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text(f"Name: {package}\nVersion: {version}\n")
    (folder / "pyvenv.cfg").write_text(f"home = {home}\nversion_info = 3.11.7\n")
    return site


def interpreter(prefix: Path, *, shared: bool = False) -> Path:
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / "python3.11").touch()
    (prefix / "lib").mkdir()
    if shared:
        (prefix / "lib" / "libpython3.11.so.1.0").touch()
    return prefix


def node_environment(folder: Path, version: str = "1.6.0") -> None:
    package = folder / "pi" / "node_modules" / "@earendil-works" / "pi-coding-agent"
    package.mkdir(parents=True)
    (package / "package.json").write_text(
        json.dumps({"version": version, "bin": {"pi": "dist/cli.js"}})
    )
    (folder / "bin").mkdir()
    (folder / "bin" / "node").touch()


@pytest.mark.parametrize("shared", [False, True])
def test_only_packages_and_interpreter_of_an_environment_go_inside(
    outside: Path, tmp_path: Path, shared: bool
) -> None:
    prefix = interpreter(tmp_path / "home" / ".pyenv" / "3.11.7", shared=shared)
    folder = outside / "mini-swe-agent"
    site = python_environment(folder, prefix / "bin", "mini-swe-agent", "2.4.6")
    found = installation_of("mini")
    assert found.version == "2.4.6"
    assert {(bind.source, bind.target) for bind in found.binds} == {
        (site, f"{INSIDE}/mini-swe-agent/site-packages"),
        (prefix, f"{INSIDE}/mini-swe-agent/python"),
    }
    assert not any(bind.writable for bind in found.binds)
    assert found.command[0] == f"{INSIDE}/mini-swe-agent/python/bin/python3.11"
    wanted = {"LD_LIBRARY_PATH": f"{INSIDE}/mini-swe-agent/python/lib"} if shared else {}
    assert found.env == wanted
    assert not any(str(tmp_path) in word for word in found.command)


def test_an_interpreter_of_the_system_is_not_bound(outside: Path) -> None:
    site = python_environment(outside / "react", Path("/usr/bin"), "openai", "3.57.0")
    system = Path("/usr/bin/python3.11")
    if not system.exists():
        pytest.skip("no /usr/bin/python3.11 here")
    found = installation_of("react")
    assert found.command[0] == str(system.resolve())
    assert {bind.source for bind in found.binds} > {site}
    assert all(bind.source == site or bind.source.name == "agent.py" for bind in found.binds)


def test_node_and_the_packages_go_inside_and_nothing_beside_them(outside: Path) -> None:
    node_environment(outside / "node")
    found = installation_of("pi")
    assert [bind.target for bind in found.binds] == [
        f"{INSIDE}/pi/node_modules", f"{INSIDE}/pi/bin/node"
    ]  # fmt: skip
    assert found.command == (
        f"{INSIDE}/pi/bin/node",
        f"{INSIDE}/pi/node_modules/@earendil-works/pi-coding-agent/dist/cli.js",
    )


def test_a_folder_that_is_named_comes_first(outside: Path, tmp_path: Path) -> None:
    node_environment(outside / "node", "1.6.0")
    node_environment(tmp_path / "mine", "1.7.0")
    assert installation_of("pi").version == "1.6.0"
    assert installation_of("pi", tmp_path / "mine" / "pi").version == "1.7.0"


@pytest.mark.parametrize("name", LAUNCHED)
def test_what_is_not_there_is_said_with_what_to_do(name: str, outside: Path) -> None:
    with pytest.raises(NotInstalled, match=f"budwood harness install {name}") as caught:
        installation_of(name)
    assert str(outside) in str(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (NotInstalled, str(caught.value))


def test_what_is_broken_is_named(outside: Path, tmp_path: Path) -> None:
    with pytest.raises(NotInstalled, match="is no virtual environment"):
        installation_of("react", tmp_path)
    folder = outside / "react"
    python_environment(folder, tmp_path / "gone" / "bin", "other", "1")
    with pytest.raises(NotInstalled, match="openai is not in"):
        installation_of("react")
    python_environment(folder, tmp_path / "gone" / "bin", "openai", "1")
    with pytest.raises(NotInstalled, match=r"the interpreter of .* is gone"):
        installation_of("react")


def test_a_harness_that_is_only_recorded_has_no_installation() -> None:
    with pytest.raises(NotLaunched) as caught:
        installation_of("codex")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(UnknownHarness):
        installation_of("no-such")


def test_installing_names_the_step_that_failed(outside: Path, monkeypatch, tmp_path: Path) -> None:
    with pytest.raises(UnknownHarness):
        install(["react", "no-such"])
    assert not outside.exists()
    (tmp_path / "file").touch()
    with pytest.raises(InstallFailed, match="can't be written"):
        install(["react"], tmp_path / "file" / "below")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(InstallFailed, match="could not be made"):
        install(["react"], tmp_path / "root", say=lambda _: None)
