"""A folder is a task, or is said to be broken: where, and what to do."""

import os
import shutil

import pytest

from budwood.rollouts import BrokenTask, MissingVariable, UnsupportedTask
from budwood.rollouts.tasks import fill, load_task, require_runnable


def said_of(folder) -> str:
    with pytest.raises(BrokenTask) as caught:
        load_task(folder)
    return str(caught.value)


def test_a_folder_is_read_into_a_task(make_task):
    folder = make_task()
    task = load_task(folder)
    assert task.name == "test/hello"
    assert task.instruction == "Write hello into out.txt.\n"
    assert task.is_local
    assert task.workdir == "/app"
    assert task.test_script.startswith("#!/bin/sh")
    assert task.files_dir == folder / "environment" / "files"
    assert task.solution_dir == folder / "solution"
    require_runnable(task)


def test_a_task_without_a_name_has_its_folders(make_task):
    task = load_task(make_task({"task.toml": '[environment]\nworkdir = "/w"'}, name="mine"))
    assert task.name == "mine"
    assert task.workdir == "/w"


def test_marks_against_training_are_no_instruction(make_task):
    text = "<!-- task canary GUID 1 -->\n# canary 2\n\nDo it.\n# canary stays\n"
    assert load_task(make_task({"instruction.md": text})).instruction == "Do it.\n# canary stays\n"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"task.toml": None}, "task.toml: is missing; a task folder needs it"),
        ({"instruction.md": None}, "instruction.md: is missing; write what the agent shall do"),
        ({"instruction.md": " \n"}, "instruction.md: is empty; write what the agent shall do"),
        ({"tests/test.sh": None}, "tests/test.sh: is missing; write a script that checks"),
        ({"environment/files/in.txt": None}, "environment: is missing; add the folder"),
        ({"task.toml": b"# \xff"}, "task.toml: is not UTF-8 at byte 2; save it as UTF-8"),
        ({"instruction.md": b"\xe4"}, "instruction.md: is not UTF-8 at byte 0"),
        ({"tests/test.sh": b"#!/bin/sh\n\xff"}, "tests/test.sh: is not UTF-8 at byte 10"),
        ({"task.toml": "a = ["}, "task.toml: is not TOML"),
        ({"instruction.md": None, "instruction.md/x": ""}, "instruction.md: can't be read: Is a"),
        ({"task.toml": '[[steps]]\nname = "one"'}, "steps/one/instruction.md: is missing"),
        ({"task.toml": '[environment]\nos = "windows"'}, "tests/test.bat: is missing"),
    ],
)
def test_a_broken_folder_gets_one_error_that_names_the_file(make_task, changes, said):
    folder = make_task(changes)
    text = said_of(folder)
    assert said in text
    assert str(folder) in text
    assert len(text.splitlines()) == 1


def test_what_is_no_folder_is_no_task(tmp_path):
    assert "is not a folder" in said_of(tmp_path / "nowhere")


@pytest.mark.parametrize("target", ["/etc/hostname", "../../tests/test.sh", "../../../etc"])
def test_a_link_out_of_its_part_of_the_folder_is_refused(make_task, target):
    folder = make_task()
    (folder / "environment" / "files" / "link").symlink_to(target)
    assert "is a link to" in said_of(folder)


def test_a_pipe_in_the_folder_is_refused_and_not_read(make_task):
    folder = make_task()
    os.mkfifo(folder / "tests" / "pipe")
    assert "is neither a file nor a folder nor a link" in said_of(folder)


def test_an_image_or_a_verifier_of_its_own_stands_for_files(make_task):
    image = '[environment]\ndocker_image = "image:1"\n'
    task = load_task(make_task({"task.toml": image, "environment/files/in.txt": None}))
    assert task.files_dir is None
    separate = '[verifier]\nenvironment_mode = "separate"\n'
    again = load_task(make_task({"task.toml": separate, "tests/test.sh": None}, name="other"))
    assert again.test_script == ""


