"""The demo's second half: who teaches, and what the figures are held to.

The whole of it, with its engine, is `make demo-train`.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from budwood.cli.demo.learning.lessons import lessons
from budwood.cli.demo.learning.teacher import LOOK, Teacher, is_lazy, solution
from budwood.cli.demo.learning.verdict import BEFORE, CONTROL, RL, SFT, Stage, Verdict
from budwood.cli.demo.tasks import END_OF_MINI

PROMPTS = {
    "react": "{task}<|im_start|>assistant\n",
    "pi": "running inside pi\n{task}<|im_start|>assistant\n",
    "mini": "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n{task}<|im_start|>assistant\n",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return lessons(tmp_path_factory.mktemp("tasks"))


def said(teacher, harness, task, n_said):
    prompt = PROMPTS[harness].format(task=task.instruction) + "<|im_start|>assistant\n" * n_said
    call: Any = SimpleNamespace(prompt=prompt)
    return teacher(call)


def test_nothing_that_is_trained_on_is_in_the_exam(found):
    trained = {task.instruction for task in found.train}
    assert len(trained) == 72
    assert len(found.held_out) == 18
    assert not trained & {task.instruction for task in found.held_out}


def test_the_tasks_of_a_step_are_the_same_when_it_is_repeated_and_none_that_was_imitated(found):
    chosen = found.some(4, 2, after=8)
    assert chosen == found.some(4, 2, after=8)
    assert len({task.name for task in chosen}) == 4
    taught = {task.name for task in found.first_of_each(8, found.train)}
    assert not taught & {task.name for task in chosen}


@pytest.mark.parametrize("harness", PROMPTS)
def test_the_teacher_does_most_tasks_and_is_lazy_at_the_others(found, harness):
    teacher = Teacher(found.train)
    n_lazy = 0
    for task in found.train:
        ((name, arguments),) = said(teacher, harness, task, 0).tool_calls
        lazy = is_lazy(task, harness)
        assert name == "bash"
        assert arguments == {"command": LOOK if lazy else solution(task)}
        n_lazy += lazy
    assert 0.2 < n_lazy / len(found.train) < 0.6


def test_the_teacher_ends_as_its_harness_wants_it(found):
    teacher, task = Teacher(found.train), found.train[0]
    assert said(teacher, "react", task, 1).content == "Done."
    assert said(teacher, "pi", task, 1).content == "Done."
    ((_, arguments),) = said(teacher, "mini", task, 1).tool_calls
    assert arguments == {"command": END_OF_MINI}


def test_the_teacher_says_so_where_it_knows_nothing():
    call: Any = SimpleNamespace(prompt="Write a poem.<|im_start|>assistant\n")
    reply = Teacher([])(call)
    assert "not a model" in reply.content


def verdict(before, sft, rl, control, *, n=72, inexact=0, difference=1e-6):
    def stage(mean):
        n_right = round(mean * n)
        rewards = [1.0] * n_right + [0.0] * (n - n_right)
        tasks = {f"task {i}": rewards[i::6] for i in range(6)}
        return Stage({"react": tasks}, 100, 100)

    means = {BEFORE: before, SFT: sft, RL: rl, CONTROL: control}
    return Verdict(
        stages={name: stage(mean) for name, mean in means.items()},
        n_complete=500,
        n_exact=500 - inexact,
        largest_difference=difference,
        training={RL: [0.3, 0.6], CONTROL: [0.3, 0.3]},
    )


def test_a_run_in_which_all_went_well_keeps_every_promise():
    good = verdict(0.0, 0.25, 0.6, 0.25)
    assert good.broken == []
    assert good.luck < 0.01
    text = "\n".join(good.lines())
    assert "after RL" in text
    assert "900 of 900" in text


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        (dict(before=0.2, sft=0.2, rl=0.6, control=0.2), "SFT did not raise"),
        (dict(before=0.0, sft=0.5, rl=0.4, control=0.3), "RL did not raise"),
        (dict(before=0.0, sft=0.2, rl=0.6, control=0.5), "the control rose"),
        (dict(before=0.0, sft=0.2, rl=0.25, control=0.25), "as good as RL"),
        (dict(before=0.0, sft=0.2, rl=0.6, control=0.2, n=30), "fewer than 36"),
        (dict(before=0.0, sft=0.2, rl=0.6, control=0.2, inexact=1), "899 of 900"),
        (dict(before=0.0, sft=0.2, rl=0.6, control=0.2, difference=2e-3), "differ by 0.002"),
        (dict(before=0.0, sft=0.2, rl=0.6, control=0.2, difference=float("nan")), "differ by nan"),
    ],
)
def test_each_broken_promise_is_named(figures, words):
    assert any(words in line for line in verdict(**figures).broken)


def test_the_arithmetic_tells_of_figures_that_luck_alone_could_make():
    assert verdict(0.0, 0.25, 0.3, 0.25, n=36).luck > 0.01
