"""The eight tasks that ship: every variant is sound, and no verifier takes a wrong result.

A wrong result is tried the way an agent would come to it: half the work, too much work, the wrong
thing, or an answer that only looks like one.
"""

import asyncio
from pathlib import Path

import pytest

from budwood.rollouts.tasks import check_all, grade, load_tasks, prepare, read_variants
from budwood.rollouts.tasks.folder import VARIANTS
from budwood.trajectory_store import FailureClass

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "tasks"
NAMES = sorted(path.name for path in EXAMPLES.iterdir())

NO_ANSWERS = [
    "touch {out}", "mkdir {out}", "mkfifo {out}", "ln -s /tests/test.sh {out}",
    "ln -s /dev/zero {out}", "yes | head -c 1000000 > {out}", "echo done > {out}",
]  # fmt: skip
"""What can stand where an answer belongs, and is none."""

WRONG = {
    "change-setting": [
        "sed -i 's/{before}/{value}/' {file}",
        "sed -i 's/{key} = .*/{key} = {value}/' {file}",
        "echo '{key} = {value}' >> {file}",
        "echo '{key} = {value}' > {file}",
        "sed -i '/^{key} = /d' {file}",
        "sed -i 's/^{key} = .*/{key} = {before}1/' {file}",
        "rm {file}; ln -s /tests/expected.txt {file}",
        "rm {file}; mkfifo {file}",
    ],
    "count-lines": [
        "wc -l < {log} > {out}",
        "grep -ci {word} {log} > {out}",
        "grep -o {word} {log} | wc -l > {out}",
        "grep -vc {word} {log} > {out}",
        "grep -c {word} {log}",
        "grep {word} {log} > {out}",
        "echo {count} {count} > {out}",
        "echo {count}0 > {out}",
    ],
    "find-word": [
        "basename {path} > {out}",
        "dirname {path} > {out}",
        "find {root} -type f > {out}",
        "grep -rlwL {word} {root} > {out}",
        "echo {path}.txt > {out}",
        "grep -rw {word} {root} > {out}",
    ],
    "pack-folder": [
        "tar -czf {archive}.tar.gz {folder}",
        "rm -r {folder}",
        "rm -r {folder}; touch {archive}.tar.gz",
        "tar -czf {archive}.tar.gz -C {folder} . && rm -r {folder}",
        "tar -cf {archive}.tar.gz {folder} && rm -r {folder} && echo x >> {archive}.tar.gz",
        "tar -czf {archive}.tgz {folder} && rm -r {folder}",
        "rm {folder}/{a}.txt; tar -czf {archive}.tar.gz {folder} && rm -r {folder}",
        "touch {folder}/x; tar -czf {archive}.tar.gz {folder} && rm -r {folder}",
        "rm -r {folder}; ln -s /tests/expected/{folder}; tar -czf {archive}.tar.gz {folder}; "
        "rm {folder}",
        "rm -r {folder}; mkfifo {archive}.tar.gz",
    ],
    "rename-files": [
        "mv {folder}/{a}.{old} {folder}/{a}.{new}",
        "for file in {folder}/*.{old}; do cp $file ${{file%.{old}}}.{new}; done",
        "for file in {folder}/*.{old}; do mv $file $file.{new}; done",
        "for file in {folder}/*.{old}; do touch ${{file%.{old}}}.{new}; rm $file; done",
        "for file in {folder}/*; do mv $file ${{file%.*}}.{new}; done",
        "cd {folder}; for file in *; do mv $file $(echo $file | sed s/{old}/{new}/); done",
        "rm -r {folder}",
        "rm -r {folder}; ln -s /tests/expected {folder}",
        "rm -r {folder}/*; ln -s /tests/expected/{a}.{new} {folder}",
        "rm -r {folder}; touch {folder}",
    ],
    "repair-script": [
        "rm {script}",
        ": > {script}",
        "echo 'echo $1 {op} $2' > {script}",
        "echo 'echo $(($2 {bad} $1))' > {script}",
        "echo 'echo 12' > {script}",
        "echo 'echo $((7 {op} 5))' > {script}",
        "echo 'echo the result is $(($1 {op} $2))' > {script}",
        "echo 'echo $(($1 {op} $2)) >&2' > {script}",
        "echo 'while :; do :; done' > {script}",
        "echo 'while :; do echo 12; done' > {script}",
        "echo 'sleep 100 & echo 12; wait' > {script}",
        "rm {script}; mkfifo {script}",
        "rm {script}; ln -s /tests/test.sh {script}",
    ],
    "sort-unique": [
        "sort {list} > {out}",
        "uniq {list} > {out}",
        "sort -ur {list} > {out}",
        "sort {list} | uniq -d > {out}",
        "sort -u {list}",
        "sort -u {list} | tr '\\n' ' ' > {out}",
        "sort -u {list} | head -n 3 > {out}",
        "sort {list} | uniq -c > {out}",
        "ln -s /tests/expected.txt {out}",
    ],
    "sum-column": [
        "awk -F, '{{ s += $2 }} END {{ print s }}' {table} > {out}",
        "awk -F, '{{ s += $2 + $3 }} END {{ print s }}' {table} > {out}",
        "awk -F, 'NR > 2 {{ s += $3 }} END {{ print s }}' {table} > {out}",
        "awk -F, '{{ s += $3 }} END {{ print \"sum:\", s }}' {table} > {out}",
        "wc -l < {table} > {out}",
        "echo {total}.5 > {out}",
    ],
}
"""Lines of sh by template; `{name}` is a value of the variant."""

