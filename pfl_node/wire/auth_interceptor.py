"""The door of a TLS endpoint: before every call it asks who calls, and whether that one may."""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from time import monotonic
from typing import Any
from urllib.parse import unquote

import grpc

from pfl_node.errors import Reason, Refused
from pfl_node.security.caller import CALLER
from pfl_node.security.certificate import Certificate, read_pem
from pfl_node.security.trust import Trust
from pfl_node.types import PeerId
from pfl_node.wire.statuses import REASON_KEY, STATUS

log = logging.getLogger(__name__)

Context = Any
Handler = Any  # grpc.RpcMethodHandler, whose types know neither its fields nor how to make another
LOOKING = frozenset({"GetStatus", "GetHistory", "WatchEvents", "List", "Check", "Watch", "ServerReflectionInfo"})
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
SAY_AGAIN = 60.0  # seconds
SAID_LIMIT = 1024  # callers and reasons


class AuthInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Every call of every service passes here, health and reflection included."""

    def __init__(self, trust: Trust) -> None:
        self.trust = trust
        self.refused: Counter[tuple[str, str]] = Counter()  # (call, reason)
        self.on_refused: Callable[[str, str, str], None] | None = None  # call, reason, id
        self._said: dict[tuple[str, str], float] = {}  # until when it is not said again

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Handler]], handler_call_details: Any
    ) -> Handler:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        call = handler_call_details.method.rpartition("/")[2]
        kind = next(kind for kind in KINDS if getattr(handler, kind) is not None)
        behind = self._behind(getattr(handler, kind), call)
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(behind, handler.request_deserializer, handler.response_serializer)

    def _behind(self, work: Any, call: str) -> Any:
        if inspect.isasyncgenfunction(work):

            async def several(request: Any, context: Context) -> AsyncIterator[Any]:
                await self._admit(call, context)
                async for answer in work(request, context):
                    yield answer

            return several

        async def one(request: Any, context: Context) -> Any:
            await self._admit(call, context)
            return await work(request, context)

        return one

    async def _admit(self, call: str, context: Context) -> None:
        shown: Certificate | None = None
        try:
            shown = _certificate(context)
            self.trust.check(shown)
            if shown.operator and call not in LOOKING:
                raise Refused(Reason.NOT_ALLOWED, f"{shown.id} is an operator: it may look, not call {call}")
        except Refused as refused:
            who = shown.id if shown else PeerId("")
            self._note(call, refused, who, context.peer())
            await context.abort(STATUS[refused.reason], refused.text, ((REASON_KEY, str(refused.reason)),))
        CALLER.set(shown.id if shown else None)

    def turned_away(self, host: str, reason: Reason, words: str) -> None:
        """A connection that ended before a call. Who cannot be named is taken for the one who was."""
        self._count("handshake", reason, "")
        if self._say((host, reason), "refused a connection from %s: %s", host or "somebody", words):
            self._said["", reason] = self._said[host, reason]

    def _note(self, call: str, refused: Refused, who: PeerId, place: str) -> None:
        self._count(call, refused.reason, who)
        self._say((who, refused.reason), "refused a call from %s: %s", unquote(place), refused.text)

    def _count(self, call: str, reason: Reason, who: str) -> None:
        self.refused[call, str(reason)] += 1
        if self.on_refused is not None:
            self.on_refused(call, str(reason), who)

    def _say(self, about: tuple[str, str], text: str, *words: str) -> bool:
        """Who is refused again and again is told of once in a while."""
        now = monotonic()
        if now < self._said.get(about, 0.0):
            return False
        if len(self._said) >= SAID_LIMIT:
            self._said.clear()
        self._said[about] = now + SAY_AGAIN
        log.warning(text, *words)
        return True


def _certificate(context: Context) -> Certificate:
    found = context.auth_context().get("x509_pem_cert")
    if not found:
        raise Refused(Reason.NO_TLS, "there is no certificate on this connection")
    try:
        return read_pem(found[0])
    except ValueError as error:
        raise Refused(Reason.GARBAGE, f"the certificate cannot be read: {error}") from error
