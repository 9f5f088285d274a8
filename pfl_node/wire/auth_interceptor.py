"""Authentication and authorization of every call to a TLS endpoint."""

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
from pfl_node.wire.quirks.strict_services import Behavior, Context, Handler, behavior_of, rebuilt
from pfl_node.wire.statuses import STATUS, refusal_metadata

log = logging.getLogger(__name__)

READ_ONLY = frozenset({"GetStatus", "GetHistory", "WatchEvents", "List", "Check", "Watch", "ServerReflectionInfo"})
LOG_INTERVAL = 60.0  # seconds between log lines about the same caller and reason
LOG_LIMIT = 1024  # callers and reasons


class AuthInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Intercepts all services, health and reflection included."""

    def __init__(self, trust: Trust) -> None:
        self.trust = trust
        self.refused: Counter[tuple[str, str]] = Counter()  # (call, reason)
        self.on_refused: Callable[[str, str, str], None] | None = None  # call, reason, id
        self._next_log: dict[tuple[str, str], float] = {}  # by (caller, reason)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Handler]], handler_call_details: Any
    ) -> Handler:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        call = handler_call_details.method.rpartition("/")[2]
        return rebuilt(handler, self._guarded(behavior_of(handler)[1], call), handler.request_deserializer)

    def _guarded(self, behavior: Behavior, call: str) -> Behavior:
        async def several(request: Any, context: Context) -> AsyncIterator[Any]:
            await self._admit(call, context)
            async for answer in behavior(request, context):
                yield answer

        async def one(request: Any, context: Context) -> Any:
            await self._admit(call, context)
            return await behavior(request, context)

        return several if inspect.isasyncgenfunction(behavior) else one

    async def _admit(self, call: str, context: Context) -> None:
        certificate: Certificate | None = None
        try:
            certificate = _certificate(context)
            self.trust.check(certificate)
            if certificate.operator and call not in READ_ONLY:
                text = f"{certificate.id} is an operator, which may read but not call {call}"
                raise Refused(Reason.NOT_ALLOWED, text)
        except Refused as refused:
            peer = certificate.id if certificate else PeerId("")
            self._count(call, refused.reason, peer)
            where = unquote(context.peer())
            self._log((peer, refused.reason), "refused a call from %s: %s", where, refused.text)
            await context.abort(STATUS[refused.reason], refused.text, refusal_metadata(refused))
        CALLER.set(certificate.id if certificate else None)

    def handshake_failed(self, host: str, reason: Reason, text: str) -> None:
        """A connection failed before its first call. An unknown host counts as the one logged last."""
        self._count("handshake", reason, "")
        if self._log((host, reason), "refused a connection from %s: %s", host or "an unknown host", text):
            self._next_log["", reason] = self._next_log[host, reason]

    def _count(self, call: str, reason: Reason, peer: str) -> None:
        self.refused[call, str(reason)] += 1
        if self.on_refused is not None:
            self.on_refused(call, str(reason), peer)

    def _log(self, about: tuple[str, str], text: str, *arguments: str) -> bool:
        now = monotonic()
        if now < self._next_log.get(about, 0.0):
            return False
        if len(self._next_log) >= LOG_LIMIT:
            self._next_log.clear()
        self._next_log[about] = now + LOG_INTERVAL
        log.warning(text, *arguments)
        return True


def _certificate(context: Context) -> Certificate:
    found = context.auth_context().get("x509_pem_cert")
    if not found:
        raise Refused(Reason.NO_TLS, "this connection has no client certificate")
    try:
        return read_pem(found[0])
    except ValueError as error:
        raise Refused(Reason.GARBAGE, f"the certificate cannot be read: {error}") from error
