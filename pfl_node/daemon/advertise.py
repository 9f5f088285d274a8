"""The address that others dial: the configured one, the bound one, or that of the route to a seed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

from pfl_node.address import is_wildcard, join_address, parse_address
from pfl_node.errors import ConfigError

PATIENCE = 30.0  # seconds to resolve a seed's name: in a new container network it may appear late
PAUSE = 0.5


def check_addresses(listen: str, advertise: str | None, seeds: Sequence[str]) -> None:
    """Raises ConfigError for an address that is malformed, or that other nodes could not dial."""
    dialled, _ = parse_address(listen, what="listen", any_port=True)
    if advertise:
        dialled, _ = parse_address(advertise, what="advertise", any_port=True)
    for seed in seeds:
        parse_address(seed, what="peer_seed")
    if is_wildcard(dialled) and (advertise or not seeds):
        what = f"advertise {advertise!r}" if advertise else f"listen {listen!r}"
        raise ConfigError(f"{what} cannot be reached by other nodes: set --advertise HOST:PORT")


async def advertised_address(
    advertise: str | None, host: str, port: int, seeds: Sequence[str], *, patience: float = PATIENCE
) -> str:
    """`host` and `port` are the bound ones; for the host 0.0.0.0 or ::, the answer is the local address of the
    route to the first seed whose name resolves."""
    if advertise is not None:
        name, wanted = parse_address(advertise, what="advertise", any_port=True)
        return join_address(name, wanted or port)
    if not is_wildcard(host):
        return join_address(host, port)
    loop = asyncio.get_running_loop()
    end = loop.time() + patience
    while True:
        for seed in seeds:
            if found := await _towards(seed, family=socket.AF_UNSPEC if ":" in host else socket.AF_INET):
                return join_address(found, port)
        if loop.time() >= end:
            raise ConfigError(
                f"there is no route to {' or '.join(seeds)}, so the address of this node is unknown: "
                "set --advertise HOST:PORT"
            )
        await asyncio.sleep(PAUSE)


async def _towards(seed: str, family: socket.AddressFamily) -> str | None:
    """This machine's address on the route to the seed; None: unknown host or no route."""
    name, port = parse_address(seed, what="peer_seed")
    loop = asyncio.get_running_loop()
    try:
        places = await loop.getaddrinfo(name, port, family=family, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for kind, _, _, _, place in places:
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(place)  # on a datagram socket this selects a route and sends nothing
            except OSError:
                continue
            return str(probe.getsockname()[0])
    return None