def test_equal_folders_have_one_checksum(make_task, tmp_path):
    folder = make_task()
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "instruction.md").chmod(0o600)
    (copy / "empty").mkdir()
    assert load_task(folder).checksum == load_task(copy).checksum


@pytest.mark.parametrize("change", ["bytes", "name", "mode", "more", "link"])
def test_any_change_changes_the_checksum(make_task, change):
    folder = make_task()
    before = load_task(folder).checksum
    file = folder / "tests" / "test.sh"
    if change == "bytes":
        file.write_text(file.read_text() + "\n")
    elif change == "name":
        (folder / "environment/files/in.txt").rename(folder / "environment/files/in2.txt")
    elif change == "mode":
        file.chmod(0o755)
    elif change == "more":
        (folder / "solution" / "x").write_text("")
    else:
        (folder / "solution" / "x").symlink_to("solve.sh")
    assert load_task(folder).checksum != before


@pytest.mark.parametrize(
    ("toml", "key"),
    [
        ('[environment]\ndocker_image = "x:1"', "environment"),
        ('[environment]\nos = "windows"', "environment.os"),
        ("[environment]\ngpus = 1", "environment.gpus"),
        ('[environment]\ngpu_types = ["T4"]', "environment.gpu_types"),
        ('[environment]\ntpu = { type = "v4", topology = "2x2" }', "environment.tpu"),
        ('[[environment.mcp_servers]]\nname = "a"\nurl = "http://a"', "environment.mcp_servers"),
        ('[environment]\nskills_dir = "/s"', "environment.skills_dir"),
        ('[environment.healthcheck]\ncommand = "true"', "environment.healthcheck"),
        ('[environment]\nnetwork_mode = "public"', "environment.network_mode"),
        ("[environment]\nallow_internet = true", "environment.network_mode"),
        ('[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.b"]', "agent.network_mode"),
        ('[verifier]\nnetwork_mode = "public"', "verifier.network_mode"),
        ('[verifier]\nenvironment_mode = "separate"', "verifier.environment"),
        ('[[verifier.collect]]\ncommand = "true"', "verifier.collect"),
        ('[agent]\nuser = "agent"', "agent.user"),
        ("[verifier]\nuser = 0", "verifier.user"),
        ('[[steps]]\nname = "one"', "steps"),
        ('artifacts = ["/app"]', "artifacts"),
    ],
)
def test_what_is_not_supported_is_refused_by_its_key(make_task, toml, key):
    more = {"steps/one/instruction.md": "Do.", "tests/test.bat": ""}
    task = load_task(make_task({"task.toml": toml, **more}))
    as_local = key != "environment"
    with pytest.raises(UnsupportedTask) as caught:
        require_runnable(task, as_local=as_local)
    assert [problem.key for problem in caught.value.problems] == [key]
    assert task.name in str(caught.value)


@pytest.mark.parametrize("file", ["environment/docker-compose.yaml", "trajectory.json"])
def test_a_file_that_asks_for_more_is_refused_by_its_name(make_task, file):
    with pytest.raises(UnsupportedTask, match=file):
        require_runnable(load_task(make_task({file: "{}"})))


def test_a_task_that_wants_an_image_runs_with_it_or_when_the_user_says_so(make_task):
    task = load_task(make_task({"task.toml": ""}))
    with pytest.raises(UnsupportedTask, match=r"wants an image.*local = true"):
        require_runnable(task)
    require_runnable(task, has_image=True)
    require_runnable(task, as_local=True)


def test_templates_are_filled_from_what_is_given_and_from_nothing_else(monkeypatch):
    monkeypatch.setenv("SECRET", "of this machine")
    env = {"a": "${A}", "b": "${B:-b}", "c": "${B:-}", "d": "x${A}", "e": "plain"}
    assert fill(env, {"A": "1"}, table="verifier") == {
        "a": "1", "b": "b", "c": "", "d": "x${A}", "e": "plain",
    }  # fmt: skip
    with pytest.raises(MissingVariable, match=r"verifier\.env\.k: wants the variable SECRET"):
        fill({"k": "${SECRET}"}, {}, table="verifier")
