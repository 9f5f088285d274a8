"""Recovers the status of a client stream that ended while a write was in progress.

gRPC: if the server ends the call while grpc.aio's `call.write` is pending, grpc.aio may replace the server's
status by INTERNAL "Internal error from Core" (grpc/grpc#36066; fix proposed in grpc/grpc#43486). The server's
status, if it arrived first, was visible to a done callback; if it arrives later, awaiting the call raises it.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import grpc

PLACEHOLDER = "Internal error from Core"

T = TypeVar("T")


class StreamStatus:
    """Create it with the call, before the first write."""

    def __init__(self, call: Any) -> None:
        self._recorded: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._record)

    def corrected(self, error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        """The server's status, if `error` is the placeholder that replaced it."""
        return self._recorded if self._recorded is not None and error.details() == PLACEHOLDER else error

    def _record(self, call: Any) -> None:
        metadata = _result(call.trailing_metadata()) or grpc.aio.Metadata()
        self._recorded = grpc.aio.AioRpcError(
            _result(call.code()), grpc.aio.Metadata(), metadata, _result(call.details()), ""
        )


def _result(answer: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that does not suspend, because the call is done."""
    try:
        answer.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    answer.close()
    raise RuntimeError("the call is not done")
