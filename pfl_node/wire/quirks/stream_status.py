"""How a stream ended.

grpc.aio loses the status of a call that ends while a write is under way (grpc issue 36066): it says "Internal
error from Core". When the true status came before the write failed, it was overwritten and we noted it; when it
came after, it overwrites, and the call tells it when it is awaited.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import grpc

PLACEHOLDER = "Internal error from Core"

T = TypeVar("T")


class StreamStatus:
    """Watches a call from its beginning."""

    def __init__(self, call: Any) -> None:
        self._noted: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._note)

    def true(self, error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        """The status that was noted, when the given one only stands in its place."""
        return self._noted if self._noted is not None and error.details() == PLACEHOLDER else error

    def _note(self, call: Any) -> None:
        metadata = _at_once(call.trailing_metadata()) or grpc.aio.Metadata()
        self._noted = grpc.aio.AioRpcError(
            _at_once(call.code()), grpc.aio.Metadata(), metadata, _at_once(call.details()), ""
        )


def _at_once(answer: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that does not wait: the call is done when it is asked."""
    try:
        answer.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    answer.close()
    raise RuntimeError("the call is not done")
