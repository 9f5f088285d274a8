"""The standard health service, with a limit: whoever watches holds a place among the calls as long as it likes."""

from __future__ import annotations

from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2

WATCHERS = 64

Context = Any


class LimitedHealth(health.aio.HealthServicer):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self._watching = 0

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:  # noqa: N802
        if self._watching >= WATCHERS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{WATCHERS} are watching already")
        self._watching += 1
        try:
            await super().Watch(request, context)
        finally:
            self._watching -= 1
