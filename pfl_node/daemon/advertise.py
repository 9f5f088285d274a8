"""Which address others dial: what the user says, the bound one, or that of the way to a seed. Sends nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

from pfl_node.address import is_wildcard, parse_address
from pfl_node.errors import ConfigError

PATIENCE = 30.0  # seconds until a seed's name must be known: in a fresh network of containers it may come later
PAUSE = 0.5


async def advertised_address(
    advertise: str | None, host: str, port: int, seeds: Sequence[str], *, patience: float = PATIENCE
) -> tuple[str, int]:
    """Host and port. `host` and `port` are the bound ones; for a host of 0.0.0.0 or :: the answer is the address
    from which the system would reach the first seed whose name is known."""
    if advertise is not None:
        name, wanted = parse_address(advertise, what="advertise", any_port=True)
        return name, wanted or port
    if not is_wildcard(host):
        return host, port
    loop = asyncio.get_running_loop()
    end = loop.time() + patience
    while True:
        for seed in seeds:
            if found := await _towards(seed, family=socket.AF_UNSPEC if ":" in host else socket.AF_INET):
                return found, port
        if loop.time() >= end:
            raise ConfigError(
                f"there is no way to {' or '.join(seeds)} yet, so it cannot be told which address others dial: "
                "say it with --advertise HOST:PORT"
            )
        await asyncio.sleep(PAUSE)


async def _towards(seed: str, family: socket.AddressFamily) -> str | None:
    """This machine's address on the way there; None: no such host, or no way."""
    name, port = parse_address(seed, what="peer_seed")
    loop = asyncio.get_running_loop()
    try:
        places = await loop.getaddrinfo(name, port, family=family, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for kind, _, _, _, place in places:
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(place)  # of a datagram socket: chooses the way, sends nothing
            except OSError:
                continue
            return str(probe.getsockname()[0])
    return None
