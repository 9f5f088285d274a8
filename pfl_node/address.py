"""HOST:PORT as users write it, and the addresses of members behind relays. Host names are not resolved."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_address

from pfl_node.errors import ConfigError

NAME = re.compile(r"^(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?$")


def parse_address(text: str, *, what: str = "address", any_port: bool = False) -> tuple[str, int]:
    """Host and port of `HOST:PORT` or `[IPv6]:PORT`; port 0 is valid only with `any_port`."""
    host, _, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not host or (bracketed != (":" in host)) or not (_is_ip(host) or NAME.match(host)):
        raise ConfigError(f"{what} {text!r} must be HOST:PORT, for example 127.0.0.1:7000 or [::1]:7000")
    if not (port.isascii() and port.isdigit()) or not (0 if any_port else 1) <= int(port) <= 65535:
        raise ConfigError(f"{what} {text!r}: the port must be a number from {0 if any_port else 1} to 65535")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    return ip_address(host).is_loopback if _is_ip(host) else host.rstrip(".").lower() == "localhost"


def is_wildcard(host: str) -> bool:
    return _is_ip(host) and ip_address(host).is_unspecified


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def relayed_address(relays: Sequence[str], member: str) -> str:
    """The address of a member behind relays, such as `192.0.2.1:7000,192.0.2.9:7000/<id>`."""
    return f"{','.join(relays)}/{member}"


def parse_relayed(text: str) -> tuple[tuple[str, ...], str] | None:
    """The relays and the member of such an address; None for HOST:PORT."""
    relays, slash, member = text.rpartition("/")
    return (tuple(relays.split(",")), member) if slash else None
