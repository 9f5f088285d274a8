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
        self._open = len(self.peers)
        self._end = clock.now
        self._done = done

    def answered(self, peer: PeerId, at: float, answer: Any) -> None:
        self._answers[peer] = answer
        self.missed(at)

    def missed(self, at: float) -> None:
        self._end = max(self._end, at)
        self._open -= 1
        if self._open == 0:
            self._clock.at(self._end, self._finish)

    def _finish(self) -> None:
        self._done({p: self._answers[p] for p in self.peers if p in self._answers})


class Post:
    """Between all nodes. Every link has the same latency and bandwidth, and no message waits for another."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.flying = 0  # messages that have not arrived yet

    def send(self, sender: SimNode, step: Send, done: Callable[[Answers], None]) -> None:
        offer = Offer(sender.id, step.model, step.round, step.tag, sender.learner.samples, step.notes)
        finite = step.model.is_finite()  # once for all receivers

        def visit(receiver: SimNode) -> Result:
            receiver.reception.take(offer, finite=finite)
            return Result()

        def wake(receiver: SimNode) -> None:
            receiver.heard(offer)

        self._deliver(sender, step.to, Parcel("send", step.model.nbytes, visit, wake, step.round), done)

    def fetch(self, sender: SimNode, step: Fetch, done: Callable[[Answers], None]) -> None:
        def visit(receiver: SimNode) -> Result:
            offer = sender.reception.mine(receiver.reception.serve(step.part))
            return Result(offer, nbytes=offer.model.nbytes)

        self._deliver(sender, step.peers, Parcel("fetch", 0, visit), done)

    def ask(self, sender: SimNode, step: Ask, done: Callable[[Answers], None]) -> None:
        def visit(receiver: SimNode) -> Result:
            score = receiver.reception.evaluate(step.model, sender.id)
            return Result(score, work=receiver.seconds_to_score(score.samples))

        self._deliver(sender, step.peers, Parcel("ask", step.model.nbytes, visit), done)

    # -- the way of a message ------------------------------------------------------------------------------

    def _deliver(
        self, sender: SimNode, peers: Iterable[PeerId], parcel: Parcel, done: Callable[[Answers], None]
    ) -> None:
        calls = Calls(self._world.clock, peers, done)
        for peer in calls.peers:
            self._dispatch(sender, peer, parcel, calls)

    def _dispatch(self, sender: SimNode, peer: PeerId, parcel: Parcel, calls: Calls) -> None:
        world, now = self._world, self._world.clock.now
        if not world.views.believes(sender.id, peer):
            calls.missed(now)
            return
        if parcel.nbytes:
            sender.traffic.sent(parcel.nbytes)
        world.journal.message(now, sender.id, "sent", to=peer, call=parcel.call, round=parcel.round)
        if world.weather.loses(now, sender.chance):
            self._lost(sender, peer, parcel)
            calls.missed(now + self._deadline(parcel.nbytes))
            return
        self.flying += 1
        arrive = partial(self._arrive, sender, peer, parcel, calls, now)
        world.clock.after(self._travel(parcel.nbytes, sender), arrive)

    def _arrive(self, sender: SimNode, peer: PeerId, parcel: Parcel, calls: Calls, sent: float) -> None:
        world, now = self._world, self._world.clock.now
        self.flying -= 1
        receiver = world.nodes[peer]
        if not world.reaches(sender.id, peer):
            self._lost(sender, peer, parcel)
            closed = receiver.state == "left"  # nobody listens there any more, and one hears so at once
            calls.missed(now + self._travel(0, sender) if closed else sent + world.settings.wire.connect_timeout)
            return
        try:
            result = parcel.visit(receiver)
        except Refused as refused:
            self._refused(sender, receiver, parcel, calls, refused)
        else:
            if parcel.nbytes:
                receiver.traffic.received(parcel.nbytes)
            facts = {"from": sender.id, "call": parcel.call, "round": parcel.round}
            world.journal.message(now, peer, "taken", **facts)
            self._return(sender, receiver, parcel, calls, result)
        if parcel.wake:
            parcel.wake(receiver)

    def _refused(self, sender: SimNode, receiver: SimNode, parcel: Parcel, calls: Calls, refused: Refused) -> None:
        world, now = self._world, self._world.clock.now
        receiver.traffic.refused[refused.reason.value] += 1
        if parcel.call != "fetch":
            receiver.warden.offence(sender.id, refused.reason, now)
        facts = {"from": sender.id, "call": parcel.call, "round": parcel.round, "reason": refused.reason.value}
        world.journal.message(now, receiver.id, "refused", **facts)
        back = now + self._travel(0, receiver)
        if refused.reason is Reason.STALE_ROUND:
            world.clock.at(back, partial(sender.overtaken, receiver.id))
        calls.missed(back)

    def _return(self, sender: SimNode, receiver: SimNode, parcel: Parcel, calls: Calls, result: Result) -> None:
        """The answer's way back. A receipt always gets through, so a sender knows what was taken."""
        world, now = self._world, self._world.clock.now
        back = now + result.work + self._travel(result.nbytes, receiver)
        if result.nbytes:
            receiver.traffic.sent(result.nbytes)
        if parcel.call != "send" and world.weather.loses(now, receiver.chance):
            if result.nbytes:
                receiver.traffic.models_lost += 1
            calls.missed(now + self._deadline(result.nbytes))
            return
        if result.nbytes:
            sender.traffic.received(result.nbytes)
        calls.answered(receiver.id, back, result.answer)

    def _lost(self, sender: SimNode, peer: PeerId, parcel: Parcel) -> None:
        if parcel.nbytes:
            sender.traffic.models_lost += 1
        facts = {"to": peer, "call": parcel.call, "round": parcel.round}
        self._world.journal.message(self._world.clock.now, sender.id, "lost", **facts)

    def _travel(self, nbytes: int, sender: SimNode) -> float:
        world = self._world
        return world.costs.travel(nbytes, sender.chance) + world.weather.delay(world.clock.now)

    def _deadline(self, nbytes: int) -> float:
        wire = self._world.settings.wire
        return wire.base_timeout + nbytes / wire.min_bandwidth
