"""The RPCs that a membership makes; `wire.membership_client` makes them over gRPC."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pfl_node.membership.member import Member
from pfl_node.membership.packet import Packet


@dataclass(frozen=True, slots=True)
class DialBackAnswer:
    reached: bool
    reason: str  # why the member was not reached
    clock_ahead: float  # seconds that the clock of the asked member is ahead of this one's


class MemberCalls(Protocol):
    """RPCs to other members. Each raises PeerGone, or Refused for an answer that must not be used."""

    async def join(self, seed: str, me: Member, timeout: float) -> tuple[str, list[Member]]:
        """The id of the seed and the members it knows. Raises ConfigError if another node uses my id."""

    async def sync(self, address: str, me: Member, members: Iterable[Member]) -> tuple[str, list[Member]]:
        """Exchange member lists; returns the id of the peer and the members it knows."""

    async def send(self, address: str, packet: Packet, timeout: float) -> Packet | None:
        """Send a packet as a call and return the answer, if the packet has one."""

    async def credentials(self, address: str, ids: Sequence[str]) -> list[bytes]:
        """The credentials of these members that the node at this address has."""

    async def dial_back(self, address: str, me: Member) -> DialBackAnswer:
        """Ask the node at this address to open a connection to the address in my record."""

    async def close(self) -> None: ...
