"""The calls WatchEvents and GetHistory, which observe a node. Read-only."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from pfl_node.ops.events import NodeEvent, TooManyWatchers
from pfl_node.ops.observer import NodeObserver
from pfl_node.security.caller import CALLER
from pfl_node.wire import peer_pb2 as pb
from pfl_node.wire.endpoint import Endpoint
from pfl_node.wire.server import SERVICE

Context = Any  # grpc.aio.ServicerContext, whose stubs are wrong about write()


OF_ONE = 4  # watchers per caller that TLS authenticates, so that the operator finds a free slot
OF_ANY = 16  # watchers of all unauthenticated callers together


class WatcherSlots:
    """Limits the watchers of each caller."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    @contextmanager
    def one(self) -> Iterator[None]:
        caller = CALLER.get() or ""
        if self._taken[caller] >= (most := OF_ONE if caller else OF_ANY):
            raise TooManyWatchers(f"you have {most} watchers already")
        self._taken[caller] += 1
        try:
            yield
        finally:
            self._taken[caller] -= 1
            self._taken += Counter()  # drop zeros


def attach_events(endpoint: Endpoint, seen: NodeObserver) -> None:
    """Add WatchEvents and GetHistory to the endpoint's Peer service, before the endpoint is bound."""
    handlers = (grpc.method_handlers_generic_handler(SERVICE, _handlers(seen)),)
    endpoint.add(SERVICE, lambda server: server.add_generic_rpc_handlers(handlers))


def _handlers(seen: NodeObserver) -> dict[str, Any]:
    slots = WatcherSlots()

    async def events(message: bytes, context: Context) -> None:
        request = await _parsed(pb.WatchRequest, message, context)
        kinds = frozenset(request.kinds)
        try:
            # watch before reading the past, so that no event is missed
            with slots.one(), seen.hub.watch(kinds) as watch:
                for event in seen.hub.recent(after=request.after, last=request.last or None, kinds=kinds):
                    await context.write(_event(event))
                while request.follow and (news := await watch.some()):
                    for event in news:
                        await context.write(_event(event))
        except TooManyWatchers as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))

    async def history(message: bytes, context: Context) -> pb.History:
        request = await _parsed(pb.HistoryRequest, message, context)
        points = seen.history.since(request.after if request.HasField("after") else -1)
        return pb.History(points=[pb.Point(round=p.round, time=p.time, figures=p.figures) for p in points])

    return {
        "WatchEvents": grpc.unary_stream_rpc_method_handler(
            events, response_serializer=pb.Event.SerializeToString
        ),
        "GetHistory": grpc.unary_unary_rpc_method_handler(
            history, response_serializer=pb.History.SerializeToString
        ),
    }


async def _parsed(kind: Any, message: bytes, context: Context) -> Any:
    try:
        return kind.FromString(message)
    except DecodeError:
        name = kind.DESCRIPTOR.name
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the message is not a {name}")


def _event(event: NodeEvent) -> pb.Event:
    plain = event.plain()
    text = json.dumps(plain["data"], allow_nan=False, separators=(",", ":"))
    return pb.Event(number=event.number, time=event.time, kind=event.kind, json=text)
