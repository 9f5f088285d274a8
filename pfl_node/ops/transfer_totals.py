"""The models and bytes that a node has exchanged, in calls of both sides."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfl_node.types import PeerId

if TYPE_CHECKING:
    from pfl_node.ops.observed_node import ObservedNode


@dataclass(frozen=True, slots=True)
class TransferTotals:
    """Data transferred so far, in calls of both sides."""

    sent: int  # bytes sent
    received: int
    models_sent: Counter[PeerId]
    models_received: Counter[PeerId]

    @classmethod
    def of(cls, node: ObservedNode) -> TransferTotals:
        models, nbytes, host = node.client.traffic.models, node.client.traffic.bytes, node.host
        fetched = Counter({peer: n for (peer, way), n in models.items() if way == "in"})
        pushed = Counter({peer: n for (peer, way), n in models.items() if way == "out"})
        return cls(
            sum(n for (_, way), n in nbytes.items() if way == "out") + host.bytes_out,
            sum(n for (_, way), n in nbytes.items() if way == "in") + host.bytes_in,
            pushed + host.served,
            fetched + host.received,
        )
