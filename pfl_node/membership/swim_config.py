"""The knobs of membership. The first nine are those of `settings.MembershipSettings`, without pydantic's cost."""

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

    retransmit: int = 4  # a rumour is told retransmit * ceil(log10(n + 1)) times
    health_limit: int = 8  # the worst score of one's own health
    forget: float = 300.0  # the dead and those who left are listed so long
    tombstone: float = 3600.0  # and old news about them is disbelieved so long after that
    members_limit: int = 4096  # members known at most, and tombstones kept at most
    packet_bytes: int = 1200  # fits every path without fragments
    grpc_neighbours: int = 8  # members that are probed and gossiped with when packets are gRPC calls

    @classmethod
    def of(cls, settings: MembershipSettings | SwimConfig, *, secure: bool = False) -> SwimConfig:
        """Datagrams say nothing about who sent them, so with TLS packets are calls."""
        names = (field.name for field in fields(cls))
        given: dict[str, Any] = {name: getattr(settings, name) for name in names if hasattr(settings, name)}
        if given["transport"] == "auto":
            given["transport"] = "grpc" if secure else "udp"
        if secure and given["transport"] == "udp":
            raise ConfigError(
                "membership.transport = udp is not for TLS: a datagram does not prove its sender; leave it out"
            )
        return cls(**given)

    @property
    def neighbours(self) -> int | None:
        """How many members packets go to; None: all."""
        return self.grpc_neighbours if self.transport == "grpc" else None
