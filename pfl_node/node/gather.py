"""Answers Gather: which peers a round waits for, until when, and which models it returns."""

from __future__ import annotations

from pfl_node.node.clock import now
from pfl_node.node.context import NodeContext
from pfl_node.node.waiting import PendingWaits
from pfl_node.protocol.deadlines import Deadline, Deadlines, suffices
from pfl_node.steps import Gather
from pfl_node.types import Offer, PeerId

POLL_INTERVAL = 0.5  # seconds between two checks of the peers' rounds, which change without a notification


class ArrivalTimes:
    """Reports to the deadlines when a model of a round begins to arrive, stops arriving, or is complete."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines

    def arrives(self, peer: PeerId, round: int) -> None:
        self._deadlines.arrives(peer, round, now())

    def stopped(self, peer: PeerId, round: int, *, resumes: bool) -> None:
        self._deadlines.stopped(peer, round, now(), resumes=resumes)

    def arrived(self, peer: PeerId, round: int) -> None:
        self._deadlines.arrived(peer, round, now())


class Gatherer:
    """One per driver."""

    def __init__(self, context: NodeContext, waits: PendingWaits, deadlines: Deadlines, *, lockstep: bool) -> None:
        self._context = context
        self._lockstep = lockstep  # if set, a node that fell behind catches up
        self._waits = waits
        self._deadlines = deadlines

    async def gather(self, step: Gather) -> tuple[Offer, ...]:
        box, began = self._context.mailbox, now()
        ask_at = began + POLL_INTERVAL
        box.advance(step.round)
        deadline = self._deadlines.enter(step.round, began, step.patience)
        with self._waits.on("models", step.round) as wait:
            while awaited := self._awaited(step, deadline):
                wait.peers, wait.until = awaited, (until := deadline.last(awaited))
                if (time := now()) >= ask_at:  # a peer that caught up sends no model for skipped rounds
                    self._context.peers.ask(awaited)
                    ask_at = time + (time - began)  # back off: all nodes may wait long for the same few
                await self._context.notifier.wait(min(POLL_INTERVAL, until - time), "rounds", "members")
        ended = now()
        given_up = [p for p in self._missing(step) if deadline.until(p) <= ended]
        self._deadlines.over(step.round, step.peers, given_up, ended)
        if given_up:
            self._context.recorder.gave_up(step.round, given_up, ended - began)
        found = box.collect(step.peers, step.round, others=step.others)
        asked, alive = set(step.peers), self._context.peers()
        return tuple(o for o in found if o.sender in asked or o.sender in alive)  # ignore other senders

    def _awaited(self, step: Gather, deadline: Deadline) -> list[PeerId]:
        """Empty when all models that can arrive in time are here, a quorum has arrived, or the swarm moved on."""
        missing, box = self._missing(step), self._context.mailbox
        here = box.here(step.peers, step.round)
        if suffices(here, len(missing), self._context.settings.round.quorum):
            return []
        if self._lockstep and box.will_skip_ahead(step.round, self._context.peers.rounds):
            return []
        time = now()
        return [p for p in missing if deadline.until(p) > time]

    def _missing(self, step: Gather) -> list[PeerId]:
        """Peers whose model can still arrive. A peer that membership reports in a later round has already sent it,
        but perhaps not to this node: it may not have known this node, or it sampled other peers. A quarantined
        peer is refused."""
        rounds = self._context.peers.rounds()
        missing = self._context.mailbox.missing(step.peers, step.round, rounds)
        there = [p for p in missing if p in rounds and self._deadlines.should_wait(p, step.round)]
        return self._context.guard.free(there, now())
