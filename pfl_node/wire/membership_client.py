"""The calls one member makes to others, each with a deadline. A failure is a PeerGone, nonsense is a Refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc

from pfl_node.errors import ConfigError, PeerGone, Reason, Refused
from pfl_node.membership import membership_pb2 as pb
from pfl_node.membership import packet_codec
from pfl_node.membership.member import Member, State
from pfl_node.membership.packet import Kind, Packet
from pfl_node.security.handshake import speaks_tls
from pfl_node.types import PeerId
from pfl_node.wire.dialer import Dialer
from pfl_node.wire.membership_channels import MembershipChannels
from pfl_node.wire.statuses import REASON_KEY

JOIN_TIMEOUT = 3.0
SYNC_TIMEOUT = 5.0
CHECK_TRIES, CHECK_WAIT = 6, 0.3  # while a seed finds out whether my id is in use


class MembershipClient:
    def __init__(self, dialer: Dialer | None = None) -> None:
        self._dialer = dialer or Dialer()
        self._channels = MembershipChannels(dialer=self._dialer)

    async def close(self) -> None:
        await self._channels.close()

    async def join(self, seed: str, me: Member) -> tuple[str, list[Member]]:
        """Who let me in, and everybody it knows. ConfigError: my id belongs to somebody else."""
        error: grpc.aio.AioRpcError | None = None
        for _ in range(CHECK_TRIES):
            try:
                async with self._channels.stub(seed, JOIN_TIMEOUT) as (stub, who):
                    reply = await stub.Join(pb.JoinRequest(member=packet_codec.to_wire(me)), timeout=JOIN_TIMEOUT)
                return _answerer(reply.sender, who, seed).id, packet_codec.from_wires(reply.members)
            except grpc.aio.AioRpcError as failed:
                error = failed
            if error.code() is grpc.StatusCode.ALREADY_EXISTS:
                raise ConfigError(f"cannot join through {seed}: {error.details()}") from error
            if error.code() is not grpc.StatusCode.ABORTED:
                break
            await asyncio.sleep(CHECK_WAIT)
        if error and error.code() is grpc.StatusCode.UNAVAILABLE and not self._dialer.secure:
            await _expects_tls(seed)
        raise _gone(seed, error)

    async def sync(self, address: str, me: Member, members: Iterable[Member]) -> tuple[str, list[Member]]:
        """Who answered, and everybody it knows."""
        state = pb.State(sender=packet_codec.to_wire(me), members=packet_codec.to_wires(members))
        try:
            async with self._channels.stub(address, SYNC_TIMEOUT) as (stub, who):
                reply = await stub.Sync(state, timeout=SYNC_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            raise _gone(address, error) from error
        return _answerer(reply.sender, who, address).id, packet_codec.from_wires(reply.members)

    async def send(self, address: str, packet: Packet, timeout: float) -> Packet | None:
        """A packet as a call, and its answer; None where none is due."""
        try:
            async with self._channels.stub(address, timeout) as (stub, who):
                if packet.sender.state is State.LEFT:
                    await stub.Leave(pb.LeaveRequest(member=packet_codec.to_wire(packet.sender)), timeout=timeout)
                    return None
                method = stub.PingReq if packet.kind is Kind.PING_REQ else stub.Ping
                reply = await method(packet_codec.pack(packet), timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise _gone(address, error) from error
        _answerer(reply.sender, who, address)
        return packet_codec.unpack(reply)


def _answerer(wire: pb.Member, who: PeerId | None, address: str) -> Member:
    """Who answered, who must be the one that TLS says."""
    member = packet_codec.from_wire(wire)
    if who is not None and member.id != who:
        raise Refused(Reason.IMPOSTOR, f"the answer says {member.id}, TLS says {who}", address)
    return member


async def _expects_tls(address: str) -> None:
    """gRPC says no more than that the connection was closed. Raises Refused where TLS is spoken."""
    if await speaks_tls(address, timeout=1.0):
        raise Refused(Reason.NO_TLS, "it speaks TLS, this side does not: start this one with --tls", address)


def _gone(address: str, error: grpc.aio.AioRpcError | None) -> PeerGone | Refused:
    metadata: Any = error.trailing_metadata() if error else None
    given = dict(metadata or ()).get(REASON_KEY)
    if error and given in set(Reason):
        return Refused(Reason(given), error.details() or str(given), address)
    return PeerGone(address, f"{error.code().name.lower()}: {error.details()}" if error else "no answer")
