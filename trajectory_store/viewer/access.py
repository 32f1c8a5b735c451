"""Who may read: checks that stand before every page.

    method    GET and HEAD only; there is nothing to change here
    Host      this server's own name and port, so that no other site's name leads here (rebinding)
    Origin    absent, or this server's own
    cookie    set once by `/open/<token>`, SameSite=Strict and HttpOnly, then a redirect

A token that was made here opens once. One that the user gave opens as often as they like, and is
required on an address that other machines can reach.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from ..errors import StoreError

MIN_TOKEN = 16
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Sent with every answer."""


class ViewerError(StoreError):
    """The viewer cannot be served as asked."""


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(slots=True)
class Access:
    """The one reader's way in."""

    host: str
    """The address listened on."""
    port: int
    token: str
    is_given: bool = False
    """The user gave the token: it opens more than once."""
    names: tuple[str, ...] = ()
    """Further host names, without port."""
    _cookie: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    _is_used: bool = False

    @classmethod
    def make(
        cls, host: str, port: int, token: str | None = None, names: tuple[str, ...] = ()
    ) -> Access:
        """Return a way in; raises `ViewerError` where a token must be given and is not."""
        if token is None and not is_loopback(host):
            raise ViewerError(
                f"other machines can reach {host}: set a token of your own "
                f"(BUDWOOD_VIEWER__TOKEN, {MIN_TOKEN} characters or more), or use 127.0.0.1"
            )
        if token is not None and len(token) < MIN_TOKEN:
            raise ViewerError(f"the viewer's token needs {MIN_TOKEN} characters or more")
        return cls(host, port, token or secrets.token_urlsafe(32), token is not None, names)

    @property
    def origin(self) -> str:
        """Return where a browser on this machine finds the pages."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::", "localhost", "") else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def url(self) -> str:
        """Return the address that opens the viewer; it holds the token."""
        return f"{self.origin}/open/{self.token}"

    @property
    def cookie_name(self) -> str:
        """Return the cookie's name; ports share cookies, so it holds the port."""
        return f"budwood_view_{self.port}"

    def opens(self, token: str) -> bool:
        """Return whether a token opens the viewer, and use it up."""
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            return False
        if self._is_used and not self.is_given:
            return False
        self._is_used = True
        return True

    def set_cookie(self, response: web.StreamResponse) -> None:
        """Let the browser in from now on."""
        response.set_cookie(
            self.cookie_name, self._cookie, path="/", httponly=True, samesite="Strict"
        )

    def refusal(self, request: web.Request) -> tuple[int, str] | None:
        """Return status and reason where a request may not be answered."""
        if request.method not in ("GET", "HEAD"):
            return 405, "Nothing can be changed here."
        host = request.headers.get("Host", "")
        if not self._is_ours(host):
            return 403, "This server is not known by that name."
        origin = request.headers.get("Origin")
        if origin is not None and origin != f"http://{host}":
            return 403, "Requests from other sites are not answered."
        if request.path.startswith("/open/"):
            return None
        cookie = request.cookies.get(self.cookie_name, "")
        if not hmac.compare_digest(cookie.encode("utf-8", "replace"), self._cookie.encode()):
            return 401, "Open the address that `budwood view` printed."
        return None

    def _is_ours(self, host: str) -> bool:
        name, colon, port = host.rpartition(":")
        if not colon or "]" in port:
            name, port = host, "80"
        if port != str(self.port):
            return False
        name = name.strip("[]").lower()
        if name in self.names:
            return True
        if is_loopback(self.host):
            return name in ("127.0.0.1", "localhost", "::1", self.host)
        # An address is no name that someone else could point here.
        return name == self.host or self._is_address(name)

    def _is_address(self, name: str) -> bool:
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.host in ("0.0.0.0", "::", "")


ErrorPage = Callable[[int, str], web.Response]
"""Makes the page of an error; it repeats nothing of the request."""


def guard(access: Access, error_page: ErrorPage) -> Middleware:
    """Return the middleware that checks every request and puts the headers on every answer."""

    @web.middleware
    async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
        refused = access.refusal(request)
        if refused is not None:
            response: web.StreamResponse = error_page(*refused)
        else:
            try:
                response = await handler(request)
            except web.HTTPException as error:
                response = error_page(error.status, error.reason)
        response.headers.update(HEADERS)
        return response

    return checked
