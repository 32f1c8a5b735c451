"""TRL's SFTTrainer with a weight a token: the loss of a step is the weighted mean over its tokens.

TRL 1.16 drops a column of weights, in three places: where columns are chosen, where a batch is
padded, where the loss is summed. Each is extended here. Weights go with labels: per token, and the
first one is never used, since nothing predicts the first token.
"""

from typing import Any

import torch
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling, SFTTrainer


class WeightedCollator(DataCollatorForLanguageModeling):
    """Pads `weights` like the labels."""

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """Return a batch with a column of weights, 0 where there is padding."""
        batch = super().torch_call(examples)
        weights_BT = torch.zeros(batch["labels"].shape)
        for weights_T, example in zip(weights_BT, examples, strict=True):
            weights_T[: len(example["weights"])] = torch.tensor(example["weights"])
        return {**batch, "weights": weights_BT}


class WeightedSFTTrainer(SFTTrainer):
    """Rows of `input_ids`, `labels` and `weights`."""

    loss_is_scaled_for_ga = True

    def _send_telemetry(self) -> None:
        """Report to nobody that a trainer was made."""

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        if "weights" not in self._signature_columns:
            self._signature_columns.append("weights")

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:
        parts = [batch["weights"][:, 1:].double().sum() for batch in batch_samples]
        return torch.stack(parts).sum().to(device)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the micro-batch's part of the weighted mean over the step."""
        assert num_items_in_batch is not None
        weights_BT = inputs.pop("weights")[:, 1:]
        outputs = model(**inputs, use_cache=False, fused_lm_head=True)
        loss = -(outputs.log_probs * weights_BT).sum() / num_items_in_batch
        trained = outputs.label_mask.sum().clamp(min=1)
        self._metrics["train"]["entropy"].append(float(outputs.entropy.detach().sum() / trained))
        self._metrics["train"]["accuracy"].append(float(outputs.is_top1.sum() / trained))
        return (loss, outputs) if return_outputs else loss
