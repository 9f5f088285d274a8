"""The simulated network, in memory: messages are delayed, lost, and blocked by partitions.

The receiver's `Host` accepts or refuses each message, as in a daemon. Models travel in the configured encoding and
compression; uncompressed fp32 models pass by reference.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pfl_node.errors import PeerGone, Refused
from pfl_node.model import Layout, Model, PartialModel
from pfl_node.protocol.mailbox import check_vectors
from pfl_node.sim.event_loop import CLOCK
from pfl_node.sim.packed import Packed
from pfl_node.types import Envelope, Eval, Offer, Part, PeerId, parts_of
from pfl_node.wire.auto_encoding import AutoEncoding
from pfl_node.wire.bandwidth import Bandwidth
from pfl_node.wire.codec import misfit
from pfl_node.wire.payload import Payload

if TYPE_CHECKING:
    from pfl_node.node.host import Host
    from pfl_node.sim.node_process import Process
    from pfl_node.sim.simulation import World

Call = Literal["send", "fetch", "ask"]
ROOM = 0.1  # virtual seconds between two checks for room in an inbox
NAMES: dict[Part, str] = {"head": "GetHead", "predictions": "GetPredictions"}  # RPC by fetched part


@dataclass
class Traffic:
    """A node's traffic counters. Every model sent is eventually received, refused or lost."""

    models_sent: int = 0
    bytes_sent: int = 0
    models_received: int = 0
    bytes_received: int = 0
    models_lost: int = 0  # sent by this node and lost
    refused: Counter[str] = field(default_factory=Counter)  # messages this node refused, by reason

    def sent(self, nbytes: int) -> None:
        self.models_sent += 1
        self.bytes_sent += nbytes

    def received(self, nbytes: int) -> None:
        self.models_received += 1
        self.bytes_received += nbytes


@dataclass(slots=True, eq=False)
class Flight:
    """One RPC in progress."""

    call: Call
    name: str  # name of the RPC
    sender: Process
    peer: PeerId
    nbytes: int  # size of the model in the request; 0: a request without a model
    round: int | None
    number: int  # counts the calls from this sender to this peer
    sent: float
    end: float  # the caller's deadline
    visit: Callable[[Flight, Process], None]  # runs at the receiver on arrival
    answer: asyncio.Future[Any]


