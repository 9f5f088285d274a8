"""RPCs to other members, each with a deadline. A failed call raises PeerGone, an invalid answer Refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import grpc

from pfl_node.errors import ConfigError, PeerGone, Reason, Refused
from pfl_node.membership import membership_pb2 as pb
from pfl_node.membership import packet_codec
from pfl_node.membership.member import Member, State
from pfl_node.membership.member_calls import DialBackAnswer
from pfl_node.membership.packet import Kind, Packet
from pfl_node.printable import printable
from pfl_node.security.handshake import speaks_tls
from pfl_node.types import PeerId
from pfl_node.wire.channels import ChannelPool
from pfl_node.wire.dialer import Dialer
from pfl_node.wire.membership_pb2_grpc import MembershipStub
from pfl_node.wire.statuses import reason_of

IDLE = 12.0  # seconds
SYNC_TIMEOUT = 5.0
DIAL_BACK_TIMEOUT = 12.0
LONGEST_REASON = 200  # characters
CHECK_TRIES, CHECK_WAIT = 6, 0.3  # while a seed checks whether this id is in use


class MembershipClient:
    """`credential` is what seeds need to verify this node's record."""

    def __init__(self, dialer: Dialer | None = None, credential: Callable[[], bytes | None] | None = None) -> None:
        self._dialer = dialer or Dialer()
        self._credential = credential or (lambda: None)
        self._pool = ChannelPool(self._dialer, MembershipStub, idle=IDLE)

    async def close(self) -> None:
        await self._pool.close()

    async def join(self, seed: str, me: Member, timeout: float) -> tuple[str, list[Member]]:
        for attempt in range(1, CHECK_TRIES + 1):
            try:
                async with self._stub(seed, timeout) as (stub, peer):
                    request = pb.JoinRequest(member=packet_codec.to_wire(me), credential=self._credential())
                    reply = await stub.Join(request, timeout=timeout)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.ALREADY_EXISTS:
                    raise ConfigError(f"cannot join through {seed}: {error.details()}") from error
                if error.code() is not grpc.StatusCode.ABORTED or attempt == CHECK_TRIES:
                    await self._check_tls(seed, error)
                    raise _translated(error, seed) from error
                await asyncio.sleep(CHECK_WAIT)
            else:
                return _sender(reply.sender, peer, seed).id, packet_codec.from_wires(reply.members)
        raise AssertionError("unreachable")

    async def sync(self, address: str, me: Member, members: Iterable[Member]) -> tuple[str, list[Member]]:
        state = pb.State(sender=packet_codec.to_wire(me), members=packet_codec.to_wires(members))
        try:
            async with self._stub(address, SYNC_TIMEOUT) as (stub, peer):
                reply = await stub.Sync(state, timeout=SYNC_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            raise _translated(error, address) from error
        return _sender(reply.sender, peer, address).id, packet_codec.from_wires(reply.members)

    async def credentials(self, address: str, ids: Sequence[str]) -> list[bytes]:
        try:
            async with self._stub(address, SYNC_TIMEOUT) as (stub, _):
                reply = await stub.GetCredentials(pb.CredentialsRequest(ids=ids), timeout=SYNC_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            raise _translated(error, address) from error
        return list(reply.credentials)

    async def dial_back(self, address: str, me: Member) -> DialBackAnswer:
        request = pb.DialBackRequest(member=packet_codec.to_wire(me))
        try:
            async with self._stub(address, DIAL_BACK_TIMEOUT) as (stub, _):
                reply = await stub.DialBack(request, timeout=DIAL_BACK_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            raise _translated(error, address) from error
        return DialBackAnswer(reply.reached, printable(reply.reason[:LONGEST_REASON]), reply.time - time.time())

    async def send(self, address: str, packet: Packet, timeout: float) -> Packet | None:
        try:
            async with self._stub(address, timeout) as (stub, peer):
                if packet.sender.state is State.LEFT:
                    await stub.Leave(pb.LeaveRequest(member=packet_codec.to_wire(packet.sender)), timeout=timeout)
                    return None
                method = stub.PingReq if packet.kind is Kind.PING_REQ else stub.Ping
                reply = await method(packet_codec.pack(packet), timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise _translated(error, address) from error
        _sender(reply.sender, peer, address)
        return packet_codec.unpack(reply)

    @asynccontextmanager
    async def _stub(self, address: str, timeout: float) -> AsyncIterator[tuple[MembershipStub, PeerId | None]]:
        """The stub, and the peer's id as certified by TLS. A channel whose call got no answer is not used again:
        gRPC would wait out its back-off before reconnecting."""
        async with self._pool.channel(address, timeout=timeout) as channel:
            try:
                yield channel.stub, channel.link.peer
            except grpc.aio.AioRpcError as error:
                if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    self._pool.retire(channel)
                raise

    async def _check_tls(self, address: str, error: grpc.aio.AioRpcError) -> None:
        """Raises Refused if the seed requires TLS: gRPC reports only a closed connection."""
        if error.code() is not grpc.StatusCode.UNAVAILABLE or self._dialer.secure:
            return
        path = self._dialer.paths.to(address)
        if await speaks_tls(address, 1.0, path.connect if path else None):
            raise Refused(Reason.NO_TLS, "it requires TLS, which is off here: start this node with --tls", address)


def _sender(wire: pb.Member, peer: PeerId | None, address: str) -> Member:
    """The member that answered; with TLS it must be the owner of the certificate."""
    member = packet_codec.from_wire(wire)
    if peer is not None and member.id != peer:
        raise Refused(Reason.IMPOSTOR, f"the answer says {member.id}, TLS says {peer}", address)
    return member


def _translated(error: grpc.aio.AioRpcError, address: str) -> PeerGone | Refused:
    if reason := reason_of(error):
        return Refused(reason, error.details() or str(reason), address)
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return Refused(Reason.NOT_SERVED, packet_codec.versions_differ(1), address)
    return PeerGone(address, f"{error.code().name.lower()}: {error.details()}")
