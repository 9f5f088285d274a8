"""The call Reload. The endpoint admits only operators and callers on the node's own machine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from pfl_node.errors import TaskError
from pfl_node.wire import peer_pb2 as pb
from pfl_node.wire.endpoint import Endpoint
from pfl_node.wire.server import SERVICE


def attach_reload(endpoint: Endpoint, reload: Callable[[], Awaitable[dict[str, int]]]) -> None:
    """Add Reload to the endpoint's Peer service, before the endpoint is bound."""

    async def handle(message: bytes, context: Any) -> pb.ReloadReply:  # noqa: ARG001
        try:
            return pb.ReloadReply(samples=await reload())
        except TaskError as error:
            return pb.ReloadReply(error=str(error))

    handlers = {
        "Reload": grpc.unary_unary_rpc_method_handler(handle, response_serializer=pb.ReloadReply.SerializeToString)
    }
    service = (grpc.method_handlers_generic_handler(SERVICE, handlers),)
    endpoint.add(SERVICE, lambda server: server.add_generic_rpc_handlers(service))