class SimNetwork:
    """One node's network port; every restart of the node gets a new one."""

    def __init__(self, process: Process, world: World) -> None:
        self._me = process
        self._world = world
        self._wire = world.settings.wire
        self._bandwidths: dict[PeerId, Bandwidth] = {}
        self._calls: dict[Flight, None] = {}  # calls in progress
        self._encoding = AutoEncoding(self._wire)
        self._encoding.training = lambda: process.work.training
        self._packed: tuple[Payload, dict[str, Packed]] | None = None  # the last payload sent, by encoding
        self._cut = False

    async def serving(self, ready: bool) -> None: ...

    async def send(
        self,
        peer: PeerId,
        address: str,  # noqa: ARG002
        model: Model,
        *,
        round: int | None = None,
        tag: int = 0,
        samples: int = 0,
        notes: Mapping[str, float] | None = None,
        vectors: Mapping[str, Model] | None = None,
    ) -> int:
        packed = self._pack(Payload(model, vectors or {}), self._bandwidth(peer))
        said: Any = {"round": round, "tag": tag, "samples": samples, "notes": notes or {}}
        present = packed.model.numbers.size if isinstance(model, PartialModel) else None
        envelope = self._envelope(model.layout.part, vectors=parts_of(packed.vectors), present=present, **said)
        offer = Offer(self._me.id, packed.model, vectors=packed.vectors, **said)
        fabric = self._world.fabric

        def visit(flight: Flight, receiver: Process) -> None:
            later = round is None and not packed.failure and receiver.hold_offer(offer, packed.nbytes)
            if not later:
                receiver.host.deliver(self._admitted(receiver.host, "SendModel", envelope, packed))
                fabric.accept(receiver, "SendModel", self._me.id, "send", round, packed.nbytes)
            fabric.reply(flight, receiver, packed.nbytes)

        moved: int = await self._call("send", "SendModel", peer, packed.nbytes, visit, round=round)
        return moved

    def transferring(self, peer: PeerId) -> bool:  # noqa: ARG002
        return False  # a simulated message is delivered as a whole

    async def evaluate(self, peer: PeerId, address: str, model: Model) -> Eval:  # noqa: ARG002
        packed = self._pack(Payload(model), self._bandwidth(peer))
        envelope = self._envelope(model.layout.part)

        def visit(flight: Flight, receiver: Process) -> None:
            offer = self._admitted(receiver.host, "EvaluateModel", envelope, packed)
            receiver.spawn(self._evaluated(flight, receiver, offer), lambda: self._world.fabric.lost(flight))

        score: Eval = await self._call("ask", "EvaluateModel", peer, packed.nbytes, visit)
        return score

    async def _evaluated(self, flight: Flight, receiver: Process, offer: Offer) -> None:
        """Runs at the peer."""
        fabric = self._world.fabric
        try:
            score = await receiver.host.evaluate(offer)
        except Refused as refused:
            fabric.refuse(flight, receiver, refused)
        else:
            fabric.accept(receiver, "EvaluateModel", self._me.id, "ask", None, flight.nbytes)
            fabric.reply(flight, receiver, score)

    async def fetch(
        self,
        peer: PeerId,
        address: str,  # noqa: ARG002
        part: Part,
        layout: Layout,
        *,
        vectors: Mapping[str, Part] | None = None,
        whole: bool = False,
    ) -> Offer:
        wanted = layout.of(part) if layout.part == "model" else layout
        name = NAMES.get(part, "GetModel")

        def visit(flight: Flight, receiver: Process) -> None:
            host = receiver.host
            host.admit(name, self._envelope(part))
            offer = host.serve(part)
            model = offer.model
            if model.layout.digest != wanted.digest:
                raise misfit(wanted.digest, model.layout)
            if not whole:
                model = host.compressor.compressed(model, self._me.id, offer.round, fetched=True)
            payload = Payload(model, offer.vectors)
            packed = Packed.of(payload, self._encoding.of(self._bandwidth(peer), payload.size))
            receiver.traffic.sent(packed.nbytes)
            self._world.fabric.accept(receiver, name, self._me.id, "fetch", None, packed.nbytes)
            self._world.fabric.reply(flight, receiver, (offer, packed), nbytes=packed.nbytes)

        answer: tuple[Offer, Packed] = await self._call("fetch", name, peer, 0, visit, expected=wanted.nbytes)
        offer, packed = answer
        self._me.traffic.received(packed.nbytes)
        about = Envelope(offer.sender, "", offer.round, offer.tag, offer.samples, offer.notes)
        try:
            check_vectors(peer, parts_of(packed.vectors), vectors or {})
            return packed.offer(about, wanted)
        except Refused as refused:
            raise Refused(refused.reason, refused.text, peer) from refused

    def forget(self, peer: PeerId) -> None:
        """Abort the calls in progress to the peer."""
        for flight in [f for f in self._calls if f.peer == peer]:
            _end(flight.answer, PeerGone(peer, "the channel was closed"))
        self._bandwidths.pop(peer, None)

    async def close(self) -> None:
        for flight in list(self._calls):
            _end(flight.answer, PeerGone(flight.peer, "the channel was closed"))

    def cut(self) -> None:
        """The process is gone: fail new calls and abort those in progress."""
        self._cut = True
        for flight in list(self._calls):
            _end(flight.answer, PeerGone(flight.peer, "this process is gone"))

    # -- internals -----------------------------------------------------------------------------------------

    async def _call(
        self,
        call: Call,
        name: str,
        peer: PeerId,
        nbytes: int,
        visit: Callable[[Flight, Process], None],
        *,
        round: int | None = None,
        expected: int = 0,
    ) -> Any:
        if self._cut:
            raise PeerGone(peer, "this process is gone")
        loop, world = self._world.clock, self._world
        bandwidth = self._bandwidth(peer)
        began = loop.time()
        deadline = began + bandwidth.timeout(self._wire.base_timeout, nbytes or expected)
        own = CLOCK.get()
        number = self._me.calls[peer] = self._me.calls.get(peer, -1) + 1
        end = own.when(deadline) if own else deadline
        answer = loop.create_future()
        flight = Flight(call, name, self._me, peer, nbytes, round, number, loop.now, end, visit, answer)
        self._calls[flight] = None
        timer = loop.call_at(deadline, _late, flight, bandwidth)
        world.fabric.dispatch(flight)
        try:
            found = await answer
        finally:
            timer.cancel()
            del self._calls[flight]
        bandwidth.moved(nbytes or expected, loop.time() - began)
        return found

    def _bandwidth(self, peer: PeerId) -> Bandwidth:
        return self._bandwidths.setdefault(peer, Bandwidth(self._wire.min_bandwidth))

    def _pack(self, payload: Payload, bandwidth: Bandwidth) -> Packed:
        """Encode a payload once for all its receivers with the same encoding."""
        if self._packed is None or not self._packed[0].same(payload):
            self._packed = payload, {}
        payload, found = self._packed
        wire = self._encoding.of(bandwidth, payload.size)
        if wire.encoding not in found:
            found[wire.encoding] = Packed.of(payload, wire)
        return found[wire.encoding]

    def _envelope(self, part: Part, **said: Any) -> Envelope:
        return Envelope(self._me.id, self._world.settings.run, part=part, **said)

    def _admitted(self, host: Host, call: str, envelope: Envelope, packed: Packed) -> Offer:
        """The message as the peer's host admits and decodes it; raises Refused."""
        host.admit(call, envelope)
        try:
            return packed.offer(envelope, host.layout(envelope.part))
        except Refused:
            host.cancel(call, envelope)
            raise


