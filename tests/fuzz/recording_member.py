"""A member of the swarm that writes down what real nodes say to it, and to whom it talks itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import grpc

from pfl_node.membership.member import Member
from pfl_node.membership.swim_config import SwimConfig
from pfl_node.wire.endpoint import Endpoint
from pfl_node.wire.membership_service import attach_membership
from tests.fuzz.corpus import Corpus, Stream
from tests.fuzz.surface import Call, Surface, kind_of

RECORDER = "ear0000000000000"
PATIENCE = 20.0  # seconds at most; a policy that sends nothing need not be heard
MODEL = "pfl.v1.ModelChunk"


class RecordingMember:
    """`async with` it: while it is open, it listens."""

    def __init__(self, corpus: Corpus, run: str, round: int) -> None:
        self._corpus = corpus
        self._endpoint = Endpoint()
        me = Member(RECORDER, "recorder", run=run, round=round, incarnation=1)
        quick = SwimConfig(probe_interval=0.3, probe_timeout=0.2, gossip_interval=0.1, sync_interval=0.5)
        self._membership = attach_membership(self._endpoint, me, quick, rng=Random(0))
        self._heard = asyncio.Event()

    async def open(self, seed: str) -> None:
        for service in sorted({call.path.split("/")[1] for call in self._corpus.surface.calls}):
            if service.startswith("pfl.") and not service.endswith(".Membership"):
                self._endpoint.add(service, lambda server, service=service: self._listen(server, service))  # type: ignore[misc]
        await self._endpoint.bind("127.0.0.1:0", self._membership.bind)
        self._overhear_packets()
        await self._endpoint.start()
        await self._membership.start([seed], advertise=self._endpoint.address)

    async def close(self) -> None:
        await self._membership.leave()
        await self._membership.close()
        await self._endpoint.stop(grace=0)

    async def listen(self) -> None:
        """Until a model and some packets came, or it takes too long."""
        surface = self._corpus.surface
        models = next(call.request for call in surface.calls if call.request.full_name == MODEL)
        try:
            async with asyncio.timeout(PATIENCE):
                while self._corpus.count(models) < 2 or self._corpus.count(surface.packet) < 30:
                    self._heard.clear()
                    await self._heard.wait()
        except TimeoutError:
            return

    def _listen(self, server: grpc.aio.Server, service: str) -> None:
        """Whatever is brought is written down and refused."""
        handlers = {
            call.name: grpc.stream_stream_rpc_method_handler(self._recorder(call))
            for call in self._corpus.surface.calls
            if call.path.startswith(f"/{service}/")
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))

    def _recorder(self, call: Call) -> Callable[[Any, Any], Any]:
        async def record(_: object, context: Any) -> None:
            messages = []
            while isinstance(message := await context.read(), bytes):
                messages.append(message)
            self._note(call, *messages)
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "a recorder takes nothing")

        return record

    def _overhear_packets(self) -> None:
        udp = self._membership.udp
        packet = Call("", self._corpus.surface.packet)
        receive, send = udp._receive, udp.send

        def received(data: bytes, source: str) -> None:
            self._note(packet, data)
            receive(data, source)

        def sent(data: bytes, address: str) -> None:
            self._note(packet, data)
            send(data, address)

        udp._receive, udp.send = received, sent  # type: ignore[method-assign]

    def _note(self, call: Call, *messages: bytes) -> None:
        self._corpus.add(call.request, messages)
        self._heard.set()


async def recorded(address: str, surface: Surface, run: str, round: int) -> Corpus:
    """What a swarm says to a newcomer, and what it answers when it is asked."""
    corpus = Corpus(surface)
    recorder = RecordingMember(corpus, run, round)
    await recorder.open(address)
    try:
        await recorder.listen()
        await _ask(corpus, address, run)
    finally:
        await recorder.close()
    return corpus


async def _ask(corpus: Corpus, address: str, run: str) -> None:
    """Add a model and the members as this member would send them to the node. A node whose policy serves no model
    has sent one."""
    surface = corpus.surface
    async with grpc.aio.insecure_channel(address) as channel:
        ask = kind_of(surface.call("GetModel").request)(sender=RECORDER, run=run)
        chunks = await _served(channel, ask) or corpus.first(surface.call("SendModel").request)
        listed: Any = channel.unary_unary("/pfl.v2.Membership/List")  # type: ignore[call-arg]
        members = await listed(b"", timeout=30)
    corpus.add(ask.DESCRIPTOR, (ask.SerializeToString(),))
    assert chunks, "the node neither served nor sent a model"
    first: Any = kind_of(surface.call("SendModel").request).FromString(chunks[0])
    first.header.sender = RECORDER
    corpus.add(first.DESCRIPTOR, (first.SerializeToString(), *chunks[1:]))
    first.header.ClearField("round")
    corpus.add(first.DESCRIPTOR, (first.SerializeToString(), *chunks[1:]))
    state: Any = kind_of(surface.call("Sync").request)()
    reply: Any = kind_of(state.DESCRIPTOR.file.message_types_by_name["ListReply"]).FromString(members)
    state.members.extend(reply.members)
    for member in reply.members:
        state.sender.CopyFrom(member)
        corpus.add(state.DESCRIPTOR, (state.SerializeToString(),))
        for name in ("Join", "Leave"):
            request: Any = kind_of(surface.call(name).request)(member=member)
            corpus.add(request.DESCRIPTOR, (request.SerializeToString(),))


async def _served(channel: grpc.aio.Channel, ask: Any) -> Stream | None:
    """None: the policy of the node does not share its model."""
    get: Any = channel.unary_stream("/pfl.v1.Peer/GetModel")  # type: ignore[call-arg]
    try:
        return tuple([chunk async for chunk in get(ask.SerializeToString(), timeout=30)])
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
            raise
        return None
