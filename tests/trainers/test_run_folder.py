"""One folder, one run: what may go on in it, and what is refused."""

import os

import pytest

from budwood.trainers import RunError, RunFolder
from budwood.trainers.checkpoint import checkpoints, name_of, prune, step_of, write_folder

ABOUT = {"kind": "grpo", "model": "m", "data_digest": "d", "decides": {"seed": 0}}


def test_another_run_in_the_folder_is_refused_once_something_was_trained(tmp_path):
    place = tmp_path / "run"
    with RunFolder(place, ABOUT) as folder:
        folder.say()
    with RunFolder(place, {**ABOUT, "model": "other"}) as folder:
        folder.say()  # nothing was trained yet
    (place / "checkpoints" / name_of(2)).mkdir(parents=True)
    with RunFolder(place, {**ABOUT, "model": "other"}):
        pass
    for name, value in (("model", "m"), ("data_digest", "x"), ("decides", {"seed": 1})):
        with pytest.raises(RunError, match=f"its {name.replace('_', ' ')} differs"):
            RunFolder(place, {**ABOUT, "model": "other", name: value})


def test_one_process_at_a_time_and_no_folder_of_other_things(tmp_path):
    with (
        RunFolder(tmp_path / "run", ABOUT),
        pytest.raises(RunError, match="another process"),
    ):
        RunFolder(tmp_path / "run", ABOUT)
    with RunFolder(tmp_path / "run", ABOUT):
        pass
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")
    with pytest.raises(RunError, match=r"holds notes\.txt and no training run"):
        RunFolder(tmp_path / "mine", ABOUT)


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    place = tmp_path / "checkpoints" / name_of(3)

    def half(part):
        (part / "model").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_folder(place, half)
    assert checkpoints(place.parent) == []
    write_folder(place, lambda part: (part / "model").write_text("whole"))
    write_folder(place, lambda part: (part / "model").write_text("again"))
    assert (place / "model").read_text() == "again"
    assert os.listdir(place.parent) == [place.name]
    for step in (12, 100):
        write_folder(place.with_name(name_of(step)), lambda part: (part / "x").touch())
    assert [step_of(path) for path in checkpoints(place.parent)] == [3, 12, 100]
    prune(place.parent, 2)
    assert [step_of(path) for path in checkpoints(place.parent)] == [12, 100]
