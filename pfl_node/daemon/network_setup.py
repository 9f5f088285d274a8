"""The proxy of a node as configured, and checks of the network settings. Imports no gRPC."""

from __future__ import annotations

from pfl_node.address import parse_address
from pfl_node.settings import NetworkSettings, Settings
from pfl_node.wire.connector import Proxy, proxy_of_environment, read_proxy


def proxy_of(network: NetworkSettings) -> Proxy | None:
    """Raises ConfigError."""
    if network.proxy is not None:
        return read_proxy(network.proxy, network.proxy_credentials)
    return proxy_of_environment(network.proxy_credentials) if network.proxy_from_environment else None


def check_network(settings: Settings) -> None:
    """Raises ConfigError."""
    proxy_of(settings.network)
    for relay in settings.network.relays:
        parse_address(relay, what="network.relays")
