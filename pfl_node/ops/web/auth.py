"""Access to the page: from this machine, or with the token. Also sets the security headers."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from pfl_node.address import is_loopback

Scope = Any
App = Callable[[Scope, Any, Any], Awaitable[None]]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
OPEN = ("/healthz", "/readyz", "/login")  # paths for probes, and for visitors without the token
STATIC = "/static/"


class Token:
    """The secret of visitors. The cookie is derived from it, so that browsers do not store the token itself."""

    def __init__(self, token: str, node: str) -> None:
        self._token = token.encode()
        self.cookie = f"pfl-{node[:8]}"  # all ports of a machine share cookies
        self.ticket = hmac.new(self._token, b"page " + node.encode(), hashlib.sha256).hexdigest()

    def is_right(self, shown: str) -> bool:
        return hmac.compare_digest(shown.encode(), self._token)

    def allows(self, visitor: HTTPConnection) -> bool:
        scheme, _, shown = visitor.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_right(shown.strip()):
            return True
        return hmac.compare_digest(visitor.cookies.get(self.cookie, "").encode(), self.ticket.encode())


class TokenAuth:
    """ASGI middleware around the whole application."""

    def __init__(self, app: App, token: Token | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        async def sealed(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        if scope["type"] != "http":
            return
        answer = self._refusal(scope["path"], HTTPConnection(scope)) or self._app
        await answer(scope, receive, sealed)

    def _refusal(self, path: str, visitor: HTTPConnection) -> Response | None:
        if self._token is None:
            # DNS rebinding: a foreign name may point to this machine; the Host header shows it.
            if is_loopback(_host(visitor.headers.get("host", ""))):
                return None
            return PlainTextResponse("this page is only for this machine; use 127.0.0.1 or localhost\n", 403)
        if path in OPEN or path.startswith(STATIC) or self._token.allows(visitor):
            return None
        if "text/html" in visitor.headers.get("accept", ""):
            return RedirectResponse("/login", 303)
        return PlainTextResponse(
            "token required: Authorization: Bearer TOKEN\n", 401, {"www-authenticate": "Bearer"}
        )


def _host(header: str) -> str:
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] or header
