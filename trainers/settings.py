"""What a training run is told: the models of its TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from .advantages import AdvantageSettings
from .rows import WeightMode

SCHEDULES: Mapping[str, str] = MappingProxyType(
    {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}
)
"""Our names of schedules → those of transformers."""


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataSettings(_Settings):
    """Which recordings are trained on."""

    selector: str
    """Which rollouts, as for every command: `all`, a run or rollout id, terms (`run=evening`)."""
    group_by: Literal["group", "task"] = "group"
    """What is compared within a run: rollouts of the same group as recorded, or of the same task.
    SFT compares nothing."""
    lanes: tuple[Literal["main", "sub-agent", "side"], ...] = ("main", "sub-agent")
    """Kinds of lanes that are trained."""
    max_tokens: int | None = Field(default=None, gt=1)
    """Rows longer than this are left out and counted, never cut. None: no limit."""
    include_secrets: bool = False
    """Also train what a secret was found in."""


class LossSettings(_Settings):
    """The clipped policy-gradient loss of GRPO."""

    weight: WeightMode = "rollout"
    """What counts once: a `rollout`, whatever it is made of, a `row`, or a `token`."""
    epsilon_low: float = Field(default=0.2, ge=0)
    """A token whose probability fell by more than this factor is pushed down no further."""
    epsilon_high: float = Field(default=0.28, ge=0)
    """A token whose probability rose by more than this factor is pushed up no further."""


class OptimizerSettings(_Settings):
    """AdamW and its schedule."""

    learning_rate: float = Field(default=1e-6, gt=0)
    """Of the peak."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the rate goes on after the warm-up; the last two fall to zero at the last step."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps in which the rate rises from zero."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Of matrices; norms and biases are not decayed."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the mean of gradients."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    """Decay of the mean of their squares."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients longer than this are scaled down to it."""


class HardwareSettings(_Settings):
    """What the model is trained on."""

    device: Literal["auto", "cpu"] = "auto"
    """`auto` takes a GPU where there is one."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of the computation; weights and optimizer are float32 in both."""
    gradient_checkpointing: bool = False
    """Compute activations twice instead of keeping them: less memory, a third more time."""
    micro_batch_tokens: int = Field(default=16_384, gt=0)
    """Padded tokens that go through the model at a time; a longer row goes alone. It changes
    memory and speed, and nothing else."""


class MismatchSettings(_Settings):
    """How far recorded and recomputed logprobs of the same tokens may differ, in nats.

    Float32 on both sides differs by 1e-5. An engine in bfloat16 differs by 0.01 on average and by
    0.3 and more on single tokens.
    """

    max_mean: float = Field(default=0.05, gt=0)
    """The mean of the absolute differences."""
    max_single: float = Field(default=2.0, gt=0)
    """The largest absolute difference."""


class CheckpointSettings(_Settings):
    """What a run that is killed goes on from."""

    every: int = Field(default=10, gt=0)
    """Steps between checkpoints; the last step always makes one."""
    keep: int = Field(default=2, gt=0)
    """How many are kept, the newest ones."""


class PolicySettings(_Settings):
    """What decides an optimizer step, whatever its rows come from."""

    seed: int = Field(default=0, ge=0, lt=2**32)
    """Of all that is drawn: the order of the data, the control's shuffle."""
    loss: LossSettings = LossSettings()
    """The loss."""
    optimizer: OptimizerSettings = OptimizerSettings()
    """The optimizer."""
    hardware: HardwareSettings = HardwareSettings()
    """The machine."""
    mismatch: MismatchSettings = MismatchSettings()
    """The alarm before the first step."""


class GrpoConfig(PolicySettings):
    """`budwood train grpo`: optimizer steps over recorded groups."""

    model: str
    """The model that sampled the recordings: a folder, or a name that transformers knows."""
    output: Path
    """Folder for checkpoints, metrics, the report and the new model. It belongs to one run."""
    data: DataSettings
    """The recordings."""
    advantage: AdvantageSettings = AdvantageSettings()
    """How rollouts are compared."""
    temperature: float | None = Field(default=None, gt=0)
    """Calls sampled at another temperature are context. None: the one that all were sampled at."""
    groups_per_step: int = Field(default=8, gt=0)
    """Groups whose rollouts make one optimizer step; groups that say nothing are not counted."""
    epochs: int = Field(default=1, gt=0)
    """How often each group is trained."""
    shuffle_advantages: bool = False
    """The control: advantages are handed out at random among the rollouts of each step. Nothing
    can be learnt from that."""
    checkpoint: CheckpointSettings = CheckpointSettings()
    """Checkpoints."""


class OnlineConfig(PolicySettings):
    """GRPO with rollouts of the model as it is after every step."""

    model: str
    """The model to begin with, which the engines serve: a folder, or a name."""
    output: Path
    """Folder for checkpoints, metrics, the report and the new model. It belongs to one run."""
    steps: int = Field(gt=0)
    """Optimizer steps, each on rollouts of its own."""
    temperature: float = Field(default=1.0, gt=0)
    """What the rollouts are sampled at; calls at another temperature are context."""
    data: DataSettings = DataSettings(selector="all")
    """What of the rollouts is trained; the selector is not looked at, since each step is told its
    rollouts."""
    advantage: AdvantageSettings = AdvantageSettings()
    """How rollouts are compared."""
    shuffle_advantages: bool = False
    """The control: advantages are handed out at random among the rollouts of each step. Nothing
    can be learnt from that."""
    checkpoint: CheckpointSettings = CheckpointSettings()
    """Checkpoints."""


class SftConfig(_Settings):
    """`budwood train sft`: imitation of recorded rollouts."""

    model: str
    """The model to train: a folder, or a name that transformers knows."""
    output: Path
    """Folder for checkpoints, metrics, the report and the new model. It belongs to one run."""
    data: DataSettings
    """The recordings; `reward>0` in the selector keeps the good ones."""
    from_text: bool = False
    """Train recordings that have no token ids, from their text as this model's template renders
    it. Such rows are not proved exact, and run and report say so."""
    weight: WeightMode = "rollout"
    """What counts once: a `rollout`, whatever it is made of, a `row`, or a `token`."""
    optimizer: OptimizerSettings = OptimizerSettings(learning_rate=1e-5)
    """The optimizer."""
    hardware: HardwareSettings = HardwareSettings()
    """The machine."""
    rows_per_step: int = Field(default=32, gt=0)
    """Rows of one optimizer step."""
    epochs: int = Field(default=1, gt=0)
    """How often each row is trained."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Of the order of the rows."""
    checkpoint: CheckpointSettings = CheckpointSettings()
    """Checkpoints."""
