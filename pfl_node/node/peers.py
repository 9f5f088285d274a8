"""The other nodes of the run and their rounds, from the membership."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pfl_node.node.clock import now
from pfl_node.node.notifier import Notifier
from pfl_node.node.ports import Members
from pfl_node.types import PeerId

if TYPE_CHECKING:
    from pfl_node.settings import StartSettings


class RunPeers:
    def __init__(self, members: Members, rounds: int | None) -> None:
        self._members = members
        self._rounds = rounds  # None: unlimited

    def __call__(self) -> Mapping[PeerId, str]:
        """The addresses of the live peers."""
        return self._members.alive()

    def rounds(self) -> Mapping[PeerId, int]:
        """The rounds of the live peers."""
        return self._members.rounds()

    async def swarm_round(self) -> int:
        """The round that half of them have begun."""
        return await self._members.swarm_round()

    def everyone(self, *, finished: bool) -> tuple[PeerId, ...]:
        """The live peers and, with `finished`, those that left after their last round; sorted."""
        return self._members.everyone() if finished else tuple(self._members.alive())

    def ask(self, peers: Iterable[PeerId]) -> None:
        """Ask these peers for their rounds."""
        self._members.ask(peers)

    def seen(self) -> int:
        """The number of live or finished peers. A peer that left early does not count."""
        return len(self._members.everyone())

    async def gather(self, start: StartSettings, notifier: Notifier) -> None:
        """Wait for `start.peers` peers, and until none has joined for `start.calm` seconds unless the others have
        started already; at most `start.wait` seconds."""
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

    def unfinished(self) -> dict[PeerId, int]:
        """The rounds of the live peers that have not finished."""
        return {p: round for p, round in self.rounds().items() if self._rounds is None or round < self._rounds}

    def announce_round(self, round: int) -> None:
        self._members.announce(round)

    def announce_start(self, round: int) -> None:
        """Announce at most the last round: a node that has just started must not look finished."""
        self.announce_round(round if self._rounds is None else min(round, self._rounds - 1))

    def announce_finished(self) -> None:
        if self._rounds is not None:
            self.announce_round(self._rounds)
