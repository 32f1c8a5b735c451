"""Every door of the harness plane: chat, models, probes, and what is not there yet.

All paths also answer below `/r/<secret>`. Probes that harnesses send are answered harmlessly;
dialects that are not spoken yet say so in plain words, with a status that no SDK retries.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress

from aiohttp import web

from budwood.trajectory_store import StoreError

from ..call import error_body
from ..errors import NotIdentified
from ..identity import split_path
from ..recording.recorder import Recorder
from ..rollouts import Rollouts
from .chat import ChatDoor

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

CHAT = "/chat/completions"
NOT_YET = {
    "/responses": "responses",
    "/messages": "messages",
    "/messages/count_tokens": "messages",
    "/completions": "completions",
}
"""Paths of dialects that are not spoken yet."""
EMPTY_PROBES = {"/": {}, "/api/hello": {}, "/api/tags": {"models": []}, "/props": {}}


class Doors:
    """Routes a request by its path; one instance a proxy."""

    def __init__(self, recorder: Recorder, rollouts: Rollouts) -> None:
        """Serve the doors of one proxy."""
        self._recorder = recorder
        self._rollouts = rollouts
        self._chat = ChatDoor(recorder, rollouts)

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer any request of the harness plane."""
        _, path = split_path(request.path)
        bare = path.removeprefix("/v1") if path.startswith("/v1/") else path
        is_read = request.method in ("GET", "HEAD")
        if bare == CHAT:
            return await self._chat(request) if request.method == "POST" else _wrong_method("POST")
        if bare == "/models" or bare.startswith("/models/"):
            return self._models(bare) if is_read else _wrong_method("GET, HEAD")
        if path == "/health":
            return await self._health() if is_read else _wrong_method("GET, HEAD")
        dialect = NOT_YET.get(bare) or ("gemini" if path.startswith("/v1beta/models/") else None)
        if dialect is not None:
            return await self._not_yet(request, dialect)
        if is_read and path in EMPTY_PROBES:
            return web.json_response(EMPTY_PROBES[path])
        return _error(404, "No such path. The chat door is POST /v1/chat/completions.", "not_found")

    async def _health(self) -> web.Response:
        is_up = await self._recorder.engine.is_healthy()
        status = 200 if is_up and not self._recorder.is_stopping else 503
        return web.json_response({"engine": "up" if is_up else "down"}, status=status)

    def _models(self, bare: str) -> web.Response:
        engine = self._recorder.engine
        served = engine.info.served_model if engine.is_probed else None
        max_model_len = engine.info.max_model_len if engine.is_probed else None
        names = dict.fromkeys([served, *self._recorder.settings.model_aliases])
        entries = [_model_entry(name, max_model_len) for name in names if name]
        if bare == "/models":
            listing = {"object": "list", "data": entries, "has_more": False}
            if entries:
                listing |= {"first_id": entries[0]["id"], "last_id": entries[-1]["id"]}
            return web.json_response(listing)
        return web.json_response(_model_entry(bare.removeprefix("/models/"), max_model_len))

    async def _not_yet(self, request: web.BaseRequest, dialect: str) -> web.Response:
        """Say that a dialect is not spoken yet, and remember that a rollout asked for it."""
        with suppress(NotIdentified, StoreError):
            live = await self._rollouts.identify(request)
            live.refused_doors[dialect] += 1
        is_upgrade = request.headers.get("upgrade", "").lower() == "websocket"
        message = (
            f"The {dialect} dialect is not supported yet: this proxy speaks chat completions "
            "(POST /v1/chat/completions)."
        )
        return _error(426 if is_upgrade else 400, message, "dialect_not_supported")


def _model_entry(name: str, max_model_len: int | None) -> dict:
    """A model as OpenAI's and Anthropic's clients read it."""
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": 0,
        "created_at": "1970-01-01T00:00:00Z",
        "owned_by": "budwood",
        "max_model_len": max_model_len,
        "context_window": max_model_len,
    }


def _error(status: int, message: str, code: str) -> web.Response:
    return web.Response(
        status=status, body=error_body(status, message, code=code), content_type="application/json"
    )


def _wrong_method(allowed: str) -> web.Response:
    response = _error(405, f"This path takes {allowed}.", "method_not_allowed")
    response.headers["Allow"] = allowed
    return response
