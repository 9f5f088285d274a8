"""A node's relays: the one that it offers, those through which others reach it, and those of its peers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from pfl_node.membership.member import Reachability
from pfl_node.membership.service import Membership
from pfl_node.settings import RelaySettings, Settings
from pfl_node.types import PeerId
from pfl_node.wire.dialer import Dialer
from pfl_node.wire.endpoint import Endpoint
from pfl_node.wire.relay.relay_caller import RelayCaller
from pfl_node.wire.relay.relay_limits import RelayLimits
from pfl_node.wire.relay.relay_service import attach_relay
from pfl_node.wire.relay.relayed_site import RelayedSite


def limits_of(relay: RelaySettings) -> RelayLimits:
    return RelayLimits(
        sites=relay.sites,
        connections=relay.connections,
        bandwidth=relay.bandwidth,
        bytes_per_day=relay.bytes_per_day,
    )


class Relaying:
    """`changed` is called when the node is registered at other relays than before."""

    def __init__(
        self,
        settings: Settings,
        me: PeerId,
        *,
        dialer: Dialer,
        endpoint: Endpoint,
        membership: Membership,
        changed: Callable[[], None],
    ) -> None:
        self._network = settings.network
        self._dialer = dialer
        self._membership = membership
        self._changed = changed
        self._rng = Random(me)
        self._looked = False
        self._rank: dict[str, float] = {}  # rank of each relay: random, so that sites spread over them
        self.relays: tuple[str, ...] = ()  # relays at which this node is registered
        limits = limits_of(settings.relay)
        self.rendezvous = attach_relay(endpoint, self._is_member, limits) if settings.relay.serve else None
        self.site = RelayedSite(
            me,
            dialer=dialer,
            connector=dialer.paths.connector,
            listener=endpoint.listener,
            candidates=self._look,
            changed=self._registered,
        )
        self._caller = dialer.paths.relays = RelayCaller(me, dialer, dialer.paths.connector)

    @property
    def wanted(self) -> bool:
        """Should others reach this node through relays, whatever dial-backs show?"""
        if self._network.reach == "auto":
            return self._dialer.paths.connector.proxy is not None
        return self._network.reach == "relay"

    def start(self, address: str) -> None:
        """`address`: the address that others dial."""
        if self.rendezvous is not None:
            self._caller.own = (address, self.rendezvous)
        if self.wanted:
            self.site.start()

    def reached(self, state: Reachability) -> None:
        """Dial-backs have shown whether others can connect to this node."""
        if self.wanted or self._network.reach == "direct":
            return
        if state is Reachability.UNREACHABLE:
            self.site.start()
        elif state is Reachability.DIRECT:
            self.site.stop()

    def stated(self, state: Reachability) -> tuple[Reachability, tuple[str, ...]]:
        """The reachability for this node's record, given whether others can connect to it directly."""
        if state is Reachability.DIRECT and not self.wanted:
            return state, ()
        if self.relays:
            return Reachability.RELAYED, self.relays
        return Reachability.UNREACHABLE if self.wanted else state, ()

    def _look(self) -> Sequence[str] | None:
        """The relays to use; None before this node has a record that can name them, and members to find them."""
        if not self._membership.running or not (self._membership.joined or self._network.relays):
            return None
        if not self._looked:
            self._looked = True
            self._changed()  # until a relay connects callers, nobody can reach this node
        return self.candidates()

    def candidates(self) -> Sequence[str]:
        """The configured relays, or the members that offer a relay, in a random order that stays the same."""
        if self._network.relays:
            return self._network.relays
        found = [
            member.address
            for member in self._membership.alive(role=None)
            if member.offers_relay and member.reachability in (Reachability.DIRECT, Reachability.UNKNOWN)
        ]
        for address in found:
            self._rank.setdefault(address, self._rng.random())
        return sorted(found, key=lambda address: self._rank[address])

    async def close(self) -> None:
        await self.site.close()
        if self.rendezvous is not None:
            self.rendezvous.close()
        await self._dialer.paths.close()

    def _registered(self, relays: tuple[str, ...]) -> None:
        self.relays = relays
        self._changed()

    def _is_member(self, member: str) -> bool:
        known = self._membership.get(member)
        return known is not None and known.state.present
