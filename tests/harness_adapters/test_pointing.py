"""What each adapter sets: complete, valid, and nothing of the user's."""

import json
import stat
import tomllib
from pathlib import Path

import pytest

from budwood.harness_adapters import ADAPTERS, Dialect, Endpoint, UnknownHarness, point
from budwood.harness_adapters.adapter import Adapter

SECRET = "bw_" + "s" * 43
ROOT = f"http://127.0.0.1:4321/r/{SECRET}"
ENDPOINT = Endpoint(f"{ROOT}/v1", SECRET, "tiny-model", 32_768, 4_096)
ALL = pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=list(ADAPTERS))


def texts(adapter: Adapter, home: Path) -> list[str]:
    """Everything that a pointing tells the harness."""
    pointing = adapter.point(["x"], ENDPOINT, home, home)
    return [*filter(None, pointing.env.values()), *pointing.files.values()]


def test_an_endpoint_gives_its_address_with_and_without_v1() -> None:
    for given in (ROOT, f"{ROOT}/", f"{ROOT}/v1", f"{ROOT}/v1/"):
        endpoint = Endpoint(given, SECRET, "m", 1, 1)
        assert endpoint.root == ROOT
        assert endpoint.v1 == f"{ROOT}/v1"


def test_an_endpoint_does_not_print_its_secret() -> None:
    assert SECRET not in repr(Endpoint("http://127.0.0.1/v1", SECRET, "m", 1, 1))


@ALL
def test_every_adapter_names_the_address_and_the_secret(adapter: Adapter, tmp_path: Path) -> None:
    told = "\n".join(texts(adapter, tmp_path))
    assert ROOT in told
    assert told.replace(ROOT, "").count(SECRET) > 0
    assert "{" not in "".join(filter(None, adapter.point(["x"], ENDPOINT, tmp_path, tmp_path).env))


@ALL
def test_every_adapter_leaves_the_command_as_it_is(adapter: Adapter, tmp_path: Path) -> None:
    argv = ("prog", "--model", "mine", "{v1}", "a b")
    assert adapter.point(argv, ENDPOINT, tmp_path, tmp_path).argv == argv


@ALL
def test_every_file_an_adapter_writes_parses(adapter: Adapter, tmp_path: Path) -> None:
    strange = Endpoint(ENDPOINT.v1, SECRET, 'quo"te\\d', 32_768, 4_096)
    pointing = adapter.point(["x"], strange, tmp_path, tmp_path / 'a "b"')
    for name, text in pointing.files.items():
        parsed = tomllib.loads(text) if name.endswith(".toml") else json.loads(text)
        assert parsed


@ALL
def test_folders_of_a_harness_lie_in_the_private_home(adapter: Adapter, tmp_path: Path) -> None:
    pointing = adapter.point(["x"], ENDPOINT, tmp_path, Path("/elsewhere"))
    for name, value in pointing.env.items():
        if value and name.endswith(("_HOME", "_DIR", "_PATH")):
            assert Path(value).is_relative_to(tmp_path), name
    assert not any(Path(name).is_absolute() or ".." in name for name in pointing.files)


def test_files_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    pointing = point(["pi"], ENDPOINT, tmp_path)
    pointing.write_files(tmp_path)
    for name in pointing.files:
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_the_environment_keeps_the_users_variables_and_drops_what_would_lead_away(
    tmp_path: Path,
) -> None:
    mine = {"EDITOR": "vi", "ANTHROPIC_AUTH_TOKEN": "t", "ANTHROPIC_BASE_URL": "https://other"}
    environment = point(["claude"], ENDPOINT, tmp_path).environment(mine)
    assert environment["EDITOR"] == "vi"
    assert "ANTHROPIC_AUTH_TOKEN" not in environment
    assert environment["ANTHROPIC_BASE_URL"] == ROOT


def test_only_chat_harnesses_are_said_to_speak_chat() -> None:
    others = {a.name: a.dialect for a in ADAPTERS.values() if a.dialect is not Dialect.CHAT}
    assert others == {
        "codex": Dialect.RESPONSES,
        "claude-code": Dialect.MESSAGES,
        "gemini-cli": Dialect.GEMINI,
        "generic": None,
    }


def test_pi_keeps_room_for_turns_in_a_small_window(tmp_path: Path) -> None:
    small = Endpoint(ENDPOINT.v1, SECRET, "m", 8_192, 2_048)
    settings = json.loads(point(["pi"], small, tmp_path).files["pi/settings.json"])
    assert settings["compaction"]["reserveTokens"] == 2_048


def test_an_unknown_harness_is_refused_with_the_names_there_are(tmp_path: Path) -> None:
    with pytest.raises(UnknownHarness, match="mini-swe-agent, pi, react, codex"):
        point(["x"], ENDPOINT, tmp_path, harness="no-such")
