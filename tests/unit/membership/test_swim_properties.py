"""Whatever packets come, in whatever order: what never happens to a machine."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from pfl_node.membership.member import INCARNATION_LIMIT, Member, State
from pfl_node.membership.packet import Kind, Packet, Rumor
from pfl_node.membership.packet_codec import decode, encode
from pfl_node.membership.swim import Swim
from pfl_node.membership.swim_config import SwimConfig
from tests.unit.membership.manual_swim import ME

CONFIG = SwimConfig(members_limit=5, forget=3.0, tombstone=5.0)

ids = st.sampled_from(["me", "a", "b", "c", "d", "e", "f", "g", "h"])
addresses = st.sampled_from(["10.0.0.100:7000", "10.0.0.1:1", "10.0.0.2:2", "name.example:3"])
incarnations = st.one_of(st.integers(-1, 5), st.integers(INCARNATION_LIMIT - 3, INCARNATION_LIMIT + 3))
members = st.builds(
    Member,
    id=ids,
    name=st.just("x"),
    address=addresses,
    round=st.integers(0, 9),
    incarnation=incarnations,
    state=st.sampled_from(State),
)
packets = st.builds(
    Packet,
    kind=st.sampled_from(Kind),
    sender=members,
    seq=st.integers(0, 9),
    target=ids,
    target_address=addresses,
    rumors=st.lists(st.builds(Rumor, members, by=ids), max_size=4).map(tuple),
)
inputs = st.one_of(
    packets,
    st.tuples(st.just("merge"), st.lists(members, max_size=6), ids),
    st.tuples(st.just("admit"), members),
    st.tuples(st.just("wait"), st.floats(0, 30)),
    st.tuples(st.just("stall"), st.floats(0, 30)),
)


def feed(swim: Swim, step: object, now: float) -> float:
    match step:
        case Packet():
            swim.receive(step, step.sender.address, now)
        case ("merge", list() as known, str() as by):
            swim.merge(known, now, by=by)
        case ("admit", Member() as newcomer):
            swim.admit(newcomer, now)
        case ("wait", float() as seconds):
            end = now + seconds
            while (when := swim.next_wakeup()) is not None and when <= end:
                now = max(now, when)
                swim.tick(now)
            return end
        case ("stall", float() as seconds):
            swim.tick(now + seconds)
            return now + seconds
    return now


@settings(deadline=None, max_examples=200)
@given(st.lists(inputs, max_size=25), st.integers(0, 3))
def test_the_invariants_hold_whatever_comes(steps: list[object], seed: int) -> None:
    swim = Swim(ME, CONFIG, Random(seed))
    now = 0.0
    swim.start(now)
    incarnation = swim.me.incarnation
    for step in steps:
        now = feed(swim, step, now)

        assert swim.me.state is State.ALIVE  # never its own death
        assert swim.me.address == ME.address
        assert incarnation <= swim.me.incarnation < INCARNATION_LIMIT
        incarnation = swim.me.incarnation

        assert len(swim.members()) <= CONFIG.members_limit + 1
        assert all(member.id != "me" for member in swim.members()[1:])
        view = swim._view
        assert len(view.rumors) <= CONFIG.members_limit + 1
        assert view.roster.tombs <= CONFIG.members_limit
        suspects = {member.id for member in swim.members() if member.state is State.SUSPECT}
        assert set(view._suspicions) == suspects
        assert len(swim._timers) <= 2 * CONFIG.members_limit + 64 + 5

        wakeup = swim.next_wakeup()
        assert wakeup is not None
        for _, packet in swim.take_packets():
            assert packet.sender.state is State.ALIVE
            assert len(encode(packet)) <= CONFIG.packet_bytes
            assert decode(encode(packet)) == packet
        swim.take_events()
        swim.take_actions()


@settings(deadline=None, max_examples=30)
@given(st.lists(packets, max_size=20))
def test_after_a_goodbye_nothing_is_said(steps: list[Packet]) -> None:
    swim = Swim(ME, CONFIG, Random(0))
    swim.start(0.0)
    for step in steps[:10]:
        feed(swim, step, 1.0)
    swim.leave(1.0)
    swim.take_packets()
    for step in steps[10:]:
        feed(swim, step, 2.0)
    swim.tick(100.0)
    assert swim.take_packets() == []
    assert swim.me.state is State.LEFT
