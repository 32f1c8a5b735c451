"""A model that is trained by rows: TRL's GRPO loss and optimizer, one step at a time.

    policy = Policy("folder/of/the/model", PolicySettings())
    check(policy.mismatch(batch.rows), settings.mismatch)
    metrics = policy.step(batch)
    policy.save("weights/step-1")

TRL 1.16's `GRPOTrainer` computes the loss. Two of its methods are replaced: the one that would
sample, which hands our rows on as they are, and the one that computes logprobs, whose result is
also kept for the figures of the step. Our weights act because

- `_compute_loss` takes advantages of shape (B, T), and the clipped objective is proportional to
  them, so `advantage * weight` is a token's advantage times its weight in the sum;
- loss type `dapo` divides the sum over all tokens by `num_items_in_batch`, and by nothing else
  where one generation batch is one micro-batch. That number is the batch's normaliser.

`step` computes the same sum from the logprobs itself and raises where TRL's loss differs, so that a
release that scales otherwise is noticed before it has trained anything.

Nothing is cut and nothing is padded on the left: a micro-batch begins its scored part before the
first trained token of its rows.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from .checkpoint import write_folder
from .errors import ConfigError, RunError, TrainerError
from .mismatch import Mismatch, compare
from .rows import Batch, Row
from .settings import SCHEDULES, PolicySettings

STATE = "state.pt"
"""In a checkpoint: optimizer, schedule, random numbers, and how many steps are done."""
WEIGHTS = "model"
"""In a checkpoint: the folder of the model."""

Inputs = dict[str, torch.Tensor]


class _RowsTrainer(GRPOTrainer):
    """TRL's trainer, which is given whole rows instead of prompts to sample from."""

    scored: tuple[torch.Tensor, torch.Tensor]
    """Logprobs and entropies of the last micro-batch, (B, T)."""

    def _send_telemetry(self) -> None:
        """Report to nobody that a trainer was made."""

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        return Trainer._prepare_inputs(self, generation_batch)

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        logprobs, entropies = found[:2]
        self.scored = (logprobs.detach(), torch.zeros_like(logprobs) if entropies is None
                       else entropies.detach())  # fmt: skip
        return found


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """What one optimizer step was made of; ratios are new to recorded probability, per token."""

    step: int
    """The number of steps done, this one included."""
    loss: float
    grad_norm: float
    """Before it is scaled down."""
    learning_rate: float
    n_rollouts: int
    n_rows: int
    n_tokens: int
    """With context."""
    n_trained: int
    ratio_mean: float
    ratio_min: float
    ratio_max: float
    clipped: float
    """Share of the trained tokens that the clip stops."""
    kl: float
    """Of the sampler from the policy before the step: the mean of `ratio - 1 - log(ratio)` (k3)."""
    entropy: float
    """Mean over the trained tokens."""
    seconds: float


