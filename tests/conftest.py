"""Real things for all tests: an empty store on each database, a store with examples."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from budwood.proxy.testing.real_engine import tiny_engine
from budwood.sandbox import LocalBackend, StartFailed
from budwood.trajectory_store import Store
from budwood.trajectory_store.testing import record_examples
from budwood.trajectory_store.testing.postgres import running_postgres

# A busy machine decides nothing: no property fails on a clock.
settings.register_profile(
    "unhurried",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    # The same cases in every CI run; new ones wherever people work.
    derandomize="CI" in os.environ,
)
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def examples(tmp_path_factory):
    """The examples recorded once: (path of the closed store, what is in it)."""
    path = tmp_path_factory.mktemp("examples") / "store.db"
    with Store.open(path) as store:
        return path, record_examples(store)


@pytest.fixture
def recorded(examples):
    """What is in `recorded_store`."""
    return examples[1]


@pytest.fixture
def recorded_path(examples, tmp_path):
    """The path of a copy of the example store."""
    return shutil.copy(examples[0], tmp_path / "store.db")


@pytest.fixture
def recorded_store(recorded_path):
    """A copy of the example store, open to read and write."""
    with Store.open(recorded_path) as opened:
        yield opened


@pytest.fixture(scope="session")
def postgres():
    """A running PostgreSQL server; `.database()` gives the URL of a fresh database."""
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request, tmp_path):
    """The URL of an empty database, of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    return request.getfixturevalue("postgres").database()


@pytest.fixture
def store(store_url):
    """An empty store, on each database in turn."""
    with Store.open(store_url) as opened:
        yield opened


@pytest.fixture(scope="session")
def vllm_engine(request):
    """Real vLLM on this machine's CPU, one server for all tests: `.url`, `.model`, `.folder`.

    The model is tiny and knows a few conversations by heart (`.conversations`), in float32, 16,384
    tokens long, with dev routes on. Tests that use it are `slow`; the first waits for its start.
    """
    terminal = request.config.get_terminal_writer()

    def say(text):
        terminal.line(f"  vllm: {text}")

    with tiny_engine(Path(__file__).parents[1] / ".cache", say=say) as engine:
        yield engine


def _uses_engine(path):
    """Whether a file's tests share the real engine, by its name."""
    return path.rpartition("/")[2].startswith("test_real_")


def _place(item):
    """Return where in the order a test comes: at the end only short files are left to share."""
    path = item.nodeid.partition("::")[0]
    if _uses_engine(path):
        return 0
    return 1 if path.startswith(("tests/sandbox/", "tests/rollouts/")) else 2


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark what needs the real engine, and let the longest come first: it, then sandboxes."""
    for item in items:
        if "vllm_engine" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
            if not _uses_engine(item.nodeid.partition("::")[0]):
                raise pytest.UsageError(
                    f"{item.nodeid} needs the engine: name its file test_real_*"
                )
    items.sort(key=_place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Let one worker take all that needs the real engine, so that it is started once."""

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid):
            path = super()._split_scope(nodeid)
            return "the real engine" if _uses_engine(path) else path

    return ByFile(config, log)


@pytest.fixture(scope="session")
def namespaces():
    """Skip, with the reason, where this machine can't make isolated sandboxes."""
    try:
        asyncio.run(LocalBackend().look())
    except StartFailed as error:
        pytest.skip(str(error))
