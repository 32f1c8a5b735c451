"""Imitation of recorded rollouts: from a store and a configuration to new weights.

Rows are the recorded tokens, with a loss on what was sampled. Recordings without ids can be
rendered from their text (`from_text.py`); how many rows are of that kind is in `run.json` and the
report.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from budwood.trajectory_store import Store

from .checkpoint import write_folder
from .errors import ConfigError, NothingToTrain
from .extra import heavy, naming_the_extra
from .from_text import sequences_from_text
from .grpo import Say, Trained, described, digest
from .reading import Recorded, read_for_sft
from .rows import Attempt, Row, sft_batch
from .run_folder import RunFolder
from .settings import SCHEDULES, HardwareSettings, SftConfig

IGNORED = -100
NOT_DECIDING = {"model", "output", "checkpoint", "hardware"}
FROM_TEXT = (
    "{n} of {all} rows were rendered from text by this model's template: the recordings have no "
    "token ids, so nobody knows whether these are the tokens that were sampled."
)


def train_sft(store: Store, config: SftConfig, *, say: Say = lambda _: None) -> Trained:
    """Train on the recorded rollouts that the configuration selects.

    Repeated after it was ended, it goes on from its newest checkpoint, and comes to the same
    weights. Raises `NothingToTrain`, `RunError` where the output folder holds another run, and
    errors of the store.
    """
    weighted = heavy("weighted_sft")
    tokenizer = _tokenizer(config.model)
    recorded, n_from_text = _read(store, config, tokenizer)
    batch = sft_batch(recorded.attempts, weight=config.weight, max_tokens=config.data.max_tokens)
    left_out = {**recorded.not_trained, **batch.left_out}
    if not batch.rows:
        what = f"selector {config.data.selector!r}"
        if left_out.get("no_ids") and not config.from_text:
            what += " (recordings without token ids need from_text = true)"
        raise NothingToTrain(what, left_out)
    note = FROM_TEXT.format(n=n_from_text, all=len(batch.rows))
    about = {
        **described("sft", config.model, config.output, recorded, left_out),
        "data_digest": digest(recorded.attempts),
        "decides": config.model_dump(mode="json", exclude=NOT_DECIDING),
        "settings": config.model_dump(mode="json"),
        "rows": {"recorded": len(batch.rows) - n_from_text, "from_text": n_from_text},
        "notes": [note] if n_from_text else [],
    }
    if n_from_text:
        say(note)
    with RunFolder(config.output, about) as folder:
        found = _complete(folder.checkpoints)
        folder.begin(_steps(found) if found else 0)
        if found:
            say(f"going on after step {_steps(found)}")
        trainer = _trainer(weighted, config, tokenizer, batch.rows, folder, say)
        trainer.train(resume_from_checkpoint=str(found) if found else None)
        write_folder(folder.model, lambda part: _write(trainer, tokenizer, part))
        steps = int(trainer.state.global_step)
        report = folder.finish(
            steps=steps,
            rows=len(batch.rows),
            **{"trained tokens": batch.n_trained, "rows from text": n_from_text},
        )
        return Trained(config.output, folder.model, report, steps, None)


def _read(store: Store, config: SftConfig, tokenizer: Any) -> tuple[Recorded, int]:
    """Return what is recorded, and how many of its rows are rendered from text."""
    recorded = read_for_sft(store, config.data)
    if not config.from_text:
        return recorded, 0
    counts, attempts, n_rows = Counter(recorded.not_trained), list[Attempt](), 0
    for attempt in recorded.attempts:
        calls = store.calls(attempt.rollout_id)
        if attempt.failure_class.counts and not any(call.has_ids for call in calls):
            counts["no_ids"] -= sum(call.state.is_complete for call in calls)
            counts["nothing_to_train"] -= 1
            found = sequences_from_text(
                store, attempt.rollout_id, tokenizer, config.data, counts
            )  # fmt: skip
            n_rows += sum(1 for sequence in found if sequence.n_trained)
            attempt = replace(attempt, sequences=tuple(found))
        attempts.append(attempt)
    left_out = {reason: n for reason, n in sorted(counts.items()) if n > 0}
    return Recorded(tuple(attempts), {}, left_out), n_rows


def _tokenizer(model: str) -> Any:
    with naming_the_extra():
        from transformers import AutoTokenizer
    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the model {model} cannot be loaded: {error}") from error
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return tokenizer


def _trainer(
    weighted: Any,
    config: SftConfig,
    tokenizer: Any,
    rows: tuple[Row, ...],
    folder: RunFolder,
    say: Say,
) -> Any:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, PrinterCallback, TrainerCallback
    from trl.trainer.sft_config import SFTConfig

    class Told(TrainerCallback):
        """Hands each step's figures on."""

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "loss" in logs:
                names = ("loss", "grad_norm", "learning_rate", "entropy", "accuracy")
                figures = {name: float(logs[name]) for name in names if name in logs}
                folder.log(state.global_step, figures)
                say(f"step {state.global_step} of {state.max_steps}: loss {figures['loss']:.5f}")

    optimizer, hardware = config.optimizer, config.hardware
    together = _together(rows, config.rows_per_step, hardware)
    try:
        model = AutoModelForCausalLM.from_pretrained(config.model, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the model {config.model} cannot be loaded: {error}") from error
    arguments = SFTConfig(
        output_dir=str(folder.checkpoints),
        max_length=None,
        packing=False,
        per_device_train_batch_size=together,
        gradient_accumulation_steps=config.rows_per_step // together,
        num_train_epochs=config.epochs,
        learning_rate=optimizer.learning_rate,
        weight_decay=optimizer.weight_decay,
        adam_beta1=optimizer.beta1,
        adam_beta2=optimizer.beta2,
        max_grad_norm=optimizer.max_grad_norm,
        warmup_steps=optimizer.warmup_steps,
        lr_scheduler_type=SCHEDULES[optimizer.schedule],
        bf16=hardware.precision == "bfloat16",
        use_cpu=hardware.device == "cpu" or not torch.cuda.is_available(),
        gradient_checkpointing=hardware.gradient_checkpointing,
        save_strategy="steps",
        save_steps=config.checkpoint.every,
        save_total_limit=config.checkpoint.keep,
        logging_steps=1,
        logging_first_step=True,
        disable_tqdm=True,
        seed=config.seed,
        report_to=[],
    )
    trainer = weighted.WeightedSFTTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_list([_columns(row) for row in rows]),
        processing_class=tokenizer,
        data_collator=weighted.WeightedCollator(pad_token_id=tokenizer.pad_token_id),
    )
    trainer.remove_callback(PrinterCallback)  # it writes to stdout
    trainer.add_callback(Told())
    return trainer


def _columns(row: Row) -> dict[str, Any]:
    import numpy as np

    return {
        "input_ids": row.input_ids,
        "labels": np.where(row.loss_mask, row.input_ids, IGNORED),
        "weights": row.weights,
    }


def _together(rows: tuple[Row, ...], per_step: int, hardware: HardwareSettings) -> int:
    """Return how many rows go through the model at a time: a divisor of a step's rows."""
    longest = max(row.n_tokens for row in rows)
    room = max(1, hardware.micro_batch_tokens // longest)
    return max(n for n in range(1, per_step + 1) if per_step % n == 0 and n <= room)


def _write(trainer: Any, tokenizer: Any, folder: Path) -> None:
    trainer.accelerator.unwrap_model(trainer.model).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _complete(folder: Path) -> Path | None:
    """Return the newest checkpoint of transformers that is whole; remove what a kill left.

    Its state is the last file that transformers writes.
    """
    found = sorted(folder.glob("checkpoint-*"), key=lambda p: int(p.name.rpartition("-")[2]))
    for path in found[::-1]:
        try:
            json.loads((path / "trainer_state.json").read_text("utf-8"))
        except (OSError, ValueError):
            shutil.rmtree(path)
            continue
        return path
    return None


def _steps(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])
