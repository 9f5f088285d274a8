"""The gRPC service of membership: requests are inputs of the state machine, its outputs are the replies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from pfl_node.errors import Reason, Refused
from pfl_node.membership import membership_pb2 as pb
from pfl_node.membership import packet_codec
from pfl_node.membership.member import Member, State
from pfl_node.membership.member_events import MemberEvent
from pfl_node.membership.packet import Kind, Packet
from pfl_node.membership.service import Membership
from pfl_node.membership.signatures import Signed
from pfl_node.membership.swim_config import SwimConfig
from pfl_node.security.caller import check_sender
from pfl_node.wire.dial_back import DialBacks
from pfl_node.wire.dialer import Dialer, TlsDialer
from pfl_node.wire.endpoint import Endpoint
from pfl_node.wire.listener import Listener
from pfl_node.wire.membership_client import MembershipClient
from pfl_node.wire.membership_pb2_grpc import MembershipServicer
from pfl_node.wire.statuses import STATUS, parsed, refusal_metadata

if TYPE_CHECKING:
    from pfl_node.settings import MembershipSettings

Context = Any
OLD_VERSION, OLD_SERVICE = 1, "pfl.v1.Membership"
OLD_METHODS: dict[str, tuple[type[Message], str]] = {  # the request, and its field with the sender
    "Join": (pb.JoinRequest, "member"),
    "Ping": (pb.Packet, "sender"),
    "PingReq": (pb.Packet, "sender"),
    "Sync": (pb.State, "sender"),
    "Leave": (pb.LeaveRequest, "member"),
}
Method = Callable[[Any, Context], Awaitable[Message]]


def attach_membership(
    endpoint: Endpoint,
    me: Member,
    config: SwimConfig | MembershipSettings,
    *,
    rng: Random,
    on_event: Callable[[MemberEvent], None] | None = None,
    dialer: Dialer | None = None,
    signatures: bool = True,
) -> Membership:
    """A membership that calls others through `dialer` and answers calls on `endpoint`, which is not bound yet.
    With TLS members sign their records; `signatures` is turned off only to measure what they cost."""
    dialer = dialer or Dialer()
    proxied = dialer.paths.connector.proxy is not None
    config = SwimConfig.of(config, secure=dialer.secure, proxied=proxied)
    signed = _signed(dialer) if isinstance(dialer, TlsDialer) and signatures else None
    calls = MembershipClient(dialer, (lambda: signed.keys.credential(me.id)) if signed else None)
    membership = Membership(me, config, calls=calls, rng=rng, on_event=on_event, signed=signed)
    trust = dialer.trust if isinstance(dialer, TlsDialer) else None
    dial_backs = DialBacks(membership, trust, dialer.paths.connector.direct)
    service = MembershipService(membership, dial_backs, endpoint.listener)
    endpoint.add("pfl.v2.Membership", service.register)
    endpoint.add("pfl.v2.Membership", service.refuse_old)
    return membership


def _signed(dialer: TlsDialer) -> Signed:
    """Loads `cryptography`, which a node without TLS does not need."""
    from pfl_node.security.identity_keys import IdentityKeys

    return Signed(IdentityKeys(dialer.trust))


class MembershipService(MembershipServicer):
    def __init__(self, membership: Membership, dial_backs: DialBacks, listener: Listener) -> None:
        self._membership = membership
        self._dial_backs = dial_backs
        self._listener = listener

    def register(self, server: grpc.aio.Server) -> None:
        """Handlers take bytes, so that a request that cannot be parsed is counted and refused as garbage."""
        service = pb.DESCRIPTOR.services_by_name["Membership"]
        handlers = {
            method.name: grpc.unary_unary_rpc_method_handler(
                self._handler(getattr(self, method.name), GetMessageClass(method.input_type)),
                response_serializer=GetMessageClass(method.output_type).SerializeToString,
            )
            for method in service.methods
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))

    def refuse_old(self, server: grpc.aio.Server) -> None:
        """Nodes of version 1, which do not sign their records, get one clear line; `List` answers them."""
        handlers = {name: grpc.unary_unary_rpc_method_handler(self._refusal(name)) for name in OLD_METHODS}
        handlers["List"] = grpc.unary_unary_rpc_method_handler(
            self._handler(self.List, pb.ListRequest), response_serializer=pb.ListReply.SerializeToString
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(OLD_SERVICE, handlers),))

    async def Join(self, request: pb.JoinRequest, context: Context) -> pb.JoinReply:  # noqa: N802
        await self._check_running(context)
        newcomer = _sender(request.member)
        if self._membership.verifier:
            self._membership.verifier.add(request.credential)
        if newcomer.id == self._membership.me.id and newcomer.address == self._membership.me.address:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "this is yourself")
        admission = self._membership.admit(newcomer)
        if admission.again:
            await context.abort(grpc.StatusCode.ABORTED, admission.reason)
        if not admission.accepted:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, admission.reason)
        members = packet_codec.to_wires(self._membership.members())
        return pb.JoinReply(sender=packet_codec.to_wire(self._membership.me), members=members)

    async def Ping(self, request: pb.Packet, context: Context) -> pb.Packet:  # noqa: N802
        await self._check_running(context)
        packet = packet_codec.unpack(request)
        check_sender(packet.sender.id)
        reply = await self._membership.reply_to(packet)
        if reply is None and packet.kind is not Kind.GOSSIP:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no answer")
        return packet_codec.pack(reply or Packet(Kind.GOSSIP, self._membership.me))

    async def PingReq(self, request: pb.Packet, context: Context) -> pb.Packet:  # noqa: N802
        return await self.Ping(request, context)

    async def Sync(self, request: pb.State, context: Context) -> pb.State:  # noqa: N802
        await self._check_running(context)
        sender = _sender(request.sender)
        if sender.id == self._membership.me.id:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "this is yourself")
        theirs = packet_codec.from_wires(request.members)
        mine = packet_codec.to_wires(self._membership.members())
        if self._membership.verifier:
            self._membership.merge_soon(theirs, sender.id, sender.dial_address)
        else:
            await self._membership.merge(theirs, sender.id, sender.dial_address)
        return pb.State(sender=packet_codec.to_wire(self._membership.me), members=mine)

    async def GetCredentials(  # noqa: N802
        self,
        request: pb.CredentialsRequest,
        context: Context,  # noqa: ARG002
    ) -> pb.CredentialsReply:
        verifier = self._membership.verifier
        return pb.CredentialsReply(credentials=verifier.serve(request.ids) if verifier else ())

    async def DialBack(self, request: pb.DialBackRequest, context: Context) -> pb.DialBackReply:  # noqa: N802
        await self._check_running(context)
        caller = _sender(request.member)
        connection = self._listener.of(context.peer())
        if connection is None:
            raise Refused(Reason.REJECTED, "the connection is closed")
        return await self._dial_backs.answer(caller, connection.host)

    async def Leave(self, request: pb.LeaveRequest, context: Context) -> pb.LeaveReply:  # noqa: N802
        await self._check_running(context)
        member = _sender(request.member)
        if member.state is not State.LEFT:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the member's state must be LEFT")
        await self._membership.reply_to(Packet(Kind.GOSSIP, member))
        return pb.LeaveReply()

    async def List(self, request: pb.ListRequest, context: Context) -> pb.ListReply:  # noqa: N802, ARG002
        return pb.ListReply(self=self._membership.me.id, members=packet_codec.to_wires(self._membership.members()))

    def _handler(self, method: Method, kind: type[Message]) -> Callable[[bytes, Context], Awaitable[Message]]:
        async def answer(message: bytes, context: Context) -> Message:
            try:
                return await method(parsed(kind, message), context)
            except Refused as refused:
                self._membership.counters[str(refused.reason)] += 1
                await context.abort(STATUS[refused.reason], refused.text, refusal_metadata(refused))
                raise AssertionError("abort does not return") from refused

        return answer

    def _refusal(self, call: str) -> Callable[[bytes, Context], Awaitable[bytes]]:
        async def refuse(message: bytes, context: Context) -> bytes:
            seen_by_caller = packet_codec.versions_differ(packet_codec.VERSION, mine=OLD_VERSION)
            refused = Refused(Reason.NOT_SERVED, seen_by_caller)
            self._membership.counters[str(refused.reason)] += 1
            member, text = _old_sender(call, message), packet_codec.versions_differ(OLD_VERSION)
            self._membership.warn(member, "refused %s of %s: %s", call, member, text)
            await context.abort(STATUS[refused.reason], refused.text, refusal_metadata(refused))
            raise AssertionError("abort does not return")

        return refuse

    async def _check_running(self, context: Context) -> None:
        if not self._membership.running:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "still starting, or leaving")


def _sender(wire: pb.Member) -> Member:
    """The member that sent the request; with TLS it must be the owner of the certificate."""
    member = packet_codec.from_wire(wire)
    check_sender(member.id)
    return member


def _old_sender(call: str, message: bytes) -> str:
    """The sender of a request of version 1, for the log; version 2 has its fields, too."""
    kind, field = OLD_METHODS[call]
    try:
        member = packet_codec.from_wire(getattr(parsed(kind, message), field))
    except Refused:
        return "an unknown node"
    return f"{member.name} ({member.id}) at {member.address}"
