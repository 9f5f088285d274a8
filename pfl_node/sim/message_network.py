"""How messages travel in a simulation: sent, and then taken, refused or lost. Models pass by reference, as fp32.

Knows no policy; what a message does where it arrives is the receiving node's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pfl_node.errors import Reason, Refused
from pfl_node.sim.clock import Clock
from pfl_node.sim.world import World
from pfl_node.steps import Ask, Fetch, Send
from pfl_node.types import Offer, PeerId

if TYPE_CHECKING:
    from pfl_node.sim.node import SimNode

Answers = dict[PeerId, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """What a call got at the other end."""

    answer: Any = None
    work: float = 0.0  # seconds of computing there
    nbytes: int = 0  # of the model that travels back


@dataclass(frozen=True, slots=True)
class Parcel:
    """What is sent. `visit` happens where it arrives and may raise Refused; `wake` follows, however that ended."""

    call: str
    nbytes: int  # of the model that travels there; 0: a question without one
    visit: Callable[[SimNode], Result]
    wake: Callable[[SimNode], None] | None = None
    round: int | None = None


class Calls:
    """Calls made at the same time; when the last one has ended, `done` gets the answers in the order asked."""

    def __init__(self, clock: Clock, peers: Iterable[PeerId], done: Callable[[Answers], None]) -> None:
        self.peers = tuple(dict.fromkeys(peers))
        self._clock = clock
        self._answers: Answers = {}
        self.times: dict[PeerId, float] = {}  # when answers are there, as far as that is known
        self.failed: dict[PeerId, float] = {}  # when it is known that there will be none
        self.refused: set[PeerId] = set()  # who said so
        self._open = len(self.peers)
        self._end = clock.now
        self._done = done

    def answered(self, peer: PeerId, at: float, answer: Any) -> None:
        self._answers[peer], self.times[peer] = answer, at
        self._ended(at)

    def missed(self, peer: PeerId, at: float) -> None:
        self.failed[peer] = at
        self._ended(at)

    def _ended(self, at: float) -> None:
        self._end = max(self._end, at)
        self._open -= 1
        if self._open == 0:
            self._clock.at(self._end, self._finish)

    def _finish(self) -> None:
        self._done({p: self._answers[p] for p in self.peers if p in self._answers})


@dataclass(frozen=True, slots=True)
class Flight:
    """One call under way. Its caller gives it up at `end`, whatever becomes of it then."""

    sender: SimNode
    peer: PeerId
    parcel: Parcel
    calls: Calls
    sent: float
    end: float


class Post:
    """Between all nodes. Every link has the same latency and bandwidth, and no message waits for another."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.flying = 0  # messages that have not arrived yet

    def send(self, sender: SimNode, step: Send, done: Callable[[Answers], None]) -> Calls:
        offer = Offer(sender.id, step.model, step.round, step.tag, sender.learner.samples, step.notes)
        finite = step.model.is_finite()  # once for all receivers

        def visit(receiver: SimNode) -> Result:
            receiver.host.take(offer, finite=finite)
            return Result()

        def wake(receiver: SimNode) -> None:
            receiver.heard(offer)

        return self._deliver(sender, step.to, Parcel("send", step.model.nbytes, visit, wake, step.round), done)

    def fetch(self, sender: SimNode, step: Fetch, done: Callable[[Answers], None]) -> None:
        def visit(receiver: SimNode) -> Result:
            offer = sender.host.mine(receiver.host.serve(step.part))
            return Result(offer, nbytes=offer.model.nbytes)

        self._deliver(sender, step.peers, Parcel("fetch", 0, visit), done)

    def ask(self, sender: SimNode, step: Ask, done: Callable[[Answers], None]) -> None:
        def visit(receiver: SimNode) -> Result:
            score = receiver.host.evaluate(step.model, sender.id)
            return Result(score, work=receiver.seconds_to_score(score.samples))

        self._deliver(sender, step.peers, Parcel("ask", step.model.nbytes, visit), done)

    # -- the way of a message ------------------------------------------------------------------------------

    def _deliver(
        self, sender: SimNode, peers: Iterable[PeerId], parcel: Parcel, done: Callable[[Answers], None]
    ) -> Calls:
        calls = Calls(self._world.clock, peers, done)
        wire, now = self._world.settings.wire, self._world.clock.now
        seconds = wire.base_timeout + parcel.nbytes / wire.min_bandwidth
        end = sender.clock.when(sender.clock.now + seconds)
        for peer in calls.peers:
            self._dispatch(Flight(sender, peer, parcel, calls, now, end))
        return calls

    def _dispatch(self, flight: Flight) -> None:
        world, sender, parcel, now = self._world, flight.sender, flight.parcel, flight.sent
        if not world.views.believes(sender.id, flight.peer):
            flight.calls.missed(flight.peer, now)
            return
        if parcel.nbytes:
            sender.traffic.sent(parcel.nbytes)
        world.journal.message(now, sender.id, "sent", to=flight.peer, call=parcel.call, round=parcel.round)
        lost = world.weather.loses(now, sender.chance)
        seconds = 0.0 if lost else self._travel(parcel.nbytes, sender)
        if lost or now + seconds > flight.end:
            self._lost(flight)
            flight.calls.missed(flight.peer, flight.end)
            return
        self.flying += 1
        world.clock.after(seconds, partial(self._arrive, flight))

    def _arrive(self, flight: Flight) -> None:
        world, now, sender, parcel = self._world, self._world.clock.now, flight.sender, flight.parcel
        self.flying -= 1
        receiver = world.nodes[flight.peer]
        if not world.reaches(sender.id, receiver.id):
            self._lost(flight)
            closed = receiver.state == "left"  # nobody listens there any more, and one hears so at once
            heard = now + self._travel(0, sender) if closed else flight.sent + world.settings.wire.connect_timeout
            flight.calls.missed(flight.peer, min(heard, flight.end))
            return
        try:
            result = parcel.visit(receiver)
        except Refused as refused:
            self._refused(flight, receiver, refused)
        else:
            if parcel.nbytes:
                receiver.traffic.received(parcel.nbytes)
            facts = {"from": sender.id, "call": parcel.call, "round": parcel.round}
            world.journal.message(now, receiver.id, "taken", **facts)
            self._return(flight, receiver, result)
        if parcel.wake:
            parcel.wake(receiver)

    def _refused(self, flight: Flight, receiver: SimNode, refused: Refused) -> None:
        world, now, sender, parcel = self._world, self._world.clock.now, flight.sender, flight.parcel
        receiver.traffic.refused[refused.reason.value] += 1
        if parcel.call != "fetch":
            receiver.guard.offence(sender.id, refused.reason, receiver.clock.now)
        facts = {"from": sender.id, "call": parcel.call, "round": parcel.round, "reason": refused.reason.value}
        world.journal.message(now, receiver.id, "refused", **facts)
        back = now + self._travel(0, receiver)
        heard = self._gets_back(flight, back, flight.end)
        if heard and refused.reason is Reason.STALE_ROUND:
            world.clock.at(back, partial(sender.overtaken, receiver.id, refused.round))
        if heard:
            flight.calls.refused.add(flight.peer)
        flight.calls.missed(flight.peer, back if heard else flight.end)

    def _return(self, flight: Flight, receiver: SimNode, result: Result) -> None:
        """The answer's way back. A receipt is not lost as messages are, but its way may be cut off or too long:
        then a model was taken, and its sender does not know."""
        world, now = self._world, self._world.clock.now
        back = now + result.work + self._travel(result.nbytes, receiver)
        if result.nbytes:
            receiver.traffic.sent(result.nbytes)
        lost = flight.parcel.call != "send" and world.weather.loses(now, receiver.chance)
        end = flight.end + result.nbytes / world.settings.wire.min_bandwidth
        if lost or not self._gets_back(flight, back, end):
            if result.nbytes:
                receiver.traffic.models_lost += 1
            flight.calls.missed(flight.peer, end)
            return
        if result.nbytes:
            flight.sender.traffic.received(result.nbytes)
        flight.calls.answered(receiver.id, back, result.answer)

    def _gets_back(self, flight: Flight, back: float, end: float) -> bool:
        """Does an answer that would be there then reach the caller, and in time?"""
        return back <= end and not self._world.weather.apart(flight.peer, flight.sender.id, back)

    def _lost(self, flight: Flight) -> None:
        parcel = flight.parcel
        if parcel.nbytes:
            flight.sender.traffic.models_lost += 1
        facts = {"to": flight.peer, "call": parcel.call, "round": parcel.round}
        self._world.journal.message(self._world.clock.now, flight.sender.id, "lost", **facts)

    def _travel(self, nbytes: int, sender: SimNode) -> float:
        world = self._world
        return world.costs.travel(nbytes, sender.chance) + world.weather.delay(world.clock.now)
