"""The HTTP endpoints: the page, JSON under /api, /metrics, and probes. Read-only."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cache
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from pfl_node.ops.events import KINDS, TooManyWatchers
from pfl_node.ops.node_health import Level, exchange_checks, is_green, worst
from pfl_node.ops.prometheus import registry_of
from pfl_node.ops.status import facts_of, status_of
from pfl_node.ops.swarm_view import SwarmView
from pfl_node.ops.web.auth import Token, TokenAuth

if TYPE_CHECKING:
    from pfl_node.ops.observed_node import ObservedNode

TICK = 1.0  # seconds between messages of /api/live
WRONG = 0.5  # seconds of delay after a wrong token
LONGEST_FORM = 4096  # bytes
MEDIA_TYPES = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
FOREVER = {"cache-control": "public, max-age=31536000, immutable"}

Handler = Callable[[Request], Awaitable[Response]]


def application(node: ObservedNode) -> TokenAuth:
    token = Token(node.settings.http.token, node.id) if node.settings.http.token else None
    views = Pages(node, token)
    routes: dict[str, Handler] = {
        "/": views.index,
        "/static/{digest}/{name}": views.static,
        "/api/status": views.status,
        "/api/swarm": views.swarm,
        "/api/history": views.history,
        "/api/events": views.events,
        "/api/live": views.live,
        "/metrics": views.metrics,
        "/healthz": views.alive,
        "/readyz": views.ready,
    }
    listed = [Route(path, view, methods=["GET"]) for path, view in routes.items()]
    listed.append(Route("/login", views.login, methods=["GET", "POST"]))
    return TokenAuth(Starlette(routes=listed, exception_handlers={HTTPException: _refused}), token)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)


class Pages:
    def __init__(self, node: ObservedNode, token: Token | None) -> None:
        self._node = node
        self._token = token
        self._files = StaticFiles()
        self._swarm_view = SwarmView(node)
        self._registry = registry_of(node)

    async def index(self, _: Request) -> Response:
        return HTMLResponse(self._files.page("index.html"))

    async def static(self, request: Request) -> Response:
        return self._files.answer(request.path_params["digest"], request.path_params["name"])

    async def login(self, request: Request) -> Response:
        if self._token is None:
            return RedirectResponse("/", 303)
        if request.method == "GET":
            return HTMLResponse(self._files.page("login.html", note=""))
        shown = await _form(request, "token")
        if not self._token.is_right(shown):
            await asyncio.sleep(WRONG)
            return HTMLResponse(self._files.page("login.html", note="That is not the token."), 401)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(self._token.cookie, self._token.ticket, httponly=True, samesite="strict")
        return answer

    async def status(self, _: Request) -> Response:
        return JSONResponse(self._facts())

    async def swarm(self, _: Request) -> Response:
        return JSONResponse(await self._swarm_view.look())

    async def history(self, _: Request) -> Response:
        return JSONResponse(await self._swarm_view.history())

    async def events(self, request: Request) -> Response:
        asked = request.query_params
        kinds = frozenset(kind for kind in asked.get("kinds", "").split(",") if kind)
        if unknown := sorted(kinds - set(KINDS)):
            raise HTTPException(400, f"unknown kind: {', '.join(unknown)}; known: {', '.join(KINDS)}")
        last = _number(asked.get("last"), "last")
        found = self._node.node_observer.hub.recent(
            after=_number(asked.get("after"), "after") or 0, kinds=kinds, last=last
        )
        return JSONResponse({"events": [event.plain() for event in found]})

    async def live(self, _: Request) -> Response:
        try:
            watch = self._node.node_observer.hub.watch().__enter__()
        except TooManyWatchers as error:
            raise HTTPException(503, str(error)) from error

        async def messages() -> AsyncIterator[str]:
            try:
                shown = None
                while not self._node.node_observer.hub.closed:
                    yield _message("tick", {"status": self._facts(), "events": [e.plain() for e in watch.take()]})
                    view = await self._swarm_view.look()
                    if view is not shown:
                        yield _message("swarm", view)
                        shown = view
                    await watch.pause(TICK)
                yield _message("bye", {})
            finally:
                watch.__exit__()

        return StreamingResponse(messages(), media_type="text/event-stream")

    async def metrics(self, request: Request) -> Response:
        from prometheus_client.exposition import choose_encoder

        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._registry), media_type=None, headers={"content-type": kind})

    async def alive(self, _: Request) -> Response:
        return JSONResponse({"state": self._node.state})

    async def ready(self, _: Request) -> Response:
        """Green only while the node exchanges models. Callers without access do not get names and addresses of
        peers."""
        checks = exchange_checks(self._node)
        level, green = worst(checks).level, is_green(checks)
        not_ok = [check.name for check in checks if check.level is not Level.OK]
        answer = {"state": self._node.state, "health": str(level), "not_ok": not_ok}
        return JSONResponse(answer, 200 if green else 503)

    def _facts(self) -> dict[str, Any]:
        return facts_of(status_of(self._node))


def _message(event: str, data: Any) -> str:
    return f"event: {event}\ndata: {json.dumps(data, allow_nan=False, separators=(',', ':'))}\n\n"


def _number(text: str | None, what: str) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise HTTPException(400, f"{what} must be a whole number")
    return int(text)


async def _form(request: Request, field: str) -> str:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LONGEST_FORM:
            raise HTTPException(413, "too long for a token")
    return (parse_qs(body.decode("utf-8", "replace")).get(field) or [""])[0]


@cache
def _read() -> dict[str, bytes]:
    folder = files("pfl_node.ops.web") / "static"
    return {
        file.name: file.read_bytes() for file in sorted(folder.iterdir(), key=lambda f: f.name) if file.is_file()
    }


class StaticFiles:
    """The files of the page, read once. Their URLs contain a digest, so that browsers may cache them forever."""

    def __init__(self) -> None:
        self._files = _read()
        self.digest = hashlib.sha256(b"\0".join(self._files.values())).hexdigest()[:16]

    def page(self, name: str, **words: str) -> str:
        """Replace each `{{word}}` by its HTML-escaped value."""
        text = self._files[name].decode()
        for word, value in {"static": f"/static/{self.digest}", **words}.items():
            text = text.replace("{{" + word + "}}", escape(value))
        return text

    def answer(self, digest: str, name: str) -> Response:
        kind = MEDIA_TYPES.get(name.rpartition(".")[2])
        if digest != self.digest or kind is None or name not in self._files:
            return PlainTextResponse("there is no such file; reload the page\n", 404)
        return Response(self._files[name], media_type=kind, headers=FOREVER)
