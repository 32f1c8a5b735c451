"""What can be set about the engine."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

WayName = Literal["chat_prompt_token_ids", "kv_transfer", "generate", "text"]
"""How token ids get into the engine; `text`: not at all, it renders the messages itself."""


class EngineSettings(BaseModel):
    """Where the engine is and how patient we are with it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    urls: tuple[str, ...] = ("http://127.0.0.1:8000",)
    """Base URLs of the replicas, with or without `/v1`. Several must serve the same model."""
    api_key: SecretStr | None = None
    """Sent as `Authorization: Bearer`; never stored, logged or shown to a harness."""
    model: str | None = None
    """Served model to ask for. None: the first that the engine lists."""
    way: Literal["auto"] | WayName = "auto"
    """The way in for token ids; `auto` tries them in the order of `WayName`."""
    connect_s: float = Field(default=5.0, gt=0)
    """Seconds for a connection to be made."""
    first_byte_s: float = Field(default=1200.0, gt=0)
    """Seconds until the engine's status line: for a plain call, until its answer is sampled."""
    idle_s: float = Field(default=1200.0, gt=0)
    """Seconds between two pieces of an answer. There is no limit on a whole answer."""
    small_s: float = Field(default=60.0, gt=0)
    """Seconds for a whole render, tokenize or probe."""
    tries: int = Field(default=3, ge=1, le=10)
    """Most tries of a call that fails before its first byte (408, 409, 429, 5xx, no answer)."""
    backoff_min_s: float = Field(default=0.5, ge=0)
    """Least upper end of the random pause between tries."""
    backoff_max_s: float = Field(default=8.0, ge=0)
    """Largest pause between tries; a Retry-After above it ends the tries."""
    unhealthy_s: float = Field(default=5.0, ge=0)
    """Seconds that a replica which could not be reached is passed over."""

    @field_validator("urls", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            value = tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("urls")
    @classmethod
    def _without_v1(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("at least one engine URL is needed")
        for url in value:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"an engine URL begins with http:// or https://, not {url!r}")
        return tuple(url.rstrip("/").removesuffix("/v1").rstrip("/") for url in value)
