"""Precise statuses for generated services: INVALID_ARGUMENT for a request that cannot be parsed, UNIMPLEMENTED for
a method that the servicer does not implement.

gRPC: grpc.aio answers both with UNKNOWN and logs a traceback, although the caller is at fault. No upstream issue
known for the status; grpc/grpc#31711 reports the parse error.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from pfl_node.errors import Reason
from pfl_node.wire.statuses import REASON_KEY, STATUS

Context = Any
Handler = Any  # grpc.RpcMethodHandler, whose types lack its fields
Behavior = Callable[[Any, Context], Any]
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
UNPARSABLE = object()


def behavior_of(handler: Handler) -> tuple[str, Behavior]:
    """The kind of a handler and the function that it calls."""
    kind = next(kind for kind in KINDS if getattr(handler, kind) is not None)
    return kind, getattr(handler, kind)


def rebuilt(handler: Handler, behavior: Behavior, deserializer: Any) -> Handler:
    make = getattr(grpc, f"{behavior_of(handler)[0]}_rpc_method_handler")
    return make(behavior, deserializer, handler.response_serializer)


class StrictServices:
    """Stands in for the server while services register handlers. Handlers that take bytes are not changed."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        self._server.add_generic_rpc_handlers(tuple(StrictHandlers(handler) for handler in handlers))

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Handler]) -> None:
        """Ignored: generated code registers the same handlers as generic ones."""


class StrictHandlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._strict: dict[str, Handler] = {}

    def service(self, handler_call_details: Any) -> Handler:
        method = handler_call_details.method
        if method not in self._strict:
            found = self._inner.service(handler_call_details)
            if found is None:
                return None
            self._strict[method] = _strict(found)
        return self._strict[method]


def _strict(handler: Handler) -> Handler:
    parse = handler.request_deserializer
    if parse is None:
        return handler
    kind, behavior = behavior_of(handler)

    def parsed(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError:
            return UNPARSABLE

    async def one(request: Any, context: Context) -> Any:
        if request is UNPARSABLE:
            await _refuse(context)
        return await behavior(_checked(request, context) if kind.startswith("stream") else request, context)

    async def several(request: Any, context: Context) -> AsyncIterator[Any]:
        if request is UNPARSABLE:
            await _refuse(context)
        async for answer in behavior(
            _checked(request, context) if kind.startswith("stream") else request, context
        ):
            yield answer

    if inspect.isasyncgenfunction(behavior):
        return rebuilt(handler, several, parsed)
    return rebuilt(handler, one if inspect.iscoroutinefunction(behavior) else _unimplemented, parsed)


async def _checked(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
    async for request in requests:
        if request is UNPARSABLE:
            await _refuse(context)
        yield request


async def _unimplemented(request: Any, context: Context) -> None:  # noqa: ARG001
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this call is not served here")


async def _refuse(context: Context) -> None:
    text = "the message is not a valid request of this call"
    await context.abort(STATUS[Reason.GARBAGE], text, ((REASON_KEY, str(Reason.GARBAGE)),))
