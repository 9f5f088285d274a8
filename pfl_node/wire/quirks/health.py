"""The standard health service with a limit on watchers.

gRPC: grpcio-health-checking accepts any number of Watch streams, and each occupies one of the server's concurrent
calls for as long as the client likes. No upstream issue known.
"""

from __future__ import annotations

from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2

WATCHERS = 32  # half of the calls of one caller


class LimitedHealth(health.aio.HealthServicer):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self._watching = 0

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:  # noqa: N802
        if self._watching >= WATCHERS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"all {WATCHERS} watcher slots are in use")
        self._watching += 1
        try:
            await super().Watch(request, context)
        finally:
            self._watching -= 1
