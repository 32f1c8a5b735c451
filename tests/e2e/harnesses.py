"""The real harnesses, installed by `make harnesses`, and a scratch place to run them in."""

import hashlib
from pathlib import Path

import pytest

from budwood.cli.demo.acts import Part
from budwood.cli.demo.installed import folder_of
from budwood.cli.demo.screen import Clock, DemoFailed, Place, teacher_running
from budwood.trajectory_store import Store

PROGRAMS = ("mini-swe-agent", "pi")


@pytest.fixture(scope="session")
def programs():
    """The folders of mini-swe-agent and pi; an error that names the make target without them."""
    try:
        return tuple(folder_of(name) for name in PROGRAMS)
    except DemoFailed as error:
        pytest.fail(f"{error}", pytrace=False)


@pytest.fixture(scope="module")
def place(programs, tmp_path_factory):
    """A folder with a home, scratch folders and a store of its own."""
    found = Place(tmp_path_factory.mktemp("place"), Clock(), programs)
    found.logs.mkdir()
    return found


@pytest.fixture(scope="module")
def teacher(place):
    """The base URL of the scripted teacher, which knows the demo's tasks."""
    with teacher_running(place.environment()) as url:
        yield url


def recorded(place: Place, part: Part):
    """The latest rollout of a part and its calls in order."""
    with Store.open(place.store, read_only=True) as store:
        rollout = part.rollout(store)
        return rollout, sorted(store.calls(rollout), key=lambda call: call.seq or 0)


def requests(place: Place, calls):
    """The requests of calls as text."""
    with Store.open(place.store, read_only=True) as store:
        return [store.request_body(call.id).decode() for call in calls]


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
