"""TRL's loss and gradient on our rows, against the same written by hand in torch."""

import math
import random

import pytest

from budwood.trainers import AdvantageSettings, Mismatched, TrainerError, grpo_batch
from budwood.trainers.settings import OptimizerSettings, PolicySettings

from .sequences import attempt, sequence, split

pytestmark = [
    pytest.mark.slow,
    # Other people's: torch and accelerate warn about machines without a GPU, TRL about its own.
    pytest.mark.filterwarnings("ignore"),
]

SETTINGS = PolicySettings(
    optimizer=OptimizerSettings(learning_rate=1e-2, max_grad_norm=1e9),
    hardware={"device": "cpu", "micro_batch_tokens": 40},  # pyright: ignore[reportArgumentType]
)


@pytest.fixture
def policy_of(model_folder):
    from budwood.trainers.policy import Policy

    def make(settings=SETTINGS, **more):
        return Policy(model_folder, settings, **more)

    return make


def tokens(rng, n):
    return [rng.randrange(250) for _ in range(n)]


def group(seed=0, n=4, *, off=0.3, logprobs=True):
    """Rollouts of unequal lengths, one with a second row, with logprobs near a uniform model's."""
    rng = random.Random(seed)
    made = []
    for number in range(n):
        name = f"ro_{seed}{number}"
        turns = [
            (tokens(rng, rng.randrange(2, 9)), tokens(rng, rng.randrange(1, 6))) for _ in range(3)
        ]
        n_out = sum(len(out) for _, out in turns)
        given = [-math.log(260) + rng.uniform(-off, off) for _ in range(n_out)]
        rows = [sequence(name, turns, logprobs=given if logprobs else None)]
        if number == 1:
            rows.append(
                sequence(name, [(tokens(rng, 4), tokens(rng, 7))], lane="la_sub",
                         logprobs=[-5.0 + rng.uniform(-off, off) for _ in range(7)])
            )  # fmt: skip
        made.append(attempt(name, float(number % 3), *rows, group=f"g{seed}"))
    return made


def recorded_by(policy, attempts):
    """The same rollouts with the logprobs that a policy gives their tokens."""
    from dataclasses import replace

    from budwood.trainers import sft_batch

    rows = sft_batch(attempts).rows
    found = {}
    for row, values in zip(rows, policy.logprobs(rows), strict=True):
        found[row.rollout_id, row.lane, row.branch] = values
    made = []
    for one in attempts:
        sequences = []
        for row in one.sequences:
            given = row.logprobs[:]
            values = found[row.rollout_id, row.lane.id, row.branch]
            for place, on in enumerate(row.loss_mask):
                if on:
                    given[place] = float(values[place])
            sequences.append(replace(row, logprobs=given))
        made.append(replace(one, sequences=tuple(sequences)))
    return made


def by_hand(folder, batch, *, low, high, temperature=1.0):
    """The loss of a batch and its gradient: token by token, row by row, plain torch."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    total = torch.zeros(())
    for row in batch.rows:
        logits = model(input_ids=torch.tensor(row.input_ids)[None]).logits[0] / temperature
        logprobs = logits.log_softmax(-1)
        for place in range(1, row.n_tokens):
            if not row.loss_mask[place]:
                continue
            now = logprobs[place - 1, int(row.input_ids[place])]
            ratio = torch.exp(now - float(row.old_logprobs[place]))
            clipped = ratio.clamp(1 - low, 1 + high)
            advantage = float(row.advantages[place])
            surrogate = torch.minimum(ratio * advantage, clipped * advantage)
            total = total - surrogate * float(row.weights[place]) / batch.normaliser
    total.backward()
    gradient = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return float(total.detach()), gradient


def gradient_of(policy, batch, monkeypatch):
    """The gradient with which a step's optimizer is called."""
    seen = {}
    optimizer = policy._trainer.optimizer
    real = optimizer.step

    def step(*args, **kwargs):
        model = policy._trainer.model
        seen.update({name: p.grad.clone() for name, p in model.named_parameters()})
        return real(*args, **kwargs)

    monkeypatch.setattr(optimizer, "step", step)
    return policy.step(batch), seen


