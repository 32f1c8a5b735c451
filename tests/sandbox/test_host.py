"""What a machine lets us do is found out, and what is in the way is named."""

import os
import sys

import pytest

from budwood.sandbox import (
    BACKENDS,
    Bind,
    Enforcement,
    FileFailed,
    Limit,
    LocalSettings,
    Refused,
    Spec,
    StartFailed,
    backend_named,
)
from budwood.sandbox.local.cgroup import find_trees
from budwood.sandbox.local.folders import OwnFolder, sweep
from budwood.sandbox.local.host import SETTINGS, advice
from budwood.sandbox.testing import Bench


async def test_without_bubblewrap_the_error_names_the_package_and_the_way_without(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StartFailed, match=r"package `bubblewrap`.*local-unisolated by name"):
        async with backend_named("local", LocalSettings(root=tmp_path)):
            pass


@pytest.mark.skipif(sys.platform != "linux", reason="it has no namespaces anyway")
async def test_where_namespaces_are_forbidden_the_error_says_by_whom(tmp_path, monkeypatch):
    # What bubblewrap says where a seccomp filter or AppArmor is in its way.
    said = "bwrap: No permissions to create new namespace"
    bwrap = tmp_path / "bwrap"
    bwrap.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    bwrap.chmod(0o755)
    tmp_path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(StartFailed, match="can't make namespaces") as caught:
        async with backend_named("local", LocalSettings(root=tmp_path / "root")):
            pass
    assert "local-unisolated" in str(caught.value)


async def test_a_machine_whose_system_calls_are_not_known_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "pdp11")
    with pytest.raises(StartFailed, match=r"this is pdp11; .*local-unisolated"):
        async with backend_named("local", LocalSettings(root=tmp_path)):
            pass


async def test_a_folder_with_more_entries_than_can_be_listed_says_so(bench, monkeypatch):
    monkeypatch.setattr("budwood.sandbox.local.file_access.MAX_LISTED_BYTES", 1000)
    async with bench.sandbox() as sandbox:
        await sandbox.run("touch a b c")
        assert len(await sandbox.list(".")) == 3
        await sandbox.run("for i in $(seq 50); do touch file-$i; done")
        with pytest.raises(FileFailed, match="more entries than can be listed"):
            await sandbox.list(".")
        assert (await sandbox.stats()).n_processes == 0


@pytest.mark.parametrize("name", SETTINGS)
def test_the_setting_that_forbids_namespaces_is_named(tmp_path, name):
    file = tmp_path / name.lstrip("/")
    file.parent.mkdir(parents=True)
    forbidding, what = SETTINGS[name]
    file.write_text(f"{forbidding}\n")
    assert what in advice(tmp_path)
    file.write_text("7\n")
    assert "seccomp" in advice(tmp_path)


def test_a_backend_is_named_or_refused():
    assert set(BACKENDS) == {"local", "local-unisolated"}
    with pytest.raises(Refused, match="there is no such backend, only local, local-unisolated"):
        backend_named("docker")


async def test_a_spec_for_an_image_is_refused_by_both(backend_name, root):
    async with backend_named(backend_name, LocalSettings(root=root)) as backend:
        with pytest.raises(Refused, match=r"image 'python:3.13': this backend has no images"):
            await backend.create(Bench(backend).spec(image="python:3.13"))


async def test_every_single_thing_that_is_lacking_is_said_at_once(namespaces, root):
    async with backend_named("local", LocalSettings(root=root)) as backend:
        with pytest.raises(Refused) as caught:
            await backend.create(Bench(backend).spec(image="x", cpus=1.0, network="open"))
    assert len(caught.value.lacks) == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"workdir": "/usr/work"},
        {"home": "/etc"},
        {"workdir": "/.budwood/x"},
        {"workdir": "/proc"},
    ],
)
async def test_nothing_can_be_put_over_the_system(namespaces, root, tmp_path, changes):
    async with backend_named("local", LocalSettings(root=root)) as backend:
        with pytest.raises(Refused, match="part of the system inside"):
            await backend.create(Bench(backend).spec(**changes))
        with pytest.raises(Refused, match="part of the system inside"):
            await backend.create(Bench(backend).spec(binds=(Bind(tmp_path, "/lib/x"),)))


