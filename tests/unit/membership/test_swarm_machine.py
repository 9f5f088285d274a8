"""A few members to whom anything may happen, a liar among them: what never holds while it happens, and that all is
well again when it is over.

A state machine: hypothesis decides who comes, crashes, returns, sleeps or leaves, what the network does, and which
packets somebody forges. Forged packets travel as bytes, some of them damaged.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from pfl_node.errors import Refused
from pfl_node.membership.member import Member, State
from pfl_node.membership.packet import Kind, Packet, Rumor
from pfl_node.membership.packet_codec import decode, encode
from pfl_node.membership.swim_config import SwimConfig
from tests.unit.sim.swim_harness import Host, SwimNetwork, node

MOST = 5  # members
CONFIG = SwimConfig(members_limit=16)  # the dead are remembered for longer than a test waits: only they can refute
WELL_WITHIN = 120.0  # virtual seconds: the longest of pauses, suspicions and exchanges, one after another

indexes = st.integers(0, MOST - 1)
ghosts = st.integers(50, 54)  # ids that nobody has
states = st.sampled_from(State)
lies = st.builds(
    lambda index, state, incarnation, round, place: node(
        index, state=state, incarnation=incarnation, round=round, address=f"10.0.0.1:{7000 + place}"
    ),
    indexes | ghosts,
    states,
    st.integers(0, 12),
    st.integers(0, 9),
    indexes | ghosts,
)
packets = st.builds(
    Packet,
    st.sampled_from(Kind),
    lies,
    st.integers(0, 9),
    st.sampled_from(["", "n000", "n001", "n050"]),
    st.sampled_from(["", "10.0.0.1:7001", "10.0.0.1:7050"]),
    st.lists(st.builds(Rumor, lies, st.sampled_from(["", "n001", "n050"])), max_size=3).map(tuple),
)


class Swarm(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.net = SwimNetwork(seed=1, config=CONFIG, jitter=0.01)
        self.lives: dict[str, int] = {}  # by id: the incarnation that a member has had

    @initialize(count=st.integers(2, 3))
    def begin(self, count: int) -> None:
        for index in range(count):
            self.come(index)
        self.net.run(5)

    def host(self, index: int) -> Host | None:
        found = self.net.hosts.get(node(index).address)
        return found if found is not None and found.up else None

    # -- what members do -----------------------------------------------------------------------------------

    @rule(index=indexes)
    def come(self, index: int) -> None:
        """For the first time, or again after a crash or a goodbye; a data directory remembers the incarnation."""
        if self.host(index) is None:
            member = node(index)
            life = replace(member, incarnation=self.lives.get(member.id, 0) + 1)
            self.net.add(life, seeds=[host.address for host in self.net.running])

    @rule(index=indexes)
    def crash(self, index: int) -> None:
        if (host := self.host(index)) and len(self.net.running) > 1:
            self.net.kill(host)

    @rule(index=indexes)
    def leave(self, index: int) -> None:
        if (host := self.host(index)) and len(self.net.running) > 1:
            self.net.leave(host)

    @rule(index=indexes, seconds=st.floats(0.1, 15))
    def sleep(self, index: int, seconds: float) -> None:
        if host := self.host(index):
            self.net.sleep(host, seconds)

    @rule(index=indexes)
    def go_on(self, index: int) -> None:
        if host := self.host(index):
            host.swim.set_round(host.swim.me.round + 1)

    # -- what the network does -----------------------------------------------------------------------------

    @rule(side=st.sets(indexes))
    def split(self, side: set[int]) -> None:
        hosts = list(self.net.hosts.values())
        apart = [host for n, host in enumerate(hosts) if n in side]
        self.net.split(apart, [host for host in hosts if host not in apart])

    @rule()
    def heal(self) -> None:
        self.net.heal()

    @rule(index=indexes)
    def mute(self, index: int) -> None:
        """Its datagrams are dropped from now on; calls go through."""
        if host := self.host(index):
            self.net.mute(host)

    @rule(seconds=st.floats(0.01, 20))
    def wait(self, seconds: float) -> None:
        self.net.run(seconds)

    # -- what a liar does ----------------------------------------------------------------------------------

    @rule(to=indexes, packet=packets, harm=st.none() | st.tuples(st.integers(0, 300), st.integers(0, 7)))
    def forge(self, to: int, packet: Packet, harm: tuple[int, int] | None) -> None:
        data = bytearray(encode(packet))
        if harm:
            data[harm[0] % len(data)] ^= 1 << harm[1]
        host = self.host(to)
        try:
            heard = decode(bytes(data))
        except Refused:
            return
        if host and plausible(heard):
            self.net._when_awake(host, lambda: host.swim.receive(heard, "10.0.0.1:7050", self.net.now))

    @rule(to=indexes, members=st.lists(lies, max_size=5))
    def forge_an_exchange(self, to: int, members: list[Member]) -> None:
        if host := self.host(to):
            self.net._when_awake(host, lambda: host.swim.merge(members, self.net.now, by="n050"))

    @rule(to=indexes, member=lies)
    def forge_a_newcomer(self, to: int, member: Member) -> None:
        if host := self.host(to):
            self.net._when_awake(host, lambda: self._admits(host, member))

    def _admits(self, host: Host, member: Member) -> None:
        host.swim.admit(member, self.net.now)

    # -- what always holds ---------------------------------------------------------------------------------

    @invariant()
    def nobody_believes_in_its_own_death(self) -> None:
        for host in self.net.running:
            me = host.swim.me
            assert me.state is State.ALIVE
            assert me.address == host.address
            assert me.incarnation >= self.lives.get(me.id, 0)
            self.lives[me.id] = me.incarnation

    @invariant()
    def tables_are_bounded(self) -> None:
        for host in self.net.running:
            view = host.swim._view
            assert len(host.swim.members()) <= CONFIG.members_limit + 1
            assert view.roster.tombs <= CONFIG.members_limit
            assert len(view.rumors) <= CONFIG.members_limit + 1
            suspects = {m.id for m in host.swim.members() if m.state is State.SUSPECT}
            assert set(view._suspicions) == suspects
            assert len(host.swim._timers) <= 2 * CONFIG.members_limit + 64 + 5
            assert host.swim.next_wakeup() is not None

    def teardown(self) -> None:
        """The liar is silent and the network heals: everybody finds everybody, and believes in nobody else."""
        if not self.net.hosts:
            return
        self.net.heal()
        self.net._mute.clear()
        self.net.run_until(self._well, at_most=WELL_WITHIN, step=1.0)

    def _well(self) -> bool:
        here = {host.id: host.swim.me for host in self.net.running}
        return all(_alive(host) == here for host in self.net.running)


def _alive(host: Host) -> dict[str, Member]:
    return {m.id: m for m in host.swim.members() if m.state.present}


def plausible(packet: Packet) -> bool:
    """A number at the very top cannot be outbid by its owner: that is what TLS is for."""
    members = (packet.sender, *(rumor.member for rumor in packet.rumors))
    return all(member.incarnation < 1 << 40 for member in members)


def test_a_swarm_is_well_again_whatever_happened() -> None:
    few = settings(max_examples=50, stateful_step_count=20)
    run_state_machine_as_test(Swarm, settings=few)


@pytest.mark.slow
def test_a_swarm_is_well_again_whatever_happened_many_times() -> None:
    many = settings(max_examples=1500, stateful_step_count=40, derandomize=False)
    run_state_machine_as_test(Swarm, settings=many)
