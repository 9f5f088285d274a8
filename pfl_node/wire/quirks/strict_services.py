"""Services of generated code with precise answers: what cannot be read is INVALID_ARGUMENT, what nobody wrote is
UNIMPLEMENTED. gRPC by itself says UNKNOWN, and logs a traceback for a mistake of the caller's."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from pfl_node.errors import Reason
from pfl_node.wire.statuses import REASON_KEY, STATUS

Context = Any
Handler = Any  # grpc.RpcMethodHandler, whose types know neither its fields nor how to make another
Work = Callable[[Any, Context], Any]
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
UNREADABLE = object()


class StrictServices:
    """Stands in for a server while services put their handlers into it. Those that read bytes are left alone."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        self._server.add_generic_rpc_handlers(tuple(Precise(handler) for handler in handlers))

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Handler]) -> None:
        """Generated code adds the same handlers in both ways; one is enough."""


class Precise(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._known: dict[str, Handler] = {}

    def service(self, handler_call_details: Any) -> Handler:
        method = handler_call_details.method
        if method not in self._known:
            found = self._inner.service(handler_call_details)
            if found is None:
                return None
            self._known[method] = precise(found)
        return self._known[method]


def precise(handler: Handler) -> Handler:
    if handler.request_deserializer is None:
        return handler
    kind = next(kind for kind in KINDS if getattr(handler, kind) is not None)
    work = getattr(handler, kind)
    if inspect.isasyncgenfunction(work):
        behind: Any = _several(work)
    else:
        behind = _one(work, streamed=kind.startswith("stream")) if inspect.iscoroutinefunction(work) else _absent
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    return make(behind, _reader(handler.request_deserializer), handler.response_serializer)


def _reader(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def reading(data: bytes) -> Any:
        try:
            return read(data)
        except DecodeError:
            return UNREADABLE

    return reading


def _one(work: Work, *, streamed: bool) -> Work:
    async def one(request: Any, context: Context) -> Any:
        if request is UNREADABLE:
            await _refuse(context)
        return await work(_readable(request, context) if streamed else request, context)

    return one


def _several(work: Work) -> Work:
    async def several(requests: Any, context: Context) -> AsyncIterator[Any]:
        async for answer in work(_readable(requests, context), context):
            yield answer

    return several


async def _readable(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
    async for request in requests:
        if request is UNREADABLE:
            await _refuse(context)
        yield request


async def _absent(request: Any, context: Context) -> None:  # noqa: ARG001
    """What generated code has for a call that its server did not write."""
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this call is not served here")


async def _refuse(context: Context) -> None:
    text = "the message is not what this call takes"
    await context.abort(STATUS[Reason.GARBAGE], text, ((REASON_KEY, str(Reason.GARBAGE)),))