@pytest.mark.parametrize("weight", ["rollout", "row", "token"])
def test_loss_and_gradient_of_trl_are_those_written_by_hand(
    policy_of, model_folder, monkeypatch, weight
):
    import torch

    policy = policy_of()
    near = recorded_by(policy, group(0) + group(1, 3))
    # Off the policy by up to 60 %, so that the clip is at work on both sides.
    rng = random.Random(5)
    for one in near:
        for row in one.sequences:
            for place, on in enumerate(row.loss_mask):
                if on:
                    row.logprobs[place] += rng.uniform(-0.5, 0.5)
    batch = grpo_batch(near, weight=weight)
    assert batch.n_rollouts == 7
    expected, gradient = by_hand(model_folder, batch, low=0.2, high=0.28)
    metrics, found = gradient_of(policy, batch, monkeypatch)
    assert metrics.loss == pytest.approx(expected, abs=1e-6)
    assert 0.05 < metrics.clipped < 0.95
    assert metrics.ratio_min < 0.8 < 1.28 < metrics.ratio_max
    assert found.keys() == gradient.keys()
    for name, expected_gradient in gradient.items():
        torch.testing.assert_close(found[name], expected_gradient, atol=1e-6, rtol=1e-4)
    size = math.sqrt(sum(float((g**2).sum()) for g in gradient.values()))
    assert metrics.grad_norm == pytest.approx(size, rel=1e-4)
    assert size > 1e-3


def test_the_temperature_of_the_recording_is_that_of_the_loss(policy_of, model_folder, monkeypatch):
    import torch

    policy = policy_of(temperature=0.7)
    batch = grpo_batch(recorded_by(policy, group(2)))
    assert policy.mismatch(batch.rows).largest < 1e-5
    expected, gradient = by_hand(model_folder, batch, low=0.2, high=0.28, temperature=0.7)
    metrics, found = gradient_of(policy, batch, monkeypatch)
    assert metrics.loss == pytest.approx(expected, abs=1e-6)
    for name, expected_gradient in gradient.items():
        torch.testing.assert_close(found[name], expected_gradient, atol=1e-6, rtol=1e-4)


def test_on_the_policy_every_ratio_is_one_and_nothing_is_clipped(policy_of):
    policy = policy_of()
    metrics = policy.step(grpo_batch(recorded_by(policy, group(3))))
    assert metrics.ratio_mean == pytest.approx(1, abs=1e-5)
    assert metrics.ratio_min == pytest.approx(1, abs=1e-5)
    assert metrics.clipped == 0
    assert metrics.kl == pytest.approx(0, abs=1e-6)
    assert 0 < metrics.entropy < math.log(260)


def weights_after(policy, batch):
    policy.step(batch)
    return {name: p.detach().clone() for name, p in policy._trainer.model.named_parameters()}


def same(left, right, atol=1e-6):
    import torch

    for name, value in left.items():
        torch.testing.assert_close(value, right[name], atol=atol, rtol=1e-5)


PLAIN = PolicySettings(
    optimizer=OptimizerSettings(learning_rate=1e-4),
    hardware={"device": "cpu"},  # pyright: ignore[reportArgumentType]
)


def test_rollouts_without_reward_and_a_lane_split_in_two_change_no_weight(policy_of, monkeypatch):
    made = recorded_by(policy_of(PLAIN), group(4))
    before, gradient = gradient_of(policy_of(PLAIN), grpo_batch(made), monkeypatch)
    more = [*made, attempt("ro_none", None, group="g4")]
    after, same_gradient = gradient_of(policy_of(PLAIN), grpo_batch(more), monkeypatch)
    same(gradient, same_gradient, atol=0)
    assert after.loss == before.loss
    from dataclasses import replace

    cut = [replace(one, sequences=(*split(one.sequences[0], 1), *one.sequences[1:]))
           for one in made]  # fmt: skip
    batch = grpo_batch(cut)
    assert len(batch.rows) == len(grpo_batch(made).rows) + len(made)
    after, same_gradient = gradient_of(policy_of(PLAIN), batch, monkeypatch)
    same(gradient, same_gradient)
    assert after.loss == pytest.approx(before.loss, abs=1e-6)


def test_how_rows_are_packed_changes_nothing(policy_of, monkeypatch):
    made = recorded_by(policy_of(PLAIN), group(5, 6))
    gradients = []
    for size in (1, 40, 10_000):
        settings = PLAIN.model_copy(
            update={"hardware": PLAIN.hardware.model_copy(update={"micro_batch_tokens": size})}
        )
        gradients.append(gradient_of(policy_of(settings), grpo_batch(made), monkeypatch)[1])
    same(gradients[0], gradients[1])
    same(gradients[0], gradients[2])


