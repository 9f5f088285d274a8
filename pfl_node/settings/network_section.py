"""The settings of connections: relays and proxies."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from pfl_node.settings.section import Section


class NetworkSettings(Section):
    """How connections to and from other nodes are opened."""

    reach: Literal["auto", "direct", "relay"] = "auto"
    """How others connect to this node. auto: directly, or through relays if no member can connect to it, or if it
    has a proxy; relay: through relays from the start; direct: never through relays."""
    relays: tuple[str, ...] = ()
    """HOST:PORT of the relays to use; empty: members that offer themselves."""
    proxy: str | None = None
    """http://HOST:PORT through which all connections are opened (HTTP CONNECT), except to this machine."""
    proxy_credentials: Path | None = None
    """File with one line, USER:PASSWORD, for the proxy."""
    proxy_from_environment: bool = False
    """Without `proxy`, use https_proxy or http_proxy and no_proxy of the environment, which are ignored
    otherwise."""


class RelaySettings(Section):
    """Connect callers to nodes that cannot be dialled. The relay joins connections; it cannot read them."""

    serve: bool = False
    """Be a relay; others must be able to connect to this node. Also the flag --relay."""
    sites: PositiveInt = 256
    """Nodes that may use this relay at the same time."""
    connections: PositiveInt = 256
    """Connections to one of these nodes."""
    bandwidth: PositiveFloat = 12.5e6
    """Bytes per second to and from one of these nodes."""
    bytes_per_day: PositiveInt | None = None
    """Bytes per day to and from one of these nodes, which is disconnected then; None: no limit."""
