"""Where settings come from, and what is said of wrong ones."""

import pytest
from typer.testing import CliRunner

from budwood.cli import app
from budwood.cli.settings import Settings, SettingsError, default_store


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BUDWOOD_STORE__URL", raising=False)


def _file(tmp_path, text):
    (tmp_path / "budwood.toml").write_text(text)


def _origins(settings):
    return {one.name: (one.value, one.origin) for one in settings.effective()}


def test_the_default_store_is_in_the_users_data_folder(monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_store() == "/data/budwood/budwood.db"
    assert Settings(environ={}).store.url == "/data/budwood/budwood.db"


def test_the_command_line_wins_then_the_environment_then_the_file(tmp_path):
    _file(tmp_path, '[store]\nurl = "file.db"\nbusy_s = 3\n[viewer]\nport = 1\n')
    environ = {"BUDWOOD_STORE__URL": "env.db", "BUDWOOD_VIEWER__PORT": "2"}
    settings = Settings(changes={"viewer": {"port": 3, "host": None}}, environ=environ)
    assert settings.store.url == "env.db"
    assert settings.store.busy_s == 3
    assert settings.viewer.port == 3
    found = _origins(settings)
    assert found["store.url"] == ("env.db", "BUDWOOD_STORE__URL")
    assert found["store.busy_s"] == ("3.0", "budwood.toml")
    assert found["viewer.port"] == ("3", "command line")
    assert found["viewer.host"] == ("127.0.0.1", "default")


def test_lists_are_written_as_json_and_secrets_are_masked():
    settings = Settings(environ={"BUDWOOD_STORE__SECRETS": '["hunter2hunter2"]'})
    assert settings.store.secrets[0].get_secret_value() == "hunter2hunter2"
    assert _origins(settings)["store.secrets"] == ("[********]", "BUDWOOD_STORE__SECRETS")
    assert "hunter2" not in str(settings.store)


def test_a_password_in_a_url_is_masked():
    url = "postgresql+psycopg://me:hunter2hunter2@db.example/budwood"
    settings = Settings(environ={"BUDWOOD_STORE__URL": url})
    assert settings.store.url == url
    shown = _origins(settings)["store.url"][0]
    assert shown == "postgresql+psycopg://me:********@db.example/budwood"


def test_deeper_fields_take_one_more_level():
    settings = Settings(environ={"BUDWOOD_PROXY__SAMPLING__TEMPERATURE": "0.5"})
    assert settings.proxy.sampling.temperature == 0.5
    assert _origins(settings)["proxy.sampling.temperature"] == (
        "0.5",
        "BUDWOOD_PROXY__SAMPLING__TEMPERATURE",
    )


def test_each_setting_of_a_room_in_a_room_has_an_origin_of_its_own(tmp_path):
    _file(
        tmp_path,
        '[proxy.engine]\ntries = 2\n[proxy.sampling]\n[proxy.model_aliases]\na = "b"\n',
    )
    environ = {
        "BUDWOOD_PROXY__ENGINE__URLS": "http://127.0.0.1:1",
        "BUDWOOD_PROXY__MODEL_ALIASES": '{"c": "d"}',
    }
    changes = {"proxy": {"engine": {"model": "m"}}}
    found = _origins(Settings(changes=changes, environ=environ))
    origins = {name: origin for name, (_, origin) in found.items()}
    assert origins["proxy.engine.urls"] == "BUDWOOD_PROXY__ENGINE__URLS"
    assert origins["proxy.engine.tries"] == "budwood.toml"
    assert origins["proxy.engine.model"] == "command line"
    assert origins["proxy.model_aliases"] == "budwood.toml, BUDWOOD_PROXY__MODEL_ALIASES"
    for name in ("proxy.engine.idle_s", "proxy.engine.api_key", "proxy.sampling.temperature"):
        assert origins[name] == "default"


def test_a_setting_that_was_only_passed_by_is_from_the_default():
    settings = Settings(environ={"BUDWOOD_PROXY__ENGINE__URLS": "http://127.0.0.1:1"})
    origins = {one.name: one.origin for one in settings.effective()}
    changed = {name for name, origin in origins.items() if origin != "default"}
    assert changed == {"proxy.engine.urls"}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ('["long-enough", "short"]', "each needs 8 characters or more, number 2 has 5"),
        ("word", """a list is wanted, written as JSON: BUDWOOD_STORE__SECRETS='["one", "two"]'"""),
        ("[word]", "a list is wanted, written as JSON"),
    ],
)
def test_wrong_secrets_are_named_without_a_traceback_and_never_shown(monkeypatch, value, said):
    monkeypatch.setenv("BUDWOOD_STORE__SECRETS", value)
    done = CliRunner().invoke(app, ["show"])
    assert done.exit_code == 2
    assert done.exception is None or isinstance(done.exception, SystemExit)
    told = " ".join(done.stderr.replace("│", " ").split())
    assert f"store.secrets (BUDWOOD_STORE__SECRETS): {said}" in told
    assert "long-enough" not in told


def test_a_table_is_asked_for_as_json(tmp_path):
    with pytest.raises(SettingsError, match=r"""ALIASES='\{"name": "value"\}'"""):
        _ = Settings(environ={"BUDWOOD_PROXY__MODEL_ALIASES": "x"}).proxy
    _file(tmp_path, '[store]\nsecrets = "word"\n')
    with pytest.raises(SettingsError, match=r'\(budwood.toml\): a list .* \["one", "two"\]'):
        _ = Settings(environ={}).store


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[store]\nulr = 'x'\n", r"store\.ulr \(budwood\.toml\): no such setting"),
        ("[stroe]\n", "no room 'stroe'"),
        ("store = 1\n", r"must be a table: \[store\]"),
        ("[store]\nbusy_s = -1\n", r"store\.busy_s \(budwood\.toml\): .*greater than 0"),
        ("[store\n", "cannot be read"),
    ],
)
def test_a_wrong_file_is_named_with_the_field(tmp_path, text, said):
    _file(tmp_path, text)
    with pytest.raises(SettingsError, match=said):
        _ = Settings(environ={}).store


@pytest.mark.parametrize(
    ("variable", "said"),
    [("BUDWOOD_STORE__ULR", "no such setting"), ("BUDWOOD_STROE__URL", "no room 'stroe'")],
)
def test_a_wrong_variable_is_named(variable, said):
    with pytest.raises(SettingsError, match=said):
        _ = Settings(environ={variable: "x"}).store


def test_a_file_that_is_named_must_be_there(tmp_path):
    with pytest.raises(SettingsError, match=r"there is no settings file"):
        Settings(tmp_path / "no.toml", environ={})
    with pytest.raises(SettingsError, match=r"there is no settings file"):
        Settings(environ={"BUDWOOD_CONFIG": "no.toml"})


def test_config_prints_every_setting_with_its_origin(tmp_path, monkeypatch):
    monkeypatch.setenv("BUDWOOD_VIEWER__TOKEN", "a token that is secret")
    done = CliRunner().invoke(app, ["config"])
    assert done.exit_code == 0
    assert "viewer.token\t********\tBUDWOOD_VIEWER__TOKEN" in done.stdout.splitlines()
    assert "a token that is secret" not in done.stdout
    monkeypatch.setenv("BUDWOOD_VIEWER__TOKN", "x")
    done = CliRunner().invoke(app, ["config"])
    assert done.exit_code == 2
