"""The other nodes of a run, as the membership knows them. Knows no policy and no model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pfl_node.membership.member import State
from pfl_node.membership.service import Membership
from pfl_node.node.notifier import Notifier
from pfl_node.types import PeerId

if TYPE_CHECKING:
    from pfl_node.settings import StartSettings


class RunPeers:
    """Who is there, who was, and who still has rounds to do."""

    def __init__(self, membership: Membership, run: str, rounds: int | None) -> None:
        self._membership = membership
        self._run = run
        self._rounds = rounds  # None: without an end

    def __call__(self) -> dict[PeerId, str]:
        """Those that are believed alive, and where they are."""
        return {PeerId(m.id): m.address for m in self._membership.alive(role="node", run=self._run)}

    def rounds(self) -> dict[PeerId, int]:
        """In which rounds those are that are believed alive."""
        return {PeerId(m.id): m.round for m in self._membership.alive(role="node", run=self._run)}

    def ask(self, peers: Iterable[PeerId]) -> None:
        """Let them tell in which rounds they are."""
        self._membership.ask(peers)

    def finished(self) -> list[PeerId]:
        """Those that did their last round and left."""
        rounds = self._rounds
        return [
            PeerId(m.id)
            for m in self._membership.members()
            if m.state is State.LEFT and m.run == self._run and rounds is not None and m.round >= rounds
        ]

    def seen(self) -> int:
        """How many there are or were to the end: who has left early is not waited for again."""
        return len({*self(), *self.finished()})

    async def gather(self, start: StartSettings, notifier: Notifier) -> None:
        """Until there are enough and no more are coming, or it has taken too long. Where the others have begun,
        enough is enough. The notifier rings when somebody comes."""
        loop = asyncio.get_running_loop()
        end = loop.time() + start.wait
        seen, newest = self.seen(), loop.time()
        while True:
            now = loop.time()
            if self.seen() > seen:
                seen, newest = self.seen(), now
            begun = any(self.rounds().values())
            until = end if seen < start.peers else now if begun else min(end, newest + start.calm)
            if now >= until:
                return
            await notifier.wait(until - now)

    def at_work(self) -> dict[PeerId, int]:
        """Who still has rounds to do, and is in which. Without an end everybody always has."""
        return {p: round for p, round in self.rounds().items() if self._rounds is None or round < self._rounds}

    def i_am_in(self, round: int) -> None:
        """Told to the others with the next probes."""
        self._membership.set_round(round)

    def i_have_come(self, round: int) -> None:
        """Whatever the round: until I have looked around, the others shall not think that I am done."""
        self.i_am_in(round if self._rounds is None else min(round, self._rounds - 1))

    def i_am_done(self) -> None:
        if self._rounds is not None:
            self.i_am_in(self._rounds)
