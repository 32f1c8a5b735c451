"""New weights into running engines, so that every call says which weights sampled it.

    announce "changing" to the proxies      calls that begin now have no known version
    pause (keep)                            running requests freeze
    reload from disk
    reset caches                            frozen requests are computed anew when they go on
    version                                 of the engine, then of the proxies
    resume

While the engines stand still, no token is sampled: so the version that the proxies announce changes
exactly where the weights do. A call that was in flight began before and ends after it, with two
versions, and is context in every row (`mixed`). One that begins while weights change has no first
version, and is context as well.

Whatever fails, the engines are resumed. Where the new weights were not taken, the ones before them
are put back and announced again; where that fails too, or there are none, the proxies keep saying
that the version is unknown. Both end as `SyncFailed`, which says what is served. A process that is
killed in the middle leaves engines paused: the next `push` of any weights heals that.

Three traps, each seen with vLLM 0.32:

- Without a reset, cached prefixes of the old weights are used on: logprobs off by 0.7. The label of
  the version also goes out as the proxy's cache salt, so that old blocks cannot match at all.
- The CPU build keeps a stale copy of an output head that is tied to the embedding: logprobs off by
  up to 4.5. Checksums do not show it, `verify` does.
- `reload_weights` reads a folder on the engine's own disk.

Needs the routes that vLLM has under `VLLM_SERVER_DEV_MODE=1`. They can do
anything with the engine: never on a port that a harness can reach.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import aiohttp
import structlog
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from budwood.trajectory_store import LaneId, LaneKind, RolloutId

from .errors import SyncFailed
from .mismatch import Mismatch, check
from .rows import Row
from .settings import MismatchSettings

log = structlog.get_logger()


class SyncSettings(BaseModel):
    """Who has to know of new weights."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engines: tuple[str, ...] = Field(min_length=1)
    """URLs of all replicas, without `/v1`, with dev routes on."""
    proxies: tuple[str, ...] = ()
    """URLs of the admin planes of all proxies before them."""
    admin_secret: SecretStr | None = None
    """Bearer secret of the admin planes (`proxy.admin_secret`)."""
    timeout_s: float = Field(default=600.0, gt=0)
    """What one request may take; a reload of large weights takes minutes."""


@dataclass(frozen=True, slots=True)
class Served:
    """Weights in an engine."""

    weights: Path
    """A folder that the engine can read."""
    version: int
    label: str


@dataclass(frozen=True, slots=True)
class Synced:
    """What a push took."""

    served: Served
    paused_s: float
    """How long the engines stood still."""
    total_s: float


class CanCompare(Protocol):
    """What a `Policy` does, as `verify` needs it."""

    @property
    def temperature(self) -> float:
        """The temperature of its logprobs."""
        ...

    def mismatch(self, rows: Sequence[Row]) -> Mismatch:
        """Compare the rows' logprobs with its own."""
        ...


class _Refused(Exception):
    """A request of a sync was not answered as it must be."""


