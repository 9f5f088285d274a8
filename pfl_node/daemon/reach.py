"""Whether others can connect to this node, and to which peers this node can connect."""

from __future__ import annotations

import random
from collections.abc import Sequence

from pfl_node.daemon.relaying import Relaying
from pfl_node.membership.member import Member, Reachability
from pfl_node.membership.member_events import Changed, Joined, MemberEvent
from pfl_node.membership.reachability import DialBackResult, ReachabilityMonitor
from pfl_node.membership.run_members import RunMembers
from pfl_node.membership.service import Membership
from pfl_node.ops.observer import NodeObserver
from pfl_node.types import PeerId
from pfl_node.wire.client import PeerClient
from pfl_node.wire.redialer import Redialer


class Reach:
    def __init__(
        self,
        membership: Membership,
        members: RunMembers,
        client: PeerClient,
        observer: NodeObserver,
        relaying: Relaying,
    ) -> None:
        self._membership = membership
        self._members = members
        self._client = client
        self._observer = observer
        self._relaying = relaying
        rng = random.Random(f"reach/{membership.me.id}")
        self.monitor = ReachabilityMonitor(membership, membership.dial_back, rng=rng, decided=self._decided)
        self._redialer = Redialer(client.dials, self._wanted, client.connect)
        client.dials.changed = self._dialled

    def start(self) -> None:
        self.monitor.start(decides=not self._relaying.wanted)
        self._redialer.start()

    async def close(self) -> None:
        await self.monitor.close()
        await self._redialer.close()

    def on_event(self, event: MemberEvent) -> None:
        """After news of a peer, dial it earlier."""
        member = event.member
        if not isinstance(event, Joined | Changed):
            return
        if member.id == self._membership.me.id:
            self.monitor.accused()  # it may be a refutation
            return
        peer = PeerId(member.id)
        self.monitor.member_joined()
        self._client.dials.dial_soon(peer)
        if member.reachability is Reachability.UNREACHABLE and peer in self._members.left_out():
            self._client.abandon(peer)
        self._redialer.look()

    def _wanted(self) -> dict[PeerId, str]:
        """Peers whose last dial failed, or that are left out."""
        alive = self._members.alive()
        wanted = {peer: member.dial_address for peer, member in self._members.left_out().items()}
        for peer, address in alive.items():
            record = self._client.dials.of(peer, address)
            if record is not None and record.failures:
                wanted[peer] = address
        return wanted

    def _dialled(self, peer: PeerId) -> None:  # noqa: ARG002
        self._members.refresh()
        self._redialer.look()

    def _decided(self, state: Reachability, results: Sequence[DialBackResult]) -> None:
        self._relaying.reached(state)
        self.restate()
        self._observer.reachability(state, results)

    def restate(self) -> None:
        """Set in the record how others connect to this node: directly, through relays, or not at all."""
        if not self._membership.running:
            return
        before = self._membership.me.reachability
        state, relays = self._relaying.stated(self.monitor.state)
        self._membership.set_reachability(state, relays)
        if state is Reachability.RELAYED and before is not state:
            self._observer.relayed(relays)


def reaches(client: PeerClient, member: Member) -> bool:
    """Whether to exchange models with the member."""
    unreachable = member.reachability is Reachability.UNREACHABLE
    return client.dials.includes(PeerId(member.id), member.dial_address, unreachable=unreachable)
