"""Answers Gather inside the daemon: the waiting of a round, for whom, until when, and what it ends with."""

from __future__ import annotations

import time

from pfl_node.node.context import Desk
from pfl_node.node.waiting import Waits
from pfl_node.protocol.deadlines import Deadline, Patience, suffices
from pfl_node.steps import Gather
from pfl_node.types import Offer, PeerId

LOOK = 0.5  # seconds between two looks at how far the others are; their rounds come without a ring


class Rounds:
    """One for each driver. Hears from the mailbox of every model, so that it knows what peers need."""

    def __init__(self, desk: Desk, waits: Waits, patience: Patience, *, lockstep: bool) -> None:
        self._desk = desk
        self._lockstep = lockstep  # so one left behind catches up
        self._waits = waits
        self._patience = patience
        desk.mailbox.heard = lambda peer, round: self._patience.came(peer, round, time.monotonic())

    async def gather(self, step: Gather) -> tuple[Offer, ...]:
        box, began = self._desk.mailbox, time.monotonic()
        ask_at = began + LOOK
        box.advance(step.round)
        deadline = self._patience.enter(step.round, began, step.patience)
        with self._waits.on("models", step.round) as wait:
            while awaited := self._awaited(step, deadline):
                wait.peers, wait.until = awaited, deadline.last(awaited)
                if (now := time.monotonic()) >= ask_at:  # one that caught up skipped rounds, and sends none
                    self._desk.company.ask(awaited)
                    ask_at = now + (now - began)  # all may wait for the same few, and for long
                await self._desk.bell.wait(min(LOOK, max(0.0, wait.until - now)))
        now = time.monotonic()
        given_up = [p for p in self._missing(step) if deadline.until(p) <= now]
        self._patience.over(step.round, step.peers, given_up, now)
        if given_up:
            self._desk.diary.gave_up(step.round, given_up, now - began)
        known = {*step.peers, *self._desk.company()}  # nobody else has a voice, whatever name it gives itself
        found = box.collect(step.peers, step.round, others=step.others)
        return tuple(o for o in found if o.sender in known)

    def _awaited(self, step: Gather, deadline: Deadline) -> list[PeerId]:
        """Nobody: all are here that will come in time, or enough, or the swarm went on without me."""
        missing, box = self._missing(step), self._desk.mailbox
        here = box.here(step.peers, step.round)
        if suffices(here, len(missing), self._desk.settings.round.quorum):
            return []
        if self._lockstep and box.passed_by(step.round, self._desk.company.rounds):
            return []
        now = time.monotonic()
        return [p for p in missing if deadline.until(p) > now]

    def _missing(self, step: Gather) -> list[PeerId]:
        """Whose models can still come. One that is in a later round, as the membership tells, has sent already:
        not to me if it did not know of me, or drew others. What one in quarantine sends is refused."""
        rounds = self._desk.company.rounds()
        missing = self._desk.mailbox.missing(step.peers, step.round, rounds)
        there = [p for p in missing if p in rounds and self._patience.worth(p)]
        return self._desk.warden.free(there, time.monotonic())
