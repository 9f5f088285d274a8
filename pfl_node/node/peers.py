"""The other nodes of a run, and what their rounds mean for this one. Knows no policy and no model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pfl_node.node.notifier import Notifier
from pfl_node.node.ports import Members, now
from pfl_node.types import PeerId

if TYPE_CHECKING:
    from pfl_node.settings import StartSettings


class RunPeers:
    """Who is there, who was, and who still has rounds to do."""

    def __init__(self, members: Members, rounds: int | None) -> None:
        self._members = members
        self._rounds = rounds  # None: without an end

    def __call__(self) -> Mapping[PeerId, str]:
        """Those that are believed alive, and where they are."""
        return self._members.alive()

    def rounds(self) -> Mapping[PeerId, int]:
        """In which rounds those are that are believed alive."""
        return self._members.rounds()

    def swarm_round(self) -> int:
        """The round that half of them have begun."""
        return self._members.swarm_round()

    def everyone(self, *, finished: bool) -> tuple[PeerId, ...]:
        """Those that are believed alive, and those that did their last round and left; sorted."""
        return self._members.everyone() if finished else tuple(self._members.alive())

    def ask(self, peers: Iterable[PeerId]) -> None:
        """Let them tell in which rounds they are."""
        self._members.ask(peers)

    def seen(self) -> int:
        """How many there are or were to the end: who has left early is not waited for again."""
        return len(self._members.everyone())

    async def gather(self, start: StartSettings, notifier: Notifier) -> None:
        """Until there are enough and no more are coming, or it has taken too long. Where the others have begun,
        enough is enough."""
        end = now() + start.wait
        seen, newest = self.seen(), now()
        while True:
            time = now()
            if self.seen() > seen:
                seen, newest = self.seen(), time
            if seen >= start.peers and (not start.calm or any(self.rounds().values())):
                return
            until = end if seen < start.peers else min(end, newest + start.calm)
            if time >= until:
                return
            await notifier.wait(until - time, "members")

    def at_work(self) -> dict[PeerId, int]:
        """Who still has rounds to do, and is in which. Without an end everybody always has."""
        return {p: round for p, round in self.rounds().items() if self._rounds is None or round < self._rounds}

    def i_am_in(self, round: int) -> None:
        """Told to the others with the next probes."""
        self._members.announce(round)

    def i_have_come(self, round: int) -> None:
        """Whatever the round: until I have looked around, the others shall not think that I am done."""
        self.i_am_in(round if self._rounds is None else min(round, self._rounds - 1))

    def i_am_done(self) -> None:
        if self._rounds is not None:
            self.i_am_in(self._rounds)
