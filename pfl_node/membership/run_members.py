"""The members of one run, filtered from the membership that all runs and the seeds share. Uses no sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from random import Random
from typing import TYPE_CHECKING, Protocol

from pfl_node.membership.member import Member, Reachability, State
from pfl_node.membership.member_events import Changed, Died, JoinRefused, Left, MemberEvent
from pfl_node.types import PeerId

if TYPE_CHECKING:
    from pfl_node.node.ports import MembersListener


ASKED = 31  # peers whose rounds determine the first round of a new node
ANSWER_CHECKS, CHECK_INTERVAL = 50, 0.02  # count, seconds; their product is the timeout for answers
ASK_TRIES = 4  # attempts until half of the peers have answered


def stated_reachable(member: Member) -> bool:
    return member.reachability is not Reachability.UNREACHABLE


class AllMembers(Protocol):
    """The part of a membership that RunMembers uses."""

    joined: bool

    @property
    def me(self) -> Member: ...
    @property
    def pauses(self) -> int: ...
    async def start(self, seeds: Sequence[str], *, advertise: str) -> None: ...
    def members(self) -> Sequence[Member]: ...
    def get(self, member: str) -> Member | None: ...
    def heard(self) -> Set[str]: ...
    def set_round(self, round: int) -> None: ...
    def ask(self, members: Iterable[str]) -> None: ...
    async def leave(self) -> None: ...
    async def close(self) -> None: ...


class RunMembers:
    """Caches the members of the run until `on_event` reports a change."""

    def __init__(
        self,
        membership: AllMembers,
        *,
        run: str,
        rounds: int | None,
        seeds: Sequence[str] = (),
        on_event: Callable[[MemberEvent], None] | None = None,
        keep: Callable[[int], None] | None = None,
        reaches: Callable[[Member], bool] = stated_reachable,
    ) -> None:
        self.listener: MembersListener | None = None
        self._membership = membership
        self._run, self._rounds, self._seeds = run, rounds, seeds
        self._on_event = on_event  # called with every event
        self._keep = keep  # called with this node's own incarnation when it grows
        self._reaches = reaches  # whether this node can connect to a member
        self._alive: dict[PeerId, str] | None = None  # None: the cache is invalid
        self._left_out: dict[PeerId, Member] = {}
        self._finished: tuple[PeerId, ...] = ()
        self._everyone: tuple[PeerId, ...] = ()

    @property
    def joined(self) -> bool:
        return self._membership.joined

    @property
    def pauses(self) -> int:
        return self._membership.pauses

    async def start(self, address: str) -> None:
        await self._membership.start(self._seeds, advertise=address)

    def alive(self) -> Mapping[PeerId, str]:
        if self._alive is None:
            run, rounds, me = self._run, self._rounds, self._membership.me.id
            mine = [m for m in self._membership.members() if m.run == run and m.role == "node" and m.id != me]
            present = [m for m in mine if m.state.present]
            self._left_out = {PeerId(m.id): m for m in present if not self._reaches(m)}
            self._alive = {PeerId(m.id): m.dial_address for m in present if m.id not in self._left_out}
            left = [m for m in mine if m.state is State.LEFT and rounds is not None and m.round >= rounds]
            self._finished = tuple(PeerId(m.id) for m in left)
            self._everyone = tuple(sorted({*self._alive, *self._finished}))
        return self._alive

    def left_out(self) -> Mapping[PeerId, Member]:
        """Peers that are present but not in `alive`, because this node cannot connect to them."""
        self.alive()
        return self._left_out

    def present(self, peer: PeerId) -> bool:
        return peer in self.alive() or peer in self._left_out

    def refresh(self) -> None:
        """This node can connect to a peer again, or not any more."""
        self._alive = None
        if self.listener is not None:
            self.listener.changed()

    def pair_key(self, peer: PeerId) -> bytes | None:
        """The public key with which the peer shares secrets."""
        member = self._membership.get(peer)
        return member.pair_key if member else None

    def rounds(self) -> Mapping[PeerId, int]:
        return Rounds(self.alive(), self._membership)

    async def swarm_round(self) -> int:
        """The median round of some peers. A peer that has not reported its round counts as in round 0, so more
        than half must have reported. Rounds that others report for a peer are ignored, unless the peer signed
        them: by forging them, one member could make a new node start in any round."""
        peers = sorted(self.alive())
        asked = Random(self._membership.me.id).sample(peers, min(ASKED, len(peers)))
        for _ in range(ASK_TRIES):
            await self._answers(asked)
            if 2 * len(self._membership.heard() & set(asked)) > len(asked):
                break
        rounds = sorted(self._reported_round(peer) for peer in asked)
        return rounds[(len(rounds) - 1) // 2] if rounds else 0

    async def _answers(self, asked: Sequence[PeerId]) -> None:
        """Ask the peers for their rounds and wait until all have answered, or for a second."""
        self.ask(asked)
        for _ in range(ANSWER_CHECKS):
            if self._membership.heard() >= set(asked):
                return
            await asyncio.sleep(CHECK_INTERVAL)

    def _reported_round(self, peer: PeerId) -> int:
        member = self._membership.get(peer)
        if member is None or (member.seal is None and peer not in self._membership.heard()):
            return 0
        return member.round

    def finished(self) -> Sequence[PeerId]:
        self.alive()
        return self._finished

    def everyone(self) -> tuple[PeerId, ...]:
        self.alive()
        return self._everyone

    def announce(self, round: int) -> None:
        self._membership.set_round(round)

    def ask(self, peers: Iterable[PeerId]) -> None:
        self._membership.ask(peers)

    async def leave(self) -> None:
        await self._membership.leave()

    async def close(self) -> None:
        await self._membership.close()

    def on_event(self, event: MemberEvent) -> None:
        self._alive = None
        if self._on_event:
            self._on_event(event)
        if self.listener is None:
            return
        match event:
            case Died() | Left():
                self.listener.gone(PeerId(event.member.id))
            case JoinRefused():
                self.listener.refused(event.reason)
            case Changed() if self._keep and event.member.id == self._membership.me.id:
                self._keep(event.member.incarnation)
        self.listener.changed()


class Rounds(Mapping[PeerId, int]):
    """The rounds of members, looked up on access."""

    def __init__(self, members: Mapping[PeerId, str], membership: AllMembers) -> None:
        self._members = members
        self._membership = membership

    def __getitem__(self, peer: PeerId) -> int:
        self._members[peer]
        member = self._membership.get(peer)
        return member.round if member else 0

    def __contains__(self, peer: object) -> bool:
        return peer in self._members

    def __iter__(self) -> Iterator[PeerId]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)
