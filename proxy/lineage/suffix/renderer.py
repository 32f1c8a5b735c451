"""What the finder asks of an engine: a template and a tokenizer, both as the engine has them."""

from array import array
from typing import Any, Protocol


class RenderRejected(ValueError):
    """The engine or its template refuses these messages: `status` is its 4xx answer."""

    def __init__(self, status: int, message: str) -> None:
        """A refusal with the engine's HTTP status and its own words."""
        super().__init__(status, message)
        self.status = status
        self.message = message

    def __str__(self) -> str:
        return f"the engine's template refuses the messages ({self.status}): {self.message}"


class Renderer(Protocol):
    """Renders chat messages to ids exactly as the engine does before it samples.

    Both methods ask the engine or a copy proved equal to it; they change nothing.
    """

    async def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None,
        template: dict[str, Any],
        add_generation_prompt: bool = True,
    ) -> "array[int]":
        """The prompt's ids (typecode I); `template` holds the fields that reach the template.

        Raises RenderRejected where the messages are refused, an engine error otherwise.
        """
        ...

    async def tokenize(self, text: str) -> "array[int]":
        """The ids of bare text, no special tokens added."""
        ...
