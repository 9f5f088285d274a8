"""Authorizes every call and gives it a slot before its message is read.

gRPC reads the message of a unary call before it runs the handler. A stream's handler runs first, and both look the
same on the wire, so unary calls are registered as streams of one message.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from pfl_node.address import is_loopback
from pfl_node.errors import Reason, Refused
from pfl_node.security.caller import CALLER
from pfl_node.wire.authorization import OPERATOR_CALLS, Authorization
from pfl_node.wire.call_slots import CallSlot, CallSlots
from pfl_node.wire.caller_connection import CallerConnection
from pfl_node.wire.fair_share import CALL
from pfl_node.wire.listener import Listener
from pfl_node.wire.quirks.strict_services import Behavior, Context, Handler, behavior_of
from pfl_node.wire.statuses import STATUS, refusal_metadata

SWEEP = 0.5  # seconds
EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]


class OpenCall:
    """A call in progress: its slot, its connection and its task."""

    def __init__(self, slot: CallSlot, connection: CallerConnection) -> None:
        self.slot = slot
        self.connection = connection
        self.evicted = False
        self._task = asyncio.current_task()

    def evict(self) -> None:
        self.evicted = True
        if self._task:
            self._task.cancel()

    def survive(self) -> None:
        """Handle the cancellation, so that the call ends with a status."""
        if self._task:
            self._task.uncancel()


class ReadingContext:
    """The context of a stream of requests. `heard` is called when a message has arrived."""

    def __init__(self, context: Context, heard: Callable[[], None]) -> None:
        self._context = context
        self._heard = heard

    async def read(self) -> Any:
        message = await self._context.read()
        self._heard()
        return message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class CallGate(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Intercepts all services, health and reflection included."""

    def __init__(self, listener: Listener, slots: CallSlots, authorization: Authorization | None) -> None:
        self._listener = listener
        self._slots = slots
        self._authorization = authorization
        self._open: dict[CallSlot, OpenCall] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Handler]], handler_call_details: Any
    ) -> Handler:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        name = handler_call_details.method.rpartition("/")[2]
        kind, behavior = behavior_of(handler)
        guarded = self._guarded(behavior, name, unary=kind.startswith("unary"))
        make = getattr(grpc, f"stream_{kind.partition('_')[2]}_rpc_method_handler")
        return make(guarded, handler.request_deserializer, handler.response_serializer)

    def _guarded(self, behavior: Behavior, name: str, *, unary: bool) -> Behavior:
        async def several(_: Any, context: Context) -> AsyncIterator[Any]:
            async with self._admitted(name, context) as call:
                reading = ReadingContext(context, lambda: self._heard(call))
                request = await _only(reading) if unary else _each(reading)
                async for answer in behavior(request, reading):
                    yield answer

        async def one(_: Any, context: Context) -> Any:
            async with self._admitted(name, context) as call:
                reading = ReadingContext(context, lambda: self._heard(call))
                return await behavior(await _only(reading) if unary else _each(reading), reading)

        return several if inspect.isasyncgenfunction(behavior) else one

    @asynccontextmanager
    async def _admitted(self, name: str, context: Context) -> AsyncIterator[OpenCall]:
        """Ends a call with a status if it is not authorized, gets no slot or sends no message."""
        try:
            call = self._admit(name, context)
        except Refused as refused:
            await _abort(context, refused)
            raise
        try:
            yield call
        except asyncio.CancelledError:
            if not call.evicted:
                raise
            call.survive()
            await _abort(context, Refused(Reason.TRUNCATED, "the message of the call did not arrive in time"))
        except Refused as refused:
            await _abort(context, refused)
        finally:
            self._end(call)

    def _admit(self, name: str, context: Context) -> OpenCall:
        connection = self._listener.of(context.peer())
        if connection is None:
            raise Refused(Reason.REJECTED, "the connection is closed")
        if self._authorization:
            self._authorization.check_call(name, connection.certificate, connection.host)
        elif name in OPERATOR_CALLS and not is_loopback(connection.host):
            raise Refused(Reason.NOT_ALLOWED, f"without TLS, {name} is for callers on the node's own machine")
        now = self._listener.now()
        slot, evicted = self._slots.begin(connection.caller, now)
        if evicted in self._open:
            self._open[evicted].evict()
        call = self._open[slot] = OpenCall(slot, connection)
        connection.calls += 1
        self._listener.spend(connection, CALL)
        CALLER.set(connection.certificate.id if connection.certificate else None)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SWEEP, self._sweep)
        return call

    def _heard(self, call: OpenCall) -> None:
        self._slots.heard(call.slot)
        if not call.connection.proven:
            self._listener.proved(call.connection)

    def _end(self, call: OpenCall) -> None:
        self._slots.end(call.slot)
        del self._open[call.slot]
        call.connection.calls -= 1

    def _sweep(self) -> None:
        now = self._listener.now()
        for slot, call in self._open.items():
            if self._slots.late(slot, now, call.connection.active):
                call.evict()
        self._timer = asyncio.get_running_loop().call_later(SWEEP, self._sweep) if self._open else None


async def _only(context: ReadingContext) -> Any:
    """The request of a unary call."""
    request = await context.read()
    if request is EOF:
        raise Refused(Reason.TRUNCATED, "the call has no message")
    return request


async def _each(context: ReadingContext) -> AsyncIterator[Any]:
    while (request := await context.read()) is not EOF:
        yield request


async def _abort(context: Context, refused: Refused) -> None:
    await context.abort(STATUS[refused.reason], refused.text, refusal_metadata(refused))
