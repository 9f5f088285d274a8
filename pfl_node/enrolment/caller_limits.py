"""How many connections strangers may open to the enrolment. Pure; time is passed in."""

from __future__ import annotations

from collections import Counter
from ipaddress import ip_address, ip_network
from typing import Generic, TypeVar

from pfl_node.errors import Refused
from pfl_node.protocol.rate_limit import RateLimit
from pfl_node.types import PeerId

PER_NETWORK, ALL = 60, 600  # TLS handshakes per minute; one costs about a millisecond
OPEN = 64  # connections that have proved nothing yet, half of them of one network
EVERYONE = PeerId("")

C = TypeVar("C")


def network_of(host: str) -> PeerId:
    """An IPv4 address, or the /64 network of an IPv6 address, of which one caller has many addresses."""
    address = ip_address(host.partition("%")[0])
    if address.version == 4:
        return PeerId(host)
    mapped = address.ipv4_mapped
    return PeerId(str(mapped) if mapped else str(ip_network((address, 64), strict=False)))


class CallerLimits(Generic[C]):
    def __init__(self) -> None:
        self._one, self._all = RateLimit(PER_NETWORK), RateLimit(ALL)
        self._open: dict[C, PeerId] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, host: str, now: float) -> bool:
        """Whether a new connection may start a handshake."""
        try:
            self._one.take(network_of(host), now)
            self._all.take(EVERYONE, now)
        except Refused:
            return False
        return True

    def add(self, connection: C, host: str) -> C | None:
        """The connection that has to close for this one: the oldest of the network that has most of them."""
        self._open[connection] = network = network_of(host)
        counts = Counter(self._open.values())
        if len(self._open) > OPEN:
            network = counts.most_common(1)[0][0]
        elif counts[network] <= OPEN // 2:
            return None
        oldest = next(one for one, home in self._open.items() if home == network)
        del self._open[oldest]
        return oldest

    def remove(self, connection: C) -> None:
        """It has proved that it belongs to an invitation, or it is closed."""
        self._open.pop(connection, None)
