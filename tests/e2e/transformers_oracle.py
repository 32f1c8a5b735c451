"""What transformers says, knowing nothing of Budwood or vLLM: prompts and logprobs of a model."""

import json
from array import array
from copy import deepcopy
from pathlib import Path
from typing import Any


class Oracle:
    """A model's own template, tokenizer and weights (float32, on the CPU)."""

    def __init__(self, folder: Path) -> None:
        """Load what `folder` holds."""
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(1)  # matrices this small only lose time to thread hand-offs
        self._torch = torch
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.end_id: int = self._tokenizer.eos_token_id

    def prompt(
        self, messages: list[dict[str, Any]], tools: list[Any] | None, *, reply_follows: bool = True
    ) -> list[int]:
        """The ids of a chat body: messages as sent, tool arguments as objects."""
        return self._tokenizer.apply_chat_template(
            [_with_object_arguments(message) for message in messages],
            tools=tools or None,
            add_generation_prompt=reply_follows,
            tokenize=True,
            return_dict=False,
        )

    def reply(
        self, messages: list[dict[str, Any]], tools: list[Any] | None, reply: dict[str, Any]
    ) -> list[int] | None:
        """The ids that the template writes for a reply, its end id the last.

        None where the template writes something else before it than the generation prompt.
        """
        before = self.prompt(messages, tools)
        ids = self.prompt([*messages, reply], tools, reply_follows=False)
        if ids[: len(before)] != before:
            return None
        last = max(i for i, number in enumerate(ids) if number == self.end_id)
        return ids[len(before) : last + 1]

    def words(self, ids: "list[int] | array[int]") -> list[str]:
        """The text of ids, special tokens too, without its white space."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False).split()

    def logprobs(self, ids: "array[int]", temperature: float) -> list[float]:
        """The logprob of each id but the first after those before it, at a temperature."""
        torch = self._torch
        with torch.no_grad():
            logits = self._model(input_ids=torch.tensor([ids.tolist()])).logits[0, :-1]
            scaled = (logits.double() / temperature).log_softmax(-1)
        wanted = torch.tensor(ids.tolist()[1:])[:, None]
        return scaled.gather(1, wanted)[:, 0].tolist()


def _with_object_arguments(message: dict[str, Any]) -> dict[str, Any]:
    message = deepcopy(message)
    for call in message.get("tool_calls") or ():
        try:
            value = json.loads(call["function"]["arguments"] or "{}")
        except ValueError:
            value = {}
        call["function"]["arguments"] = value if isinstance(value, dict) else {}
    return message
