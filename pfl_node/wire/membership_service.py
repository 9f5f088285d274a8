"""The Membership service of the wire: requests become inputs of the machine, its outputs become replies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NoReturn, Protocol

import grpc
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from pfl_node.errors import Reason, Refused
from pfl_node.membership import packet_codec
from pfl_node.membership.admission import Admission
from pfl_node.membership.member import Member, State
from pfl_node.membership.packet import Kind, Packet
from pfl_node.security.caller import check_sender
from pfl_node.wire import membership_pb2 as pb
from pfl_node.wire.membership_pb2_grpc import MembershipServicer
from pfl_node.wire.statuses import REASON_KEY, STATUS

Context = Any
Method = Callable[[Any, Context], Awaitable[Message]]


class SwimPort(Protocol):
    """What the servicer needs of an engine."""

    @property
    def me(self) -> Member: ...

    running: bool

    @property
    def counters(self) -> Counter[str]: ...
    def members(self) -> list[Member]: ...
    def admit(self, newcomer: Member) -> Admission: ...
    def absorb(self, members: Iterable[Member], by: str) -> None: ...
    async def reply_to(self, packet: Packet) -> Packet | None: ...


class MembershipService(MembershipServicer):
    def __init__(self, context: SwimPort) -> None:
        self._context = context

    def register(self, server: grpc.aio.Server) -> None:
        """Requests come as bytes: one that cannot be read is counted and answered like any other nonsense."""
        service = pb.DESCRIPTOR.services_by_name["Membership"]
        handlers = {
            method.name: grpc.unary_unary_rpc_method_handler(
                self._reading(getattr(self, method.name), GetMessageClass(method.input_type)),
                response_serializer=GetMessageClass(method.output_type).SerializeToString,
            )
            for method in service.methods
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))

    async def Join(self, request: pb.JoinRequest, context: Context) -> pb.JoinReply:  # noqa: N802
        await self._ready(context)
        newcomer = await self._checked(request.member, context)
        if newcomer.id == self._context.me.id and newcomer.address == self._context.me.address:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "this is yourself")
        admission = self._context.admit(newcomer)
        if admission.again:
            await context.abort(grpc.StatusCode.ABORTED, admission.reason)
        if not admission.accepted:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, admission.reason)
        return pb.JoinReply(
            sender=packet_codec.to_wire(self._context.me), members=packet_codec.to_wires(self._context.members())
        )

    async def Ping(self, request: pb.Packet, context: Context) -> pb.Packet:  # noqa: N802
        await self._ready(context)
        try:
            packet = packet_codec.unpack(request)
            check_sender(packet.sender.id)
        except Refused as refused:
            await self._garbage(refused, context)
        reply = await self._context.reply_to(packet)
        if reply is None and packet.kind is not Kind.GOSSIP:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no answer")
        return packet_codec.pack(reply or Packet(Kind.GOSSIP, self._context.me))

    async def PingReq(self, request: pb.Packet, context: Context) -> pb.Packet:  # noqa: N802
        return await self.Ping(request, context)

    async def Sync(self, request: pb.State, context: Context) -> pb.State:  # noqa: N802
        await self._ready(context)
        sender = await self._checked(request.sender, context)
        if sender.id == self._context.me.id:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "this is yourself")
        try:
            theirs = packet_codec.from_wires(request.members)
        except Refused as refused:
            await self._garbage(refused, context)
        mine = packet_codec.to_wires(self._context.members())
        self._context.absorb(theirs, sender.id)
        return pb.State(sender=packet_codec.to_wire(self._context.me), members=mine)

    async def Leave(self, request: pb.LeaveRequest, context: Context) -> pb.LeaveReply:  # noqa: N802
        await self._ready(context)
        member = await self._checked(request.member, context)
        if member.state is not State.LEFT:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "only a member that left can say so")
        await self._context.reply_to(Packet(Kind.GOSSIP, member))
        return pb.LeaveReply()

    async def List(self, request: pb.ListRequest, context: Context) -> pb.ListReply:  # noqa: N802, ARG002
        return pb.ListReply(self=self._context.me.id, members=packet_codec.to_wires(self._context.members()))

    def _reading(self, method: Method, kind: type[Message]) -> Callable[[bytes, Context], Awaitable[Message]]:
        async def answer(message: bytes, context: Context) -> Message:
            try:
                request = kind.FromString(message)
            except DecodeError:
                refused = Refused(Reason.GARBAGE, f"the message is not a {kind.DESCRIPTOR.name}")
                await self._garbage(refused, context)
            return await method(request, context)

        return answer

    async def _ready(self, context: Context) -> None:
        if not self._context.running:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "still starting, or leaving")

    async def _checked(self, wire: pb.Member, context: Context) -> Member:
        """A member that speaks for itself."""
        try:
            member = packet_codec.from_wire(wire)
            check_sender(member.id)
            return member
        except Refused as refused:
            await self._garbage(refused, context)

    async def _garbage(self, refused: Refused, context: Context) -> NoReturn:
        self._context.counters["garbage" if refused.reason is Reason.GARBAGE else str(refused.reason)] += 1
        await context.abort(STATUS[refused.reason], refused.text, ((REASON_KEY, str(refused.reason)),))
        raise AssertionError("abort does not return")
