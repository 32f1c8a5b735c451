"""A template is read into ordinary tasks, or is said to be broken: where, and what to do."""

import os

import pytest

from budwood.rollouts import BrokenTask
from budwood.rollouts.tasks import load_task, load_tasks

TOML = """
[task]
name = "test/hello-{{variant}}"

[metadata.budwood]
local = true
split = "{{split}}"
"""
VARIANTS = """
[train]
file = ["a.txt", "b.txt"]
count = [1, 20]

[held-out]
file = ["c.txt"]
count = [3]
"""
FILES = {
    "task.toml": TOML,
    "variants.toml": VARIANTS,
    "instruction.md": "Write {{count}} into {{file}}. Not a place: {{ }}, ${{X}}, {count}.\n",
    "environment/files/in.txt": None,
    "environment/files/{{file}}": "{{count}}\n",
}


@pytest.fixture
def loaded(make_task, tmp_path):
    """Return a function that writes a template with changes and loads its tasks."""

    def load(changes=None, **arguments):
        return load_tasks(make_task({**FILES, **(changes or {})}), tmp_path / "made", **arguments)

    return load


def said_of(loaded, changes) -> str:
    with pytest.raises(BrokenTask) as caught:
        loaded(changes)
    return str(caught.value)


def test_each_variant_is_a_task_with_its_values_in_texts_and_names(loaded):
    tasks = loaded()
    assert [(task.name, task.split) for task in tasks] == [
        ("test/hello-train-1", "train"),
        ("test/hello-train-2", "train"),
        ("test/hello-held-out-1", "held-out"),
    ]
    assert tasks[1].instruction == "Write 20 into b.txt. Not a place: {{ }}, ${{X}}, {count}.\n"
    assert tasks[1].files_dir is not None
    assert [(path.name, path.read_text()) for path in tasks[1].files_dir.iterdir()] == [
        ("b.txt", "20\n")
    ]
    assert not (tasks[1].folder / "variants.toml").exists()
    assert len({task.checksum for task in tasks}) == 3


def test_the_same_values_make_the_same_checksum_wherever_they_are_written(make_task, tmp_path):
    folder = make_task(FILES)
    once, again = (load_tasks(folder, tmp_path / place) for place in ("one", "two"))
    assert [task.checksum for task in once] == [task.checksum for task in again]


def test_a_split_chooses_its_variants(loaded):
    assert [task.name for task in loaded(split="held-out")] == ["test/hello-held-out-1"]


def test_a_folder_that_is_no_template_is_one_task(make_task, tmp_path):
    folder = make_task()
    assert [task.name for task in load_tasks(folder, tmp_path)] == ["test/hello"]
    assert load_tasks(folder, tmp_path, split="train") == []


def test_a_template_is_no_task_by_itself(make_task):
    with pytest.raises(BrokenTask, match="a template of many tasks; load one of them"):
        load_task(make_task(FILES))


def test_bytes_mode_bits_and_links_stay(make_task, tmp_path):
    folder = make_task({**FILES, "environment/files/raw": b"\xff{{count}}"})
    (folder / "tests" / "test.sh").chmod(0o755)
    (folder / "environment" / "files" / "link").symlink_to("{{file}}")
    made = load_tasks(folder, tmp_path / "made")[0].folder
    assert (made / "environment/files/raw").read_bytes() == b"\xff{{count}}"
    assert (made / "tests/test.sh").stat().st_mode & 0o777 == 0o755
    assert (made / "environment/files/link").readlink().name == "a.txt"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"variants.toml": "x ="}, "variants.toml: can't be read"),
        ({"variants.toml": ""}, "has no variants; add a table [train] or [held-out]"),
        ({"variants.toml": "[other]\na = [1]"}, "other: is no table of variants; there are train"),
        ({"variants.toml": "[train]\n"}, "train: wants a table of lists of values"),
        ({"variants.toml": "train = 3"}, "train: wants a table of lists of values"),
        ({"variants.toml": "[train]\nfile = 'a'"}, "train.file: wants a list of values, found 'a'"),
        ({"variants.toml": "[train]\nfile = []"}, "train.file: wants a list of values, found []"),
        (
            {"variants.toml": "[train]\nfile = [1.5]"},
            "train.file: wants text in quotes or whole numbers, found 1.5",
        ),
        ({"variants.toml": "[train]\nfile = [true]"}, "whole numbers, found True"),
        (
            {"variants.toml": "[train]\nfile = ['a']\ncount = [1, 2]"},
            "train: wants as many values of each name, found lists of 1, 2",
        ),
        ({"variants.toml": "[train]\nFile = ['a']"}, "train.File: wants a name of small letters"),
        ({"variants.toml": "[train]\nsplit = ['a']"}, "train.split: is given by itself"),
        (
            {"variants.toml": VARIANTS.replace("count = [3]", "")},
            "held-out.count: is missing; each table gives every name a value",
        ),
        (
            {"variants.toml": VARIANTS.replace("c.txt", "a.txt").replace("[3]", "[1]")},
            "held-out-1: has the same values as train-1; give it others",
        ),
        ({"instruction.md": "{{cout}}"}, "instruction.md: {{cout}} has no value in variants.toml"),
        (
            {"variants.toml": VARIANTS + "more = [4]\n[train.x]\n"},
            "wants a list of values",
        ),
        ({"environment/files/{{file}}": "x", "instruction.md": "x"}, "count: is used nowhere"),
        ({"environment/files/a.txt": ""}, "would be environment/files/a.txt, as another file is"),
        (
            {"variants.toml": VARIANTS.replace('"a.txt"', '"../a"')},
            "would be named '../a' in a variant",
        ),
        (
            {"task.toml": TOML.replace("{{variant}}", "x")},
            "task.name: is the same in several variants; put {{variant}} into it",
        ),
        (
            {"task.toml": TOML.replace('split = "{{split}}"', "")},
            'metadata.budwood.split: wants "{{split}}" in a template, found None',
        ),
        ({"task.toml": "[agent]\ntimeout_sec = 'x'"}, "agent.timeout_sec: wants a number"),
    ],
)
def test_a_broken_template_is_told_by_its_file_and_key(loaded, changes, said):
    assert said in said_of(loaded, changes)


def test_what_is_wrong_in_a_variant_is_told_in_the_templates_words(make_task, tmp_path):
    changes = {"variants.toml": VARIANTS.replace("[3]", "['x']")}
    changes["task.toml"] = TOML + "[agent]\ntimeout_sec = {{count}}\n"
    folder = make_task({**FILES, **changes})
    with pytest.raises(BrokenTask) as caught:
        load_tasks(folder, tmp_path / "made")
    assert caught.value.file == folder / "task.toml"
    assert "is not TOML" in str(caught.value)
    assert "(in held-out-1)" in str(caught.value)


def test_a_pipe_in_a_template_is_refused_and_not_read(make_task, tmp_path):
    folder = make_task(FILES)
    os.mkfifo(folder / "tests" / "pipe")
    with pytest.raises(BrokenTask, match="is neither a file"):
        load_tasks(folder, tmp_path / "made")