class WeightSync:
    """Pushes weights to engines and announces them to proxies; open while entered."""

    def __init__(self, settings: SyncSettings, *, serving: Served | None = None) -> None:
        """`serving` is what the engines were started with, to put back where a push fails."""
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None
        self.serving = serving
        """What the engines answer with; None where that is unknown."""

    async def __aenter__(self) -> Self:
        """Open the connections."""
        timeout = aiohttp.ClientTimeout(total=self._settings.timeout_s)
        # vLLM closes idle connections after 5 s, and pushes are further apart than that.
        connector = aiohttp.TCPConnector(force_close=True)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Close them."""
        assert self._session is not None
        await self._session.close()

    async def push(self, weights: Path, version: int, label: str | None = None) -> Synced:
        """Make the engines serve a folder's weights and the proxies say so.

        `label` is the engine's own name of the version, by default `step-<version>`; it must be
        new with each push. Raises `SyncFailed`. A push that is cancelled comes to its end first.
        """
        return await _to_the_end(self._push(_named(weights, version, label)))

    async def announce(self, served: Served | None) -> None:
        """Tell the proxies which weights sample from now on; None: they are changing, or unknown.

        Raises `SyncFailed` where a proxy does not take it.
        """
        try:
            await self._announce(served)
        except _Refused as error:
            raise SyncFailed(str(error), serving=_label(self.serving)) from error

    async def sample(
        self, prompt: Sequence[int], *, n_tokens: int = 16, temperature: float = 1.0
    ) -> list[tuple[list[int], list[float]]]:
        """Return, of each engine, sampled tokens after a prompt and their logprobs."""
        body = {
            "prompt": list(prompt),
            "max_tokens": n_tokens,
            "temperature": temperature,
            "logprobs": 0,
            "return_token_ids": True,
            "ignore_eos": True,
            # Nothing cached before may stand in for what the weights say now.
            "cache_salt": f"probe-{time.monotonic_ns()}",
        }
        found: list[tuple[list[int], list[float]]] = []
        for engine in self._settings.engines:
            try:
                answer = await self._ask(engine, "/v1/completions", {"json": body})
            except _Refused as error:
                raise SyncFailed(str(error), serving=_label(self.serving)) from error
            choice = answer["choices"][0]
            found.append((choice["token_ids"], choice["logprobs"]["token_logprobs"]))
        return found

    async def verify(
        self,
        policy: CanCompare,
        prompts: Sequence[Sequence[int]],
        limits: MismatchSettings,
        *,
        n_tokens: int = 16,
    ) -> Mismatch:
        """Sample from every engine and compare its logprobs with the trainer's.

        Raises `Mismatched` where they are further apart than the limits: the engine does not serve
        the weights that it was given.
        """
        rows: list[Row] = []
        for prompt in prompts:
            sampled = await self.sample(
                prompt, n_tokens=n_tokens, temperature=policy.temperature
            )  # fmt: skip
            rows += [_row(prompt, *one) for one in sampled]
        found = await asyncio.to_thread(policy.mismatch, rows)
        check(found, limits)
        return found

    # -- inside ----------------------------------------------------------------------------------

    async def _push(self, new: Served) -> Synced:
        began, old = time.monotonic(), self.serving
        touched = False
        try:
            await self._announce(None)
            paused = time.monotonic()
            await self._each("/pause", params={"mode": "keep"})
            touched, self.serving = True, None
            await self._load(new)
            await self._announce(new)
            self.serving = new
        except _Refused as error:
            what = await self._put_back(old, touched=touched)
            raise SyncFailed(f"{error}; {what}", serving=_label(self.serving)) from error
        finally:
            await self._resume()
        ended = time.monotonic()
        log.info("weights pushed", version=new.version, label=new.label,
                 paused_s=round(ended - paused, 3))  # fmt: skip
        return Synced(new, ended - paused, ended - began)

    async def _load(self, served: Served) -> None:
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(served.weights)}}
        await self._each("/collective_rpc", json=reload)
        everything = {"reset_running_requests": "true", "reset_external": "true"}
        for answer in await self._each("/reset_prefix_cache", params=everything):
            if not (answer or {}).get("success"):
                raise _Refused("an engine did not let go of its prefix cache")
        await self._each("/update_weight_version", json={"new_version": served.label})

    async def _put_back(self, old: Served | None, *, touched: bool) -> str:
        """Go back to what was served before; say what is served now."""
        if old is None:
            return "what the engines serve now is unknown, and the proxies say so"
        try:
            if touched:
                await self._load(old)
            await self._announce(old)
        except _Refused as error:
            self.serving = None
            return f"going back to {old.label} failed too ({error}): what is served is unknown"
        self.serving = old
        return f"the engines serve {old.label} as before"

    async def _resume(self) -> None:
        """Resume every engine, whatever the others say."""
        failed: list[str] = []
        for engine in self._settings.engines:
            try:
                await self._ask(engine, "/resume", {})
            except _Refused as error:
                failed.append(str(error))
        if failed:
            raise SyncFailed(
                f"engines stay paused: {'; '.join(failed)}", serving=_label(self.serving)
            )

    async def _announce(self, served: Served | None) -> None:
        secret = self._settings.admin_secret
        headers = {"Authorization": f"Bearer {secret.get_secret_value()}"} if secret else {}
        said = {
            "version": served.version if served else None,
            "label": served.label if served else None,
        }
        for proxy in self._settings.proxies:
            await self._ask(proxy, "/admin/policy", {"json": said, "headers": headers})

    async def _each(self, path: str, **request: Any) -> list[Any]:
        """Post to all engines at once; raises `_Refused` once all have answered."""
        asked = [self._ask(engine, path, request) for engine in self._settings.engines]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    async def _ask(self, base: str, path: str, request: dict[str, Any]) -> Any:
        assert self._session is not None
        url = base.rstrip("/") + path
        try:
            async with self._session.post(url, **request) as answer:
                text = await answer.text()
                if answer.status != 200:
                    raise _Refused(f"{url} answered {answer.status}: {text[:300].strip()}")
                is_json = answer.content_type == "application/json"
                return await answer.json() if is_json and text else None
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise _Refused(f"{url} did not answer: {type(error).__name__} {error}") from error


def _named(weights: Path, version: int, label: str | None) -> Served:
    return Served(weights.absolute(), version, label or f"step-{version}")


async def _to_the_end(work: Awaitable[Synced]) -> Synced:
    """Await work that must not stop half way: a cancellation is raised after its end."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is not None:
            log.error("a push failed while it was cancelled", error=str(task.exception()))
        raise


def _label(served: Served | None) -> str | None:
    return served.label if served else None


def _row(prompt: Sequence[int], out: Sequence[int], logprobs: Sequence[float]) -> Row:
    import numpy as np

    n = len(prompt)
    ids_T = np.array([*prompt, *out], np.int64)
    mask_T = np.arange(len(ids_T)) >= n
    given_T = np.zeros(len(ids_T), np.float32)
    given_T[n:] = logprobs
    return Row(
        rollout_id=RolloutId("probe"),
        lane=LaneId("probe"),
        lane_kind=LaneKind.MAIN,
        branch=0,
        calls=(),
        input_ids=ids_T,
        loss_mask=mask_T,
        old_logprobs=given_T,
        advantages=np.zeros(len(ids_T)),
        weights=np.zeros(len(ids_T)),
    )
