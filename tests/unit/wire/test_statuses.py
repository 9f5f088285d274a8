"""Which errors of gRPC mean that a transfer took too long."""

from __future__ import annotations

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from pfl_node.errors import PeerTimedOut
from pfl_node.types import PeerId
from pfl_node.wire.statuses import error_from_status

UNAVAILABLE, LATE = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize(
    ("code", "text", "slow"),
    [
        (LATE, "Deadline Exceeded", True),
        (UNAVAILABLE, "Stream removed (recvmsg:Connection timed out (110))", True),  # a link of 64 kbit/s
        (UNAVAILABLE, "Stream removed (recvmsg:Connection reset by peer (104))", False),
        (UNAVAILABLE, "connection attempt timed out before receiving SETTINGS frame", False),
    ],
)
def test_a_transfer_that_took_too_long_is_no_connection_that_failed(
    code: grpc.StatusCode, text: str, slow: bool
) -> None:
    error = error_from_status(AioRpcError(code, Metadata(), Metadata(), text, ""), PeerId("bob"))
    assert isinstance(error, PeerTimedOut) == slow