def _late(flight: Flight, bandwidth: Bandwidth) -> None:
    if not flight.answer.done():
        bandwidth.too_slow()
        _end(flight.answer, PeerGone(flight.peer, "it did not answer in time"))


def _end(answer: asyncio.Future[Any], error: PeerGone | Refused) -> None:
    if not answer.done():
        answer.set_exception(error)


class Fabric:
    """The links between all nodes. Every link has the same latency and bandwidth; messages do not queue."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.flying = 0  # requests that have not arrived yet

    def dispatch(self, flight: Flight) -> None:
        world, sender = self._world, flight.sender
        if flight.nbytes:
            sender.traffic.sent(flight.nbytes)
        world.message(sender.id, "sent", to=flight.peer, call=flight.call, round=flight.round)
        lost = world.conditions.loses(world.clock.now, lambda n: self._chance(flight, f"lost{n}"))
        seconds = 0.0 if lost else self._travel(flight, flight.nbytes, "there")
        if lost or flight.sent + seconds > flight.end:
            self.lost(flight)
            return
        self.flying += 1
        world.clock.after(seconds, self._arrive, flight)

    def _arrive(self, flight: Flight) -> None:
        world, sender = self._world, flight.sender
        self.flying -= 1
        receiver = world.nodes[flight.peer]
        if not world.reaches(sender.id, receiver.id):
            self.lost(flight)
            closed = receiver.state == "left"  # its port is closed: the connection is refused at once
            now, patience = world.clock.now, world.settings.wire.connect_timeout
            heard = now + self._travel(flight, 0, "back") if closed else flight.sent + patience
            if heard < flight.end:
                world.clock.at(heard, _end, flight.answer, PeerGone(flight.peer, "no connection"))
            return
        try:
            receiver.context.run(flight.visit, flight, receiver)
        except Refused as refused:
            self.refuse(flight, receiver, refused)

    def accept(
        self, receiver: Process, name: str, sender: PeerId, call: Call, round: int | None, nbytes: int
    ) -> None:
        """Count and log a message that the receiver has accepted."""
        receiver.host.count(name, "ok", sender, nbytes)
        if call != "fetch":
            receiver.traffic.received(nbytes)
        self._world.message(receiver.id, "taken", **{"from": sender, "call": call, "round": round})

    def _reject(
        self, receiver: Process, name: str, sender: PeerId, call: Call, round: int | None, reason: str
    ) -> None:
        receiver.traffic.refused[reason] += 1
        receiver.host.count(name, reason, sender, 0)
        facts = {"from": sender, "call": call, "round": round, "reason": reason}
        self._world.message(receiver.id, "refused", **facts)

    def refuse(self, flight: Flight, receiver: Process, refused: Refused) -> None:
        """Count and log a refusal, and return its reason to the sender."""
        world, sender = self._world, flight.sender.id
        self._reject(receiver, flight.name, sender, flight.call, flight.round, refused.reason.value)
        back = world.clock.now + self._travel(flight, 0, "back")
        if self._reply_arrives(flight, back):
            error = Refused(refused.reason, refused.text, flight.peer, round=refused.round)
            world.clock.at(back, _end, flight.answer, error)

    def redeliver(self, receiver: Process, offer: Offer, nbytes: int) -> None:
        """Deliver a model that arrived while the receiver was held at the end of a segment. The sender already has
        its acknowledgement, so delivery is retried until the inbox has room."""
        host, sender, round = receiver.host, offer.sender, offer.round
        if not receiver.up:
            self._world.nodes[sender].traffic.models_lost += 1
            self._world.message(sender, "lost", to=receiver.id, call="send", round=round)
            return
        if receiver.mailbox.waiting_from(sender):
            clock = self._world.clock
            clock.at(clock.now + ROOM, self.redeliver, receiver, offer, nbytes, context=receiver.context)
            return
        try:
            model, vectors = offer.model, parts_of(offer.vectors)
            present = model.numbers.size if isinstance(model, PartialModel) else None
            part = model.layout.part
            host.admit("SendModel", Envelope(sender, host.run, round, part=part, vectors=vectors, present=present))
            host.deliver(offer)
        except Refused as refused:
            self._reject(receiver, "SendModel", sender, "send", round, refused.reason.value)
        else:
            self.accept(receiver, "SendModel", sender, "send", round, nbytes)

    def reply(self, flight: Flight, receiver: Process, answer: Any, *, nbytes: int = 0) -> None:
        """Return the answer to the caller. The acknowledgement of a send is exempt from random loss, but a
        partition or the deadline can stop it: then the receiver has the model and the sender does not know."""
        world = self._world
        back = world.clock.now + self._travel(flight, nbytes, "back")
        lost = flight.call != "send" and world.conditions.loses(
            world.clock.now, lambda n: self._chance(flight, f"unheard{n}")
        )
        if lost or not self._reply_arrives(flight, back):
            if nbytes:
                receiver.traffic.models_lost += 1
            return
        world.clock.at(back, _answer, flight.answer, answer)

    def lost(self, flight: Flight) -> None:
        if flight.nbytes:
            flight.sender.traffic.models_lost += 1
        facts = {"to": flight.peer, "call": flight.call, "round": flight.round}
        self._world.message(flight.sender.id, "lost", **facts)

    def _reply_arrives(self, flight: Flight, back: float) -> bool:
        """Does an answer that arrives at time `back` reach the caller before the deadline?"""
        return back <= flight.end and not self._world.conditions.blocked(flight.peer, flight.sender.id, back)

    def _travel(self, flight: Flight, nbytes: int, way: str) -> float:
        world = self._world
        return world.costs.travel(nbytes, self._chance(flight, way)) + world.conditions.delay(world.clock.now)

    def _chance(self, flight: Flight, what: str) -> float:
        """A draw keyed by the message, so that it is independent of all other events."""
        return self._world.chance(flight.sender.id, flight.peer, flight.number, what)


def _answer(answer: asyncio.Future[Any], found: Any) -> None:
    if not answer.done():
        answer.set_result(found)