class Policy:
    """A model and its optimizer; one process, one device.

    `mismatch` and `logprobs` compute only. `step` changes the weights, `save` and
    `save_checkpoint` write them.
    """

    def __init__(
        self,
        model: str | Path,
        settings: PolicySettings | None = None,
        *,
        temperature: float = 1.0,
        total_steps: int | None = None,
        checkpoint: Path | None = None,
    ) -> None:
        """Load the model, or a checkpoint made by `save_checkpoint`.

        `temperature` is the one that the rows were sampled at. `total_steps` is needed by
        schedules that fall.
        """
        self.settings = settings or PolicySettings()
        self.temperature = temperature
        wanted = self.settings.optimizer
        if wanted.schedule != "constant" and total_steps is None:
            raise ConfigError(f"optimizer.schedule {wanted.schedule!r} needs to know the last step")
        source = str(checkpoint / WEIGHTS if checkpoint is not None else model)
        try:
            loaded = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
            tokenizer = AutoTokenizer.from_pretrained(source)
        except (OSError, ValueError) as error:
            raise ConfigError(f"the model {source} cannot be loaded: {error}") from error
        # Any, since its parts are None or placeholders until they are made, and typed so.
        with TemporaryDirectory() as unused:  # made by transformers, and never written to
            self._trainer: Any = _RowsTrainer(
                model=loaded,
                reward_funcs=[_never],
                args=self._arguments(unused),
                train_dataset=Dataset.from_list([{"prompt": ""}]),
                processing_class=tokenizer,
            )
        _hold_trl_to_its_word(self._trainer)
        self._pad = int(tokenizer.pad_token_id)
        self._prepare(total_steps)
        if checkpoint is not None:
            self._restore(checkpoint / STATE)

    @property
    def steps(self) -> int:
        """How many optimizer steps are done."""
        return int(self._trainer.state.global_step)

    def logprobs(self, rows: Sequence[Row]) -> list[NDArray[np.float32]]:
        """Return the logprobs of each row's tokens now, per token, 0 where there is no loss."""
        found = [np.zeros(row.n_tokens, np.float32) for row in rows]
        model = self._trainer.model_wrapped
        model.eval()
        with torch.no_grad():
            for members in self._packed(rows):
                inputs = self._trainer._prepare_inputs(self._collate([rows[i] for i in members]))
                scored = self._score(model, inputs)
                for scored_T, index in zip(scored.float().cpu().numpy(), members, strict=True):
                    row, begin = rows[index], inputs["prompt_ids"].shape[1]
                    own = scored_T[: row.n_tokens - begin]
                    found[index][begin:] = np.where(row.loss_mask[begin:], own, 0)
        model.train()
        return found

    def mismatch(self, rows: Sequence[Row]) -> Mismatch:
        """Return how the recorded logprobs differ from those of the model as it is now."""
        return compare(rows, self.logprobs(rows))

    def step(self, batch: Batch) -> StepMetrics:
        """Do one optimizer step on a batch and return its figures."""
        if not batch.rows:
            raise TrainerError("a step needs rows, and this batch has none")
        trainer, began = self._trainer, time.monotonic()
        optimizer, schedule = trainer.optimizer, trainer.lr_scheduler
        optimizer.zero_grad()
        tally, loss = _Tally(self.settings), 0.0
        for members in self._packed(batch.rows):
            inputs = self._collate([batch.rows[i] for i in members], batch.normaliser)
            given = trainer.training_step(trainer.model_wrapped, inputs, None)
            part = tally.add(trainer.scored, inputs)
            if not math.isclose(float(given), part, rel_tol=1e-3, abs_tol=1e-5):
                raise TrainerError(
                    f"TRL's loss is {float(given):.6g} where the rows' weights make {part:.6g}: "
                    "this release of TRL scales it in another way, and nothing was trained"
                )
            loss += part
        norm = float(
            trainer.accelerator.clip_grad_norm_(
                trainer.model_wrapped.parameters(), self.settings.optimizer.max_grad_norm
            )
        )
        if not math.isfinite(norm):
            raise TrainerError(
                f"step {self.steps + 1}: the gradient is {norm}; nothing was changed"
            )
        rate = float(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        trainer.state.global_step += 1
        trainer._metrics["train"].clear()
        return StepMetrics(
            step=self.steps,
            loss=loss,
            grad_norm=norm,
            learning_rate=rate,
            n_rollouts=batch.n_rollouts,
            n_rows=len(batch.rows),
            n_tokens=sum(row.n_tokens for row in batch.rows),
            seconds=time.monotonic() - began,
            **tally.figures(),
        )

    def save(self, folder: str | Path) -> Path:
        """Write the model and its tokenizer, as engines and transformers read them."""
        return write_folder(Path(folder), self._write_model)

    def save_checkpoint(self, folder: str | Path) -> Path:
        """Write all that is needed to go on: a `Policy` made with it does the same next steps."""

        def fill(part: Path) -> None:
            self._write_model(part / WEIGHTS)
            cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
            state = {
                "step": self.steps,
                "optimizer": self._trainer.optimizer.state_dict(),
                "schedule": self._trainer.lr_scheduler.state_dict(),
                "random": torch.get_rng_state(),
                "random_cuda": cuda,
            }
            torch.save(state, part / STATE)

        return write_folder(Path(folder), fill)

    # -- inside ----------------------------------------------------------------------------------

    def _arguments(self, output: str) -> GRPOConfig:
        optimizer, hardware = self.settings.optimizer, self.settings.hardware
        return GRPOConfig(
            output_dir=output,
            # The loss, and what makes its scale ours.
            loss_type="dapo",
            beta=0.0,
            importance_sampling_level="token",
            epsilon=self.settings.loss.epsilon_low,
            epsilon_high=self.settings.loss.epsilon_high,
            temperature=self.temperature,
            per_device_train_batch_size=2,
            num_generations=2,
            steps_per_generation=1,
            gradient_accumulation_steps=1,
            disable_dropout=True,
            # The optimizer.
            learning_rate=optimizer.learning_rate,
            weight_decay=optimizer.weight_decay,
            adam_beta1=optimizer.beta1,
            adam_beta2=optimizer.beta2,
            max_grad_norm=optimizer.max_grad_norm,
            warmup_steps=optimizer.warmup_steps,
            lr_scheduler_type=SCHEDULES[optimizer.schedule],
            # The machine.
            bf16=hardware.precision == "bfloat16",
            use_cpu=hardware.device == "cpu" or not torch.cuda.is_available(),
            gradient_checkpointing=hardware.gradient_checkpointing,
            seed=self.settings.seed,
            report_to=[],
            save_strategy="no",
        )

    def _prepare(self, total_steps: int | None) -> None:
        trainer = self._trainer
        if self.settings.hardware.gradient_checkpointing:
            trainer.model.gradient_checkpointing_enable()
        trainer.current_gradient_accumulation_steps = 1
        trainer.create_optimizer()
        trainer.model_wrapped, trainer.optimizer = trainer.accelerator.prepare(
            trainer.model, trainer.optimizer
        )
        trainer.create_scheduler(total_steps or 1, trainer.optimizer)
        trainer.model_wrapped.train()

    def _restore(self, path: Path) -> None:
        trainer = self._trainer
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            trainer.optimizer.load_state_dict(state["optimizer"])
            trainer.lr_scheduler.load_state_dict(state["schedule"])
            torch.set_rng_state(state["random"])
            if torch.cuda.is_available() and state["random_cuda"]:
                torch.cuda.set_rng_state_all(state["random_cuda"])
            trainer.state.global_step = state["step"]
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            raise RunError(f"the checkpoint {path.parent} cannot be read: {error}") from error

    def _write_model(self, folder: Path) -> None:
        self._trainer.accelerator.unwrap_model(self._trainer.model).save_pretrained(folder)
        self._trainer.processing_class.save_pretrained(folder)

    def _score(self, model: Any, inputs: Inputs) -> torch.Tensor:
        parts = (("prompt_ids", "completion_ids"), ("prompt_mask", "completion_mask"))
        ids, mask = (torch.cat([inputs[a], inputs[b]], dim=1) for a, b in parts)
        keep = inputs["completion_ids"].shape[1]
        return self._trainer._get_per_token_logps_and_entropies(model, ids, mask, keep)[0]

    def _packed(self, rows: Sequence[Row]) -> Iterator[list[int]]:
        """Yield the indices of rows that go through the model together: the longest first."""
        members: list[int] = []
        for index in sorted(range(len(rows)), key=lambda i: (-rows[i].n_tokens, i)):
            longest = rows[members[0]].n_tokens if members else 0
            if members and longest * (len(members) + 1) > self.settings.hardware.micro_batch_tokens:
                yield members
                members = []
            members.append(index)
        if members:
            yield members

    def _collate(self, rows: Sequence[Row], normaliser: float = 1.0) -> Inputs:
        begin = min(row.first_trained for row in rows)
        longest = max(row.n_tokens for row in rows)

        def filled(value: int, dtype: Any, per_row: Any) -> torch.Tensor:
            array_BT = np.full((len(rows), longest), value, dtype)
            for array_T, row in zip(array_BT, rows, strict=True):
                array_T[: row.n_tokens] = per_row(row)
            return torch.from_numpy(array_BT)

        ids_BT = filled(self._pad, np.int64, lambda row: row.input_ids)
        real_BT = filled(0, np.int64, lambda _: 1)
        return {
            "prompt_ids": ids_BT[:, :begin],
            "prompt_mask": real_BT[:, :begin],
            "completion_ids": ids_BT[:, begin:],
            "completion_mask": real_BT[:, begin:],
            "tool_mask": filled(0, np.int64, lambda row: row.loss_mask)[:, begin:],
            "advantages": filled(0, np.float32, lambda r: r.advantages * r.weights)[:, begin:],
            "old_per_token_logps": filled(0, np.float32, lambda r: r.old_logprobs)[:, begin:],
            "num_items_in_batch": torch.tensor(normaliser),
        }


class _Tally:
    """The figures of a step, from the logprobs that TRL computed for its loss."""

    def __init__(self, settings: PolicySettings) -> None:
        self._low, self._high = settings.loss.epsilon_low, settings.loss.epsilon_high
        self._sums = dict.fromkeys(("ratio", "clipped", "kl", "entropy"), 0.0)
        self._n, self._least, self._most = 0, math.inf, -math.inf

    def add(self, scored: tuple[torch.Tensor, torch.Tensor], inputs: Inputs) -> float:
        """Count a micro-batch and return its part of the loss."""
        logprobs_BT, entropies_BT = scored
        mask = inputs["tool_mask"].bool()
        device = logprobs_BT.device
        old, worth = (inputs[name].to(device) for name in ("old_per_token_logps", "advantages"))
        mask = mask.to(device)
        log_ratio = (logprobs_BT - old)[mask].double()
        worth, ratio = worth[mask].double(), log_ratio.exp()
        stopped = ((ratio > 1 + self._high) & (worth > 0)) | ((ratio < 1 - self._low) & (worth < 0))
        self._sums["ratio"] += float(ratio.sum())
        self._sums["clipped"] += float(stopped.sum())
        self._sums["kl"] += float((ratio - 1 - log_ratio).sum())
        self._sums["entropy"] += float(entropies_BT[mask].double().sum())
        self._n += len(ratio)
        self._least = min(self._least, float(ratio.min()))
        self._most = max(self._most, float(ratio.max()))
        clipped = ratio.clamp(1 - self._low, 1 + self._high)
        loss = -torch.minimum(ratio * worth, clipped * worth).sum()
        return float(loss / inputs["num_items_in_batch"].double().clamp(min=1.0))

    def figures(self) -> dict[str, Any]:
        """Return the fields of `StepMetrics` that are about tokens."""
        means = {name: total / self._n for name, total in self._sums.items()}
        return {
            "n_trained": self._n,
            "ratio_mean": means["ratio"],
            "ratio_min": self._least,
            "ratio_max": self._most,
            "clipped": means["clipped"],
            "kl": means["kl"],
            "entropy": means["entropy"],
        }


def _never(**_: Any) -> list[float | None]:
    """Stand where TRL wants a reward function; rows bring their advantages."""
    raise AssertionError("nothing is sampled here, so nothing is rewarded")


def _hold_trl_to_its_word(trainer: Any) -> None:
    """Raise where a trainer is not as the module's docstring needs it."""
    wanted = {
        "loss_type": "dapo",
        "beta": 0.0,
        "importance_sampling_level": "token",
        "use_vllm": False,
        "off_policy_mask_threshold": None,
        "top_entropy_quantile": 1.0,
        "aux_loss_enabled": False,
    }
    found = {name: getattr(trainer, name) for name in wanted}
    if found != wanted or trainer.args.steps_per_generation != 1 or trainer.args.delta is not None:
        raise TrainerError(f"TRL's trainer came out as {found}, and {wanted} is needed")
    if trainer.accelerator.num_processes != 1:
        raise ConfigError("training runs in one process; start it without a distributed launcher")