async def test_without_control_groups_what_is_unheld_is_refused_with_the_way_to_have_it(root):
    async with backend_named("local-unisolated", LocalSettings(root=root)) as backend:
        has = backend.capabilities
        assert has.limits[Limit.TIME] is has.limits[Limit.OUTPUT] is Enforcement.BUDWOOD
        if Limit.PIDS in has.limits:
            assert has.limits[Limit.PIDS] is Enforcement.KERNEL
        else:
            with pytest.raises(Refused, match=r"limit pids: no control group.*run as root, or del"):
                await backend.create(Bench(backend).spec(pids=64))
        with pytest.raises(Refused, match="limit disk: files are on the host's own disk"):
            await backend.create(Bench(backend).spec(disk_bytes=2**20))


V1 = """\
30 25 0:26 / /cg/memory rw - cgroup cgroup rw,memory
31 25 0:27 / /cg/pids rw - cgroup cgroup rw,pids
"""
V2 = "30 25 0:26 / /cg rw - cgroup2 cgroup2 rw\n"


def machine(tmp_path, mounts, own, **controllers):
    """Make the files of a machine's control groups; return what is found there."""
    (tmp_path / "mounts").write_text(mounts.replace("/cg", str(tmp_path / "cg")))
    (tmp_path / "own").write_text(own)
    for folder, text in controllers.items():
        place = tmp_path / "cg" / folder.replace("__", "/")
        place.mkdir(parents=True, exist_ok=True)
        (place / "cgroup.subtree_control").write_text(text)
    found = find_trees(tmp_path / "mounts", tmp_path / "own", lambda tree: tree.folder.is_dir())
    short = {limit: str(tree.folder).removeprefix(str(tmp_path)) for limit, tree in found.items()}
    return {limit: (short[limit], tree.version) for limit, tree in found.items()}


def test_version_1_has_a_tree_for_each_controller(tmp_path):
    for name in ("memory/mine", "pids"):
        (tmp_path / "cg" / name).mkdir(parents=True)
    own = "4:memory:/mine\n3:pids:/elsewhere\n"
    assert machine(tmp_path, V1, own) == {
        Limit.MEMORY: ("/cg/memory/mine", 1),
        # Our own group is out of sight, as in a container: the top is all there is.
        Limit.PIDS: ("/cg/pids", 1),
    }


def test_version_2_takes_the_nearest_group_that_has_the_controller(tmp_path):
    (tmp_path / "cg/user/app/me.scope").mkdir(parents=True)
    own = "0::/user/app/me.scope\n"
    found = machine(tmp_path, V2, own, user="memory pids", user__app="memory")
    assert found == {Limit.MEMORY: ("/cg/user/app", 2), Limit.PIDS: ("/cg/user", 2)}


def test_a_machine_without_groups_of_ours_has_none(tmp_path):
    assert machine(tmp_path, V2, "0::/\n") == {}
    assert machine(tmp_path, "20 25 0:3 / /proc rw - proc proc rw\n", "0::/\n") == {}


def test_a_sweep_takes_what_is_dead_and_leaves_what_lives(tmp_path):
    alive = OwnFolder(tmp_path)
    dead = tmp_path / "be_1_dead"
    (dead / "sb_x" / "closed").mkdir(parents=True)
    (dead / "sb_x" / "closed").chmod(0)
    (dead / "lock").touch()
    (tmp_path / "unknown").mkdir()
    assert sweep(tmp_path) == ["be_1_dead"]
    assert {path.name for path in tmp_path.iterdir()} == {alive.name, "unknown"}
    alive.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["unknown"]


def test_a_spec_is_compared_as_a_whole():
    assert Spec(env={"A": "b"}) == Spec(env={"A": "b"}) != Spec(env={"A": "c"})
