"""The admin plane: opens, closes and labels rollouts, announces weights, serves metrics.

It listens on a port of its own and takes a bearer secret of its own, so nothing that a harness
holds can reach it.

    GET  /health
    GET  /metrics                        Prometheus' text format
    POST /admin/rollouts                 OpenRollout → rollout_id, run_id, secret
    GET  /admin/engine                   what is known of the engine
    POST /admin/rollouts/{id}/close
    POST /admin/rollouts/{id}/labels     {"labels": {...}}
    POST /admin/policy                   SetPolicy: the weights that sample from now on
"""

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from secrets import token_hex
from typing import Annotated, Any

import structlog
from aiohttp import web
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from budwood.trajectory_store import (
    History,
    NotStored,
    NotWritten,
    Purpose,
    RolloutId,
    Run,
    RunId,
    StoreError,
)

from .call.bounds import is_wide
from .doors.body import read_body
from .errors import Refused
from .recording.failures import store_cause
from .recording.recorder import Recorder
from .rollouts import Rollouts

MAX_BODY_BYTES = 2**20

log = structlog.get_logger()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _storable(value: Any) -> Any:
    """Refuse what JSON can't say to every reader: NaN, infinities, integers of over 64 bits."""
    if is_wide(value):
        raise ValueError("an integer is too large")
    json.dumps(value, allow_nan=False)
    return value


Name = Annotated[str, StringConstraints(max_length=1000)]
Label = Annotated[Any, AfterValidator(_storable)]


class Budgets(BaseModel):
    """What a rollout may spend; what is left out is not limited."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    max_calls: int | None = Field(None, ge=0, lt=2**53)
    max_tokens: int | None = Field(None, ge=0, lt=2**53)
    """Prompt and sampled tokens over all its calls."""
    wall_s: float | None = Field(None, ge=0)
    """Seconds since the rollout was opened."""


class OpenRollout(BaseModel):
    """Body of POST /admin/rollouts."""

    model_config = ConfigDict(extra="forbid")

    run: Name = "default"
    run_id: RunId | None = None
    """A run that is in the store; then `run`, `purpose` and `history` are its own."""
    purpose: Purpose = Purpose.RECORD
    history: History = History.AS_SENT
    group_id: Name | None = None
    attempt: int = Field(0, ge=0, lt=2**31)
    task: Name | None = None
    harness: Name | None = None
    harness_version: Name | None = None
    model: Name | None = None
    labels: dict[Name, Label] = Field(default_factory=dict, max_length=1000)
    budgets: Budgets = Budgets.model_validate({})
    expires_in_s: float | None = Field(None, gt=0, lt=1e9)
    """Seconds until the secret expires; None: it lasts until the rollout is closed."""


class Labels(BaseModel):
    """Body of POST /admin/rollouts/{id}/labels; a value of null removes a label."""

    model_config = ConfigDict(extra="forbid")

    labels: dict[Name, Label] = Field(max_length=1000)


class SetPolicy(BaseModel):
    """Body of POST /admin/policy: the weights that sample from now on."""

    model_config = ConfigDict(extra="forbid")

    version: int | None = Field(ge=0, lt=2**53)
    """None: they are changing, or unknown. A call that begins then and ends under a known version
    is marked `mixed`, as is one that ends under another version than it began with."""
    label: Name | None = None
    """The engine's own name of them; prefix caches are kept apart by it."""


