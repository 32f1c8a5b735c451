"""What can be set about the proxy; read by `budwood.cli`, passed in as one frozen object."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from .engine import EngineSettings


class SamplingPolicy(BaseModel):
    """Sampling fixed by a run of purpose `train`; sent whatever the harness asks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: float = Field(default=1.0, ge=0.0, le=2.0)
    """Sampling temperature."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Most tokens one call may sample; None leaves the harness's own limit and the model's."""


class ProxySettings(BaseModel):
    """Settings of one recording proxy. Defaults run on one machine with nothing else set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    """Address to listen on. Any but a loopback address needs keys: `open_rollouts` is refused."""
    port: int = Field(8800, ge=0, le=65535)
    """Port of the harness plane; 0 takes a free one."""
    socket: Path | None = None
    """Unix socket to listen on as well, for sandboxes whose network is the proxy alone; one that a
    dead process left there is replaced. None: none."""
    admin_port: int = Field(8801, ge=0, le=65535)
    """Port of the admin plane (open and close rollouts, metrics); 0 takes a free one."""
    admin_secret: SecretStr | None = None
    """Bearer secret of the admin plane. None: a random one is made, and the admin plane can
    only be used by the process that started the proxy."""
    open_rollouts: bool = False
    """On a loopback address, let an unknown key open a rollout named after its hash."""
    engine: EngineSettings = EngineSettings()
    """The engine that generates."""
    model_aliases: dict[str, str] = Field(default_factory=dict)
    """Asked model name → served model. Names not listed go to the engine's own model."""
    sampling: SamplingPolicy = Field(default_factory=SamplingPolicy)
    """What runs of purpose `train` send."""
    constrained: Literal["mark", "refuse"] = "mark"
    """Forced tools, grammars and biased logits in training runs: recorded and masked, or 400."""
    max_body_mib: int = Field(256, ge=1)
    """Largest request body after decompression, in MiB; above it 413."""
    head_s: float = Field(30.0, gt=0)
    """Seconds in which a connection must send a request's line and headers."""
    body_s: float = Field(60.0, gt=0)
    """Seconds that a request's body may take; longer while it comes faster than 10 kB/s."""
    max_concurrent_calls: int = Field(64, ge=1)
    """Calls of one rollout that may generate at the same time; more get 429."""
    keep_alive_s: float = Field(10.0, gt=0)
    """Seconds of silence after which a stream gets a keep-alive comment."""
    idle_delta_every: int = Field(3, ge=0)
    """Every n-th keep-alive is an empty delta too, for clients that ignore comments; 0: none."""
    drain_s: float = Field(30.0, ge=0)
    """Seconds that calls in flight may go on after a shutdown signal."""
    keep_raw: bool = False
    """Keep the engine's raw replies of all calls, not only of failed ones."""
    strict_templates: bool = False
    """Render whole where a template edits its own earlier text, though no content changes."""
    audit_share: float = Field(0.01, ge=0, le=1)
    """Share of spliced calls that a whole render checks."""
    cache_tokens: int = Field(16_000_000, ge=0)
    """Token ids of recent calls kept in memory (4 bytes each, plus their JSON text)."""
    seed: int | None = None
    """Seed of the proxy's own randomness (audits, tool-call ids, back-off); None: from the OS."""
