"""The parameters of SWIM. The first nine are those of `settings.MembershipSettings`, without pydantic."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from pfl_node.errors import ConfigError

if TYPE_CHECKING:
    from pfl_node.settings import MembershipSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class SwimConfig:
    """memberlist's LAN values; all times in seconds."""

    transport: Literal["auto", "udp", "grpc"] = "udp"
    probe_interval: float = 1.0
    probe_timeout: float = 0.5
    indirect: int = 3
    suspicion: float = 4.0
    gossip_interval: float = 0.2
    gossip_fanout: int = 3
    sync_interval: float = 5.0
    pause: float = 5.0

    retransmit: int = 4  # a rumour is sent retransmit * ceil(log10(n + 1)) times
    health_limit: int = 8  # the worst local health score
    forget: float = 300.0  # how long dead and departed members stay listed
    tombstone: float = 3600.0  # how long after that old rumours about them are rejected
    members_limit: int = 4096  # limit of members, and of tombstones
    packet_bytes: int = 1200  # no path fragments such datagrams
    # Members to probe and gossip with. Each is a connection with gRPC and, on one machine, an entry in the
    # kernel's neighbour table, which has 1024 by default for all containers together.
    neighbours: int = 8
    candidates: int = 256  # members known from rumours only that are pinged concurrently
    proven: bool = False  # TLS proves who sent a packet

    @classmethod
    def of(
        cls, settings: MembershipSettings | SwimConfig, *, secure: bool = False, proxied: bool = False
    ) -> SwimConfig:
        """With TLS, packets are gRPC calls: UDP packets are not authenticated. A proxy does not forward UDP."""
        names = (field.name for field in fields(cls))
        given: dict[str, Any] = {name: getattr(settings, name) for name in names if hasattr(settings, name)}
        if given["transport"] == "auto":
            given["transport"] = "grpc" if secure or proxied else "udp"
        if proxied and given["transport"] == "udp":
            raise ConfigError("membership.transport = udp does not work with network.proxy: use auto or grpc")
        if secure and given["transport"] == "udp":
            raise ConfigError("membership.transport = udp does not work with TLS: UDP is not authenticated")
        if given["transport"] == "grpc":
            given["candidates"] = 64  # each one needs a connection
            given["packet_bytes"] = 4096  # signed records are twice as large, and calls are not datagrams
        return cls(**{**given, "proven": secure})