class Admin:
    """Handlers of the admin plane."""

    def __init__(self, recorder: Recorder, rollouts: Rollouts, secret: str) -> None:
        """Administer one proxy; `secret` is the bearer secret of every route but /health."""
        self._recorder = recorder
        self._rollouts = rollouts
        self._secret = secret
        self._runs: dict[tuple[str, Purpose, History], Run] = {}
        self._opening = asyncio.Lock()
        self._instance = token_hex(8)
        """Another one after a restart: what was opened before may have found no proxy meanwhile."""

    def app(self) -> web.Application:
        """The admin plane as an aiohttp application."""
        app = web.Application(middlewares=[self._guard])
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                web.post("/admin/rollouts", self._open),
                web.get("/admin/engine", self._engine),
                web.post("/admin/rollouts/{id}/close", self._close),
                web.post("/admin/rollouts/{id}/labels", self._label),
                web.post("/admin/policy", self._policy),
            ]
        )
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path != "/health":
            scheme, _, given = request.headers.get("authorization", "").partition(" ")
            given_bytes = given.strip().encode("utf-8", "surrogateescape")
            known = hmac.compare_digest(given_bytes, self._secret.encode())
            if scheme.lower() != "bearer" or not known:
                return web.json_response(
                    {"error": "The admin secret is missing or wrong."}, status=401
                )
        try:
            return await handler(request)
        except ValidationError as error:
            detail = error.errors(include_url=False, include_input=False, include_context=False)
            return web.json_response({"error": "bad request", "detail": detail}, status=400)
        except NotStored:
            return web.json_response({"error": "No such run or rollout."}, status=404)
        except NotWritten:
            return web.json_response({"error": "The store refused this record."}, status=409)
        except StoreError as error:
            log.error("store failed", cause=store_cause(error))
            return web.json_response({"error": "The store does not answer."}, status=503)
        except Refused as error:
            return web.json_response({"error": error.message}, status=error.status)
        except web.HTTPException as error:
            return web.json_response({"error": error.reason}, status=error.status)

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "stopping" if self._recorder.is_stopping else "up"})

    async def _metrics(self, _: web.Request) -> web.Response:
        self._recorder.metrics.rollouts.set(len(self._recorder.live))
        for event, n in self._recorder.live.suffix_counts().items():
            self._recorder.metrics.suffixes.labels(event).set(n)
        return web.Response(
            body=self._recorder.metrics.exposition(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _open(self, request: web.Request) -> web.Response:
        wanted = OpenRollout.model_validate_json(await read_body(request, MAX_BODY_BYTES) or b"{}")
        if wanted.run_id is not None:
            run = await asyncio.to_thread(self._recorder.store.run, wanted.run_id)
        else:
            run = await self.run(wanted.run, wanted.purpose, wanted.history)
        fields = wanted.model_dump(exclude={"run", "run_id", "purpose", "history", "expires_in_s"})
        fields["budgets"] = wanted.budgets.model_dump(exclude_none=True)
        if wanted.expires_in_s is not None:
            fields["expires_at"] = datetime.now(UTC) + timedelta(seconds=wanted.expires_in_s)
        rollout, secret = await self._rollouts.open(run=run, **fields)
        answer = {"rollout_id": rollout.id, "run_id": run.id, "secret": secret}
        return web.json_response(answer | {"proxy": self._instance}, status=201)

    async def _engine(self, _: web.Request) -> web.Response:
        if not self._recorder.is_ready:
            return web.json_response({"error": "The engine was not met yet."}, status=503)
        info = self._recorder.engine.info
        told = ("kind", "version", "served_model", "max_model_len", "way_in")
        digests = ("tokenizer_hash", "template_hash")
        return web.json_response({name: getattr(info, name) for name in (*told, *digests)})

    async def run(self, name: str, purpose: Purpose, history: History) -> Run:
        """The run of this name in this process, opened on first use."""
        async with self._opening:
            key = (name, purpose, history)
            if key not in self._runs:
                self._runs[key] = await self._rollouts.open_run(
                    name, purpose=purpose, history=history
                )
            return self._runs[key]

    async def _close(self, request: web.Request) -> web.Response:
        await self._rollouts.close(RolloutId(request.match_info["id"]))
        return web.json_response({"state": "closed", "proxy": self._instance})

    async def _label(self, request: web.Request) -> web.Response:
        labels = Labels.model_validate_json(await read_body(request, MAX_BODY_BYTES)).labels
        store = self._recorder.store
        await asyncio.to_thread(store.label_rollout, RolloutId(request.match_info["id"]), labels)
        return web.json_response({"labels": labels})

    async def _policy(self, request: web.Request) -> web.Response:
        policy = SetPolicy.model_validate_json(await read_body(request, MAX_BODY_BYTES))
        self._recorder.announce(policy.version, policy.label)
        return web.json_response(policy.model_dump())