RIGHT = {
    "change-setting": "awk '/^{key} = /{{ $3 = \"{value}\" }} {{ print }}' {file} > x; mv x {file}",
    "count-lines": "n=0; while read -r line; do case $line in *{word}*) n=$((n+1));; esac; "
    "done < {log}; printf %s $n > {out}",
    "find-word": "printf %s {path} > {out}",
    "pack-folder": "tar -cf x {folder}/*; gzip x; mv x.gz {archive}.tar.gz; rm -r {folder}",
    "rename-files": "cd {folder}; for n in {a} {b} {c}; do mv $n.{old} $n.{new}; done",
    "repair-script": "sed -i 's/{bad}/{op}/' {script}",
    "sort-unique": "sort {list} | uniq > {out}",
    "sum-column": "s=0; for n in $(tail -n +2 {table} | cut -d, -f3); do s=$((s+n)); done; "
    "echo $s > {out}",
}
"""Another way than the solution's, by template."""


def test_there_are_eight_and_each_has_variants_to_train_on_and_held_out_ones():
    assert len(NAMES) == 8
    assert NAMES == sorted(WRONG) == sorted(RIGHT)
    for name in NAMES:
        splits = [variant.split for variant in read_variants(EXAMPLES / name)]
        assert splits.count("train") >= 6, name
        assert splits.count("held-out") >= 3, name


@pytest.mark.parametrize("name", NAMES)
def test_a_held_out_variant_shares_no_name_with_a_trained_one(name):
    """Short numbers and the operators of arithmetic come again: there are not enough."""
    given = {"train": set(), "held-out": set()}
    for variant in read_variants(EXAMPLES / name):
        own = {key: value for key, value in variant.values.items() if key not in ("op", "bad")}
        texts = {value for key, value in own.items() if key != "what" and not value.isdigit()}
        given[variant.split] |= texts - {variant.split}
    common = given["train"] & given["held-out"]
    # What stands in the files of find-word beside the word that is looked for.
    assert common <= {"plain", "dull", "pale", "dim", "dark"}


@pytest.mark.parametrize("name", NAMES)
async def test_the_oracle_passes_and_a_no_op_fails_on_every_variant(open_place, name, tmp_path):
    tasks = load_tasks(EXAMPLES / name, tmp_path)
    assert all(task.is_local for task in tasks)
    reports = await check_all(tasks, open_place, concurrency=2)
    assert {report.task: report.problems for report in reports} == {task.name: () for task in tasks}


@pytest.mark.parametrize("name", NAMES)
async def test_a_wrong_result_is_an_honest_0_and_another_way_is_a_1(open_place, name, tmp_path):
    variants, tasks = read_variants(EXAMPLES / name), load_tasks(EXAMPLES / name, tmp_path)
    places = asyncio.Semaphore(4)

    async def judged(task, values, line):
        async with places, open_place(task) as place:
            await prepare(task, place)
            argv = ["sh", "-c", line.format(**values)]
            done = await place.exec(argv, env={}, cwd=task.workdir, timeout_s=20)
            assert done.exit_code is not None, line
            verdict = (await grade(task, place)).verdict
        assert verdict.failure_class is FailureClass.NONE, (line, verdict)
        assert verdict.reward == (1 if line == RIGHT[name] else 0), argv

    wrong = WRONG[name] + (NO_ANSWERS if "out" in variants[0].values else [])
    async with asyncio.TaskGroup() as group:
        for line in [*wrong, RIGHT[name]]:
            group.create_task(judged(tasks[-1], variants[-1].values, line))


@pytest.mark.parametrize("name", NAMES)
def test_a_task_is_short_to_read(name, tmp_path):
    """A small model reads the instruction at every turn."""
    for task in load_tasks(EXAMPLES / name, tmp_path):
        assert len(task.instruction) < 200, task.name
        assert "{{" not in "".join(
            path.read_text() for path in task.folder.rglob("*") if path.is_file()
        )
    assert (EXAMPLES / name / VARIANTS).is_file()
