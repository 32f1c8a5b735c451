"""The server of the pages."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog
from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..errors import NotStored, StoreError
from ..store import Store
from .access import Access, guard
from .connections import Runner
from .pages import Pages

log = structlog.get_logger()

_HERE = Path(__file__).parent
_ID = "[0-9a-z_]{4,40}"
_UNSHOWABLE = re.compile("[\0\ud800-\udfff]")
"""What was recorded and is no character of a page: halves of surrogate pairs, and NUL."""


def create_app(
    store: Store,
    access: Access,
    *,
    explanations: Mapping[str, str] | None = None,
    page_size: int = 50,
) -> web.Application:
    """Return the viewer of a store; `explanations` say what the writer's reason codes mean."""
    templates = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages = Pages(store, explanations or {}, page_size)

    def error_page(status: int, reason: str) -> web.Response:
        text = templates.get_template("error.html").render(status=status, reason=reason)
        return web.Response(status=status, text=text, content_type="text/html")

    def page(template: str, facts: Callable[..., dict[str, object]]) -> Callable:
        def made(names: dict[str, str], query: dict[str, str]) -> str:
            return templates.get_template(template).render(facts(query, **names))

        async def handler(request: web.Request) -> web.Response:
            try:
                text = await asyncio.to_thread(made, dict(request.match_info), dict(request.query))
            except NotStored:
                raise web.HTTPNotFound(reason="This store has no such record.") from None
            except StoreError as error:
                log.error("page not made", path=request.path, error=str(error))
                raise web.HTTPInternalServerError(reason="The store cannot be read.") from None
            shown = _UNSHOWABLE.sub("\ufffd", text)
            return web.Response(text=shown, content_type="text/html")

        return handler

    async def open_with_token(request: web.Request) -> web.StreamResponse:
        if not access.opens(request.match_info["token"]):
            raise web.HTTPForbidden(
                reason="This address opened the viewer once already, or never did. "
                "Start `budwood view` again for a fresh one."
            )
        begin = request.query.get("begin", "")
        location = f"/rollout/{begin}" if re.fullmatch(_ID, begin) else "/"
        response = web.Response(status=303, headers={"Location": location})
        access.set_cookie(response)
        return response

    def static(name: str, content_type: str) -> Callable:
        # From memory: a browser that hangs up in mid-answer would leave a file open.
        body = (_HERE / "static" / name).read_bytes()

        async def handler(_: web.Request) -> web.Response:
            return web.Response(body=body, content_type=content_type)

        return handler

    app = web.Application(middlewares=[guard(access, error_page)], client_max_size=0)
    app.router.add_get("/open/{token}", open_with_token)
    app.router.add_get("/style.css", static("style.css", "text/css"))
    app.router.add_get("/icon.svg", static("icon.svg", "image/svg+xml"))
    app.router.add_get("/", page("runs.html", pages.runs))
    app.router.add_get(f"/run/{{run_id:{_ID}}}", page("run.html", pages.run))
    app.router.add_get(f"/rollout/{{rollout_id:{_ID}}}", page("rollout.html", pages.rollout))
    app.router.add_get(f"/call/{{call_id:{_ID}}}", page("call.html", pages.call))
    app.router.add_get(f"/call/{{call_id:{_ID}}}/tokens", page("tokens.html", pages.tokens))
    app.router.add_get(f"/call/{{call_id:{_ID}}}/why", page("why.html", pages.why))
    return app


async def serve(
    store: Store,
    host: str,
    port: int,
    *,
    token: str | None = None,
    names: tuple[str, ...] = (),
    explanations: Mapping[str, str] | None = None,
    page_size: int = 50,
    ready: Callable[[Access], None],
) -> None:
    """Serve until cancelled; `ready` gets the way in once the port is open."""
    Access.make(host, port, token, names)  # refused before the port is opened
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family)
    access = Access.make(host, listening.getsockname()[1], token, names)
    app = create_app(store, access, explanations=explanations, page_size=page_size)
    runner = Runner(app)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        ready(access)
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
        listening.close()
