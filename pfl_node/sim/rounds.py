"""Answers Send and Gather inside the simulator, with the deadlines of a real node."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any

from pfl_node.protocol.deadlines import Deadline, Deadlines, SendDeadlines, suffices
from pfl_node.sim.fiber import WAIT, Fiber, Reply
from pfl_node.sim.message_network import Answers, Calls, Post
from pfl_node.sim.world import World
from pfl_node.steps import Gather, Send
from pfl_node.types import Offer, PeerId

if TYPE_CHECKING:
    from pfl_node.sim.node import SimNode

LOOK = 1.0  # virtual seconds between two looks at how far the others are
BLINK = 1e-6  # virtual seconds by which a node's own clock may be wrong when it wakes up


@dataclass(frozen=True, slots=True, eq=False)
class Gathering:
    """A Gather that waits, for whom, and for whom no longer."""

    step: Gather
    began: float
    deadline: Deadline
    awaited: set[PeerId]
    given_up: set[PeerId]
    reply: Reply


class SimRounds:
    """One for each driver."""

    def __init__(self, node: SimNode, world: World, post: Post) -> None:
        self._node = node
        self._world = world
        self._post = post
        self._clock = node.clock
        self._gatherings: list[Gathering] = []
        self._patience = Deadlines(world.settings.round, self._clock.now)
        self._receipts = SendDeadlines(world.settings.round)
        self._number = 0
        node.mailbox.heard = lambda peer, round: self._patience.came(peer, round, self._clock.now)

    def waits_for(self) -> str:
        """For a human who asks why nothing happens; empty: for no model."""
        if not self._gatherings:
            return ""
        waits = self._gatherings[0]
        return f"Gather of round {waits.step.round} from {', '.join(sorted(waits.awaited))}"

    # -- Send ----------------------------------------------------------------------------------------------

    def send(self, fiber: Fiber, step: Send) -> Any:
        """Without a round every push is waited for, with one only as long as the peers usually need."""
        self._number += 1
        number, began, reply = self._number, self._world.clock.now, fiber.reply()

        def done(found: Answers) -> None:
            for peer, at in calls.times.items():
                self._receipts.answered(peer, number, at - began)
            for peer, at in calls.failed.items():
                if peer in calls.refused:
                    self._receipts.refused(peer)
                else:
                    self._receipts.failed(peer, number, at - began)
            if reply.open:
                self._spent(step, calls, began)
            reply(tuple(found))

        seconds = self._receipts.seconds(step.to) if step.round is not None else None
        calls = self._post.send(self._node, step, done)
        if seconds is not None and isfinite(seconds):
            self._clock.after(seconds, partial(self._leave_alone, step, calls, number, began, reply))
        return WAIT

    def _leave_alone(self, step: Send, calls: Calls, number: int, began: float, reply: Reply) -> None:
        """What is still under way goes on beside the round."""
        if not reply.open:
            return
        now = self._world.clock.now
        taken = tuple(p for p in calls.peers if calls.times.get(p, now + 1) <= now)
        for peer in calls.peers:
            if peer not in taken:
                self._receipts.given_up(peer, number, now - began)
        self._spent(step, calls, began)
        reply(taken)

    def _spent(self, step: Send, calls: Calls, began: float) -> None:
        """What was waited for in vain since the last push was taken."""
        now = self._world.clock.now
        if step.round is not None:
            self._patience.spent(now - max([began, *(at for at in calls.times.values() if at <= now)]))

    # -- Gather --------------------------------------------------------------------------------------------

    def gather(self, fiber: Fiber, step: Gather) -> Any:
        box, believes, worth = self._node.mailbox, self._world.views.believes, self._patience.worth
        box.advance(step.round)
        me, now = self._node.id, self._clock.now
        missing = self._node.guard.free(box.missing(step.peers, step.round), now)
        awaited = {p for p in missing if p != me and believes(me, p) and worth(p)}
        deadline = self._patience.enter(step.round, now, step.patience)
        if self._enough(step, awaited):
            return self._collect(step)
        waits = Gathering(step, now, deadline, awaited, set(), fiber.reply())
        self._gatherings.append(waits)
        self._clock.at(deadline.soonest, partial(self._expire, waits))
        self._clock.after(LOOK, partial(self._look, waits))
        return WAIT

    def await_no_more(self, peers: Collection[PeerId], up_to: int | None = None) -> None:
        """They sent what they send for these rounds, or are gone."""
        for waits in list(self._gatherings):
            if up_to is None or waits.step.round <= up_to:
                waits.awaited.difference_update(peers)
                waits.given_up.difference_update(peers)
                self._go_on(waits)

    def _enough(self, step: Gather, awaited: Collection[PeerId]) -> bool:
        quorum, node, box = self._world.settings.round.quorum, self._node, self._node.mailbox
        if not awaited or (node.policy.lockstep and box.passed_by(step.round, node.others)):
            return True
        return quorum < 1 and suffices(box.here(step.peers, step.round), len(awaited), quorum)

    def _look(self, waits: Gathering) -> None:
        """Who is in a later round has sent already, as the membership tells a real node."""
        if waits not in self._gatherings:
            return
        rounds = {p: self._world.nodes[p].policy.round for p in sorted(waits.awaited)}
        for peer, round in rounds.items():
            self._node.mailbox.began(peer, round)
        waits.awaited.intersection_update(self._node.mailbox.missing(rounds, waits.step.round))
        if self._go_on(waits):
            self._clock.after(LOOK, partial(self._look, waits))

    def _expire(self, waits: Gathering) -> None:
        """Some have had their time."""
        if waits not in self._gatherings:
            return
        ends = {p: waits.deadline.until(p) for p in waits.awaited}
        waits.given_up.update(p for p, end in ends.items() if end <= self._clock.now + BLINK)
        waits.awaited.difference_update(waits.given_up)
        if self._go_on(waits):
            self._clock.at(min(ends[p] for p in waits.awaited), partial(self._expire, waits))

    def _go_on(self, waits: Gathering) -> bool:
        """Is there anybody to wait for? If not, the waiting is over."""
        if not self._enough(waits.step, waits.awaited):
            return True
        self._gatherings.remove(waits)
        if waits.reply.open:
            waits.reply(self._collect(waits.step, waits))
        return False

    def _collect(self, step: Gather, waits: Gathering | None = None) -> tuple[Offer, ...]:
        box, now = self._node.mailbox, self._clock.now
        given_up = box.missing(sorted(waits.given_up), step.round) if waits else []
        self._patience.over(step.round, step.peers, given_up, now)
        if waits and given_up:
            self._node.gave_up(step.round, given_up, now - waits.began)
        known = {*step.peers, *self._world.views.alive(self._node.id)}
        found = box.collect(step.peers, step.round, others=step.others)
        return tuple(o for o in found if o.sender in known)
