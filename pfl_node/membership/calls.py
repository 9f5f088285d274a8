"""The calls one member makes to others, each with a deadline. A failure is a PeerGone, nonsense is a Refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import grpc

from pfl_node.errors import ConfigError, PeerGone
from pfl_node.membership import codec
from pfl_node.membership.channels import Channels
from pfl_node.membership.member import Member, State
from pfl_node.membership.packet import Kind, Packet
from pfl_node.wire import membership_pb2 as pb

JOIN_TIMEOUT = 3.0
SYNC_TIMEOUT = 5.0
CHECK_TRIES, CHECK_WAIT = 6, 0.3  # while a seed finds out whether my id is in use


class Calls:
    def __init__(self) -> None:
        self._channels = Channels()

    async def close(self) -> None:
        await self._channels.close()

    async def join(self, seed: str, me: Member) -> tuple[str, list[Member]]:
        """Who let me in, and everybody it knows. ConfigError: my id belongs to somebody else."""
        error: grpc.aio.AioRpcError | None = None
        for _ in range(CHECK_TRIES):
            try:
                async with self._channels.stub(seed) as stub:
                    reply = await stub.Join(pb.JoinRequest(member=codec.to_wire(me)), timeout=JOIN_TIMEOUT)
                return codec.from_wire(reply.sender).id, codec.from_wires(reply.members)
            except grpc.aio.AioRpcError as failed:
                error = failed
            if error.code() is grpc.StatusCode.ALREADY_EXISTS:
                raise ConfigError(f"cannot join through {seed}: {error.details()}") from error
            if error.code() is not grpc.StatusCode.ABORTED:
                break
            await asyncio.sleep(CHECK_WAIT)
        raise _gone(seed, error)

    async def sync(self, address: str, me: Member, members: Iterable[Member]) -> tuple[str, list[Member]]:
        """Who answered, and everybody it knows."""
        state = pb.State(sender=codec.to_wire(me), members=codec.to_wires(members))
        try:
            async with self._channels.stub(address) as stub:
                reply = await stub.Sync(state, timeout=SYNC_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            raise _gone(address, error) from error
        return codec.from_wire(reply.sender).id, codec.from_wires(reply.members)

    async def put(self, address: str, packet: Packet, timeout: float) -> Packet | None:
        """A packet as a call, and its answer; None where none is due."""
        try:
            async with self._channels.stub(address) as stub:
                if packet.sender.state is State.LEFT:
                    await stub.Leave(pb.LeaveRequest(member=codec.to_wire(packet.sender)), timeout=timeout)
                    return None
                method = stub.PingReq if packet.kind is Kind.PING_REQ else stub.Ping
                reply = await method(codec.pack(packet), timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise _gone(address, error) from error
        return codec.unpack(reply)


def _gone(address: str, error: grpc.aio.AioRpcError | None) -> PeerGone:
    return PeerGone(address, f"{error.code().name.lower()}: {error.details()}" if error else "no answer")
