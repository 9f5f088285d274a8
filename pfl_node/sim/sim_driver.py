"""Runs a policy inside the simulator: answers its steps on virtual time. Knows no algorithm and no lifecycle."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from pfl_node.errors import SimulationStuck
from pfl_node.node.linger import LingerTimer
from pfl_node.policies.base import Policy
from pfl_node.sim.fiber import WAIT, Fiber, Reply
from pfl_node.sim.lane import Lane
from pfl_node.sim.message_network import Answers, Post
from pfl_node.sim.rounds import LOOK, SimRounds
from pfl_node.sim.study import SimStudy
from pfl_node.sim.world import World
from pfl_node.steps import Ask, Fetch, Gather, Linger, Peers, Publish, Receive, Record, Report, Send, Sleep, Step
from pfl_node.types import Offer, PeerId

if TYPE_CHECKING:
    from pfl_node.sim.node import SimNode

HASTE = 100_000  # steps of a node in no time, after which it is taken to go round in circles


@dataclass(frozen=True, slots=True, eq=False)
class Receiving:
    """A Receive that waits."""

    step: Receive
    reply: Reply


class SimDriver:
    """One policy, one node, from its start to its end or its crash."""

    def __init__(self, policy: Policy, node: SimNode, world: World, post: Post, done: Callable[[], None]) -> None:
        self.policy = policy
        self.node = node
        self.world = world
        self.post = post
        self.clock = node.clock
        self.main = Fiber(f"{node.id}, main", policy.main(), self._answer, done)
        self.lane = Lane(policy, node.mailbox, node.clock, self._answer) if policy.pushes() else None
        self._rounds = SimRounds(node, world, post)
        self._receivings: list[Receiving] = []
        self.study = SimStudy(policy, node, world)
        self._moment, self._steps = 0.0, 0  # what was asked for since time last moved
        self._lingering = LingerTimer(world.settings.round.linger)
        self._trainer_free = 0.0  # when the node's one trainer has done all it was asked for

    def start(self) -> None:
        self.main.run()
        if self.lane:
            self.lane.go()

    def stop(self) -> None:
        self.main.stop()
        if self.lane:
            self.lane.stop()

    def waits_for(self) -> str:
        """For a human who asks why nothing happens."""
        return self._rounds.waits_for() or type(self.main.step).__name__

    def _answer(self, fiber: Fiber, step: Step[Any]) -> Any:
        self._count(step)
        match step:
            case Sleep():
                reply = fiber.reply()
                self.clock.after(step.seconds, lambda: reply(self.clock.now))
                return WAIT
            case Peers():
                return self._peers()
            case Send():
                return self._rounds.send(fiber, step) if step.to else ()
            case Gather():
                return self._rounds.gather(fiber, step)
            case Receive():
                return self._receive(fiber, step)
            case Fetch():
                step = replace(step, peers=self._free(step.peers))
                call = partial(self.post.fetch, self.node, step)
                return self._call(fiber, step.peers, call, lambda found: self.node.host.fetched(found.values()))
            case Ask():
                step = replace(step, peers=self._free(step.peers))
                return self._call(fiber, step.peers, partial(self.post.ask, self.node, step), dict)
            case Linger():
                return self._linger(fiber, step)
            case Publish():
                return self.node.publish(step)
            case Record():
                return self.node.record(step)
            case Report():
                return self._report(fiber, step)
        seconds, answer = self.study.answer(step)
        return self._compute(fiber, seconds, answer)

    def _count(self, step: Step[Any]) -> None:
        if self.clock.now > self._moment:
            self._moment, self._steps = self.clock.now, 0
        self._steps += 1
        if self._steps > HASTE:
            asked = type(step).__name__
            raise SimulationStuck(f"{self.node.id} took {HASTE} steps in no time and asks for {asked} again")

    def _report(self, fiber: Fiber, step: Report) -> Any:
        seconds = self.node.report(step)
        if self.node.hold():
            fiber.reply()  # nobody will use it
            return WAIT
        return self._compute(fiber, seconds, None)

    def _peers(self) -> tuple[PeerId, ...]:
        alive = self.world.views.alive(self.node.id)
        return tuple(sorted((*alive, *self.world.views.finished()))) if self.policy.lockstep else alive

    def _linger(self, fiber: Fiber, step: Linger) -> Any:
        self.node.rest()
        reply = fiber.reply()
        end = inf if step.seconds is None else self.clock.now + step.seconds

        def look() -> None:
            if not reply.open:
                return
            others = [self.world.nodes[p] for p in self.world.views.alive(self.node.id)]
            left = self._lingering.left(self.clock.now, {n.id: n.policy.round for n in others if n.at_work})
            if not left or self.clock.now >= end:
                reply(not left)
            else:
                self.clock.at(min(end, self.clock.now + min(LOOK, left)), look)

        self.clock.after(0.0, look)
        return WAIT

    # -- messages ------------------------------------------------------------------------------------------

    def _free(self, peers: Iterable[PeerId]) -> list[PeerId]:
        """Without those in quarantine."""
        return self.node.guard.free(peers, self.clock.now)

    def _call(
        self,
        fiber: Fiber,
        peers: Collection[PeerId],
        go: Callable[[Callable[[Answers], None]], None],
        shape: Callable[[Answers], Any],
    ) -> Any:
        if not peers:
            return shape({})
        reply = fiber.reply()
        go(lambda found: reply(shape(found)))
        return WAIT

    def _receive(self, fiber: Fiber, step: Receive) -> Any:
        box = self.node.mailbox
        if len(box) >= step.n:
            return box.take(step.n)
        waits = Receiving(step, fiber.reply())
        self._receivings.append(waits)
        patience = self.world.settings.round.patience if step.patience is None else step.patience
        self.clock.after(patience, partial(self._received, waits))
        return WAIT

    def _received(self, waits: Receiving) -> None:
        if waits in self._receivings:
            self._receivings.remove(waits)
            if waits.reply.open:
                waits.reply(self.node.mailbox.take(waits.step.n))

    # -- what wakes a fiber --------------------------------------------------------------------------------

    def heard(self, offer: Offer) -> None:
        """A model came. One of a later round says that its sender sends nothing more for an earlier one."""
        if offer.round is not None:
            self._rounds.await_no_more((offer.sender,), up_to=offer.round)
            return
        if self.lane:
            self.lane.go()
        for waits in [w for w in self._receivings if len(self.node.mailbox) >= w.step.n]:
            self._received(waits)

    def gone(self, peers: Collection[PeerId]) -> None:
        """They left or are believed dead."""
        self._rounds.await_no_more(peers)

    def overtaken(self, peer: PeerId) -> None:
        """The peer is in a later round than I am."""
        self._rounds.await_no_more((peer,), up_to=self.node.mailbox.round)

    # -- learning ------------------------------------------------------------------------------------------

    def _compute(self, fiber: Fiber, seconds: float, answer: Any) -> Any:
        """The answer is known, as it depends on nothing that happens meanwhile; it is due when the node's one
        trainer would have come to it and finished."""
        if seconds <= 0:
            return answer
        clock = self.world.clock  # a clock that goes wrong makes no computer faster
        self._trainer_free = max(self._trainer_free, clock.now) + self.node.seconds_of(seconds)
        clock.at(self._trainer_free, partial(fiber.reply(), answer))
        return WAIT