@pytest.mark.parametrize("change", [{"gradient_checkpointing": True}, {"precision": "bfloat16"}])
def test_saving_memory_changes_the_gradient_by_no_more_than_its_precision(
    policy_of, monkeypatch, change
):
    import torch

    made = recorded_by(policy_of(PLAIN), group(9))
    before, gradient = gradient_of(policy_of(PLAIN), grpo_batch(made), monkeypatch)
    hardware = PLAIN.hardware.model_copy(update=change)
    policy = policy_of(PLAIN.model_copy(update={"hardware": hardware}))
    after, found = gradient_of(policy, grpo_batch(made), monkeypatch)
    exact = "precision" not in change
    assert after.loss == pytest.approx(before.loss, abs=1e-6 if exact else 0.05)
    for name, expected in gradient.items():
        assert found[name].dtype is torch.float32
        size = float(expected.norm())
        assert float((found[name] - expected).norm()) <= (1e-5 if exact else 0.2) * size + 1e-6


def test_the_figures_of_a_step_say_how_old_its_tokens_are(policy_of):
    from budwood.trainers import step_figures

    policy = policy_of(PLAIN)
    made = recorded_by(policy, group(0))
    batch = grpo_batch(made)
    metrics = policy.step(batch)
    figures = step_figures(metrics, batch, made, version=5)  # recorded by version 3
    assert (figures["staleness/mean"], figures["staleness/max"]) == (2, 2)
    assert figures["reward/mean"] == 0.75
    assert figures["trained_tokens"] == batch.n_trained
    assert "staleness/mean" not in step_figures(metrics, batch, made)


def test_the_alarm_names_what_differs(policy_of):
    from budwood.trainers.mismatch import check

    policy = policy_of()
    good = grpo_batch(recorded_by(policy, group(6)))
    check(policy.mismatch(good.rows), SETTINGS.mismatch)
    nonsense = grpo_batch(group(6, off=3.0))
    found = policy.mismatch(nonsense.rows)
    with pytest.raises(Mismatched, match="processed_logprobs") as caught:
        check(found, SETTINGS.mismatch)
    assert f"{found.mean:.4g} on average (limit 0.05)" in str(caught.value)
    assert f"{found.largest:.4g} at most (limit 2)" in str(caught.value)
    # The same model at another temperature than the recording's.
    hot = policy_of(temperature=1.5)
    with pytest.raises(Mismatched, match="another temperature"):
        check(hot.mismatch(good.rows), SETTINGS.mismatch)


def test_a_checkpoint_goes_on_exactly_where_it_was_written(policy_of, tmp_path):
    from budwood.trainers.policy import Policy

    settings = PLAIN.model_copy(
        update={"optimizer": OptimizerSettings(learning_rate=1e-3, schedule="linear")}
    )
    batches = [grpo_batch(group(seed, off=0.1)) for seed in range(4)]
    through = policy_of(settings, total_steps=4)
    for batch in batches:
        through.step(batch)
    first = policy_of(settings, total_steps=4)
    first.step(batches[0])
    first.step(batches[1])
    place = first.save_checkpoint(tmp_path / "checkpoint-000002")
    second = Policy("not read", settings, total_steps=4, checkpoint=place)
    assert second.steps == 2
    metrics = [second.step(batch) for batch in batches[2:]]
    assert [m.step for m in metrics] == [3, 4]
    left = dict(through._trainer.model.named_parameters())
    for name, value in second._trainer.model.named_parameters():
        assert value.equal(left[name]), name


def test_a_release_of_trl_that_scales_otherwise_is_noticed_before_it_trains(policy_of):
    policy = policy_of()
    batch = grpo_batch(group(7))
    policy._trainer.current_gradient_accumulation_steps = 4
    before = {name: p.detach().clone() for name, p in policy._trainer.model.named_parameters()}
    with pytest.raises(TrainerError, match="nothing was trained"):
        policy.step(batch)
    for name, value in policy._trainer.model.named_parameters():
        assert value.equal(before[name])


def test_an_advantage_of_either_sign_moves_its_tokens_that_way(policy_of):
    policy = policy_of()
    made = recorded_by(policy, group(8))
    batch = grpo_batch(made, advantage=AdvantageSettings(scale="none"))
    before = policy.logprobs(batch.rows)
    for _ in range(3):
        policy.step(batch)
    after = policy.logprobs(batch.rows)
    for row, old, new in zip(batch.rows, before, after, strict=True):
        advantage = batch.advantages[row.rollout_id]
        if advantage:
            moved = float((new - old)[row.loss_mask].mean())
            assert math.copysign(1, moved) == math.copysign(1, advantage)
