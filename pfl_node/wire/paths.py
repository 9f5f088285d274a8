"""How a dialer reaches an address: directly, through a proxy, or through the relays of a site."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pfl_node.address import parse_relayed
from pfl_node.errors import PeerGone
from pfl_node.wire.connector import Connector


class Relays(Protocol):
    async def connect(self, relays: Sequence[str], site: str) -> tuple[socket.socket, str]: ...

    def deprioritize(self, relay: str, site: str) -> None: ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class Path:
    """Connections to one address."""

    address: str
    paths: Paths
    site: str = ""  # the id of the member there, if the address contains it
    relay: str = ""  # the relay that was used last

    async def connect(self) -> socket.socket:
        """Raises OSError, PeerGone or Refused."""
        relayed = parse_relayed(self.address)
        if relayed is None:
            return await self.paths.connector.connect(self.address)
        if self.paths.relays is None:
            raise PeerGone(self.address, "it is behind a relay, which this program does not use")
        connection, self.relay = await self.paths.relays.connect(*relayed)
        return connection

    def deprioritize(self) -> None:
        if self.relay and self.paths.relays is not None:
            self.paths.relays.deprioritize(self.relay, self.site)


class Paths:
    def __init__(self, connector: Connector | None = None) -> None:
        self.connector = connector or Connector()
        self.relays: Relays | None = None

    def to(self, address: str) -> Path | None:
        """None: gRPC dials the address itself."""
        relayed = parse_relayed(address)
        if relayed is None and self.connector.direct(address):
            return None
        return Path(address, self, relayed[1] if relayed else "")

    async def close(self) -> None:
        if self.relays is not None:
            await self.relays.close()
