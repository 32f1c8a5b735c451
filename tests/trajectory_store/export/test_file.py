"""The file appears whole or not at all, and is the same each time."""

import json
import signal
import subprocess
import sys

import pytest

from budwood.trajectory_store import SelectorError
from budwood.trajectory_store.export import (
    EXPORTERS,
    ExportError,
    ExportOptions,
    export,
    job,
    manifest_path,
)
from budwood.trajectory_store.export.file import WholeFile


@pytest.mark.parametrize("to", EXPORTERS)
def test_a_repeated_export_has_the_same_bytes(store, recorded, tmp_path, to):
    first, second = tmp_path / "first", tmp_path / "second"
    a = export(store, "all", to, first)
    b = export(store, "all", to, second)
    assert first.read_bytes() == second.read_bytes()
    assert a.sha256 == b.sha256
    export(store, "all", to, first)
    assert first.read_bytes() == second.read_bytes()


def test_the_manifest_stands_beside_the_file_and_describes_it(store, recorded, tmp_path):
    import hashlib

    out = tmp_path / "rows.jsonl"
    manifest = export(store, "all", "trl-sft", out, ExportOptions(include_inexact=True))
    kept = json.loads(manifest_path(out).read_bytes())
    assert kept == manifest.as_json()
    assert kept["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    assert kept["size_bytes"] == out.stat().st_size
    assert kept["file"] == "rows.jsonl"
    assert kept["selector"] == "all"
    assert kept["options"]["include_inexact"] is True
    assert set(kept["versions"]) == {"budwood", "records"}
    assert sorted(p.name for p in tmp_path.glob("rows*")) == [out.name, manifest_path(out).name]


def test_a_failed_export_leaves_the_earlier_file(store, recorded, tmp_path, monkeypatch):
    out = tmp_path / "rows"
    export(store, "all", "trl-sft", out)
    before = out.read_bytes()
    original = job._write_rollout
    done = []

    def breaks(*args):
        if done:
            raise ExportError("the disk is gone")
        done.append(original(*args))

    monkeypatch.setattr(job, "_write_rollout", breaks)
    with pytest.raises(ExportError):
        export(store, "all", "trl-sft", out)
    assert out.read_bytes() == before
    assert not list(tmp_path.glob(".*partial"))


KILLED = """
import sys, os, signal
from pathlib import Path
from budwood.trajectory_store import Store
from budwood.trajectory_store.export import export
def kill(n, of):
    if n == 2:
        os.kill(os.getpid(), signal.SIGKILL)
with Store.open(sys.argv[1], read_only=True) as store:
    export(store, "all", "trl-sft", Path(sys.argv[2]), on_rollout=kill)
"""


def test_a_killed_export_leaves_no_file_and_the_next_one_is_whole(store, recorded, tmp_path):
    out, whole = tmp_path / "rows", tmp_path / "whole"
    export(store, "all", "trl-sft", whole)
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "store.db", out], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not out.exists()
    export(store, "all", "trl-sft", out)
    assert out.read_bytes() == whole.read_bytes()
    assert not list(tmp_path.glob(".*partial"))


def test_a_file_of_someone_else_is_not_overwritten(store, recorded, tmp_path):
    out = tmp_path / "thesis.txt"
    out.write_text("years of work")
    with pytest.raises(ExportError, match="no export made it"):
        export(store, "all", "trl-sft", out)
    assert out.read_text() == "years of work"
    export(store, "all", "trl-sft", out, overwrite=True)
    assert out.read_text() != "years of work"


def test_two_exports_to_one_place_do_not_mix(tmp_path):
    with WholeFile(tmp_path / "x") as one:
        one.write(b"one")
        with pytest.raises(ExportError, match="another export"), WholeFile(tmp_path / "x"):
            pass
        one.finish()
    assert (tmp_path / "x").read_bytes() == b"one"


def test_a_full_disk_is_named(tmp_path):
    (tmp_path / ".x.partial").symlink_to("/dev/full")
    with WholeFile(tmp_path / "x") as file:
        with pytest.raises(ExportError, match="free some space"):
            file.write(b"x" * (4 << 20))
    assert not (tmp_path / "x").exists()


def test_a_folder_that_is_not_there_is_named(store, recorded, tmp_path):
    with pytest.raises(ExportError, match="cannot be written"):
        export(store, "all", "trl-sft", tmp_path / "no" / "rows")


def test_unknown_formats_and_selectors_leave_nothing(store, recorded, tmp_path):
    with pytest.raises(ExportError, match="trl-sft, trl-grpo, jsonl, parquet"):
        export(store, "all", "csv", tmp_path / "x")
    with pytest.raises(SelectorError):
        export(store, "reward>9", "trl-sft", tmp_path / "x")
    assert not list(tmp_path.glob("*x*"))
