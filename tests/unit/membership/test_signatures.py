"""Signed records in the state machine: what a member can say about itself, and others cannot."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_node.membership.member import Member, Reachability, Seal, State, follows, merge
from pfl_node.membership.member_events import (
    Changed,
    Died,
    FetchCredentials,
    Forged,
    Joined,
    Left,
    MemberEvent,
    Suspected,
)
from pfl_node.membership.packet import Kind, Packet, Rumor
from pfl_node.membership.signatures import FRESH, RENEWAL, Proof, Signed, signed_bytes
from pfl_node.membership.swim import Swim
from pfl_node.membership.swim_config import SwimConfig
from tests.unit.membership.keyed_members import Keyed
from tests.unit.sim.swim_harness import SwimNetwork

TLS = SwimConfig(transport="grpc", proven=True)
START = 1e9  # seconds since 1970


class Signing:
    """A machine with keys; its peers are played by the test. The first `known` peers are members."""

    def __init__(self, peers: int, *, known: int | None = None, ca: str | None = "the CA") -> None:
        self.wall = START
        self.now = 0.0
        self.keyed = Keyed(peers + 1, ca=ca, clock=lambda: self.wall)
        self.me, *self.ids = self.keyed.ids
        self.keys = {id: self.keyed.sign(id) for id in self.ids}
        self.mine = self.keyed.knowing_all(self.me)
        self.swim = Swim(Member(self.me, "me", "10.0.0.100:7000", incarnation=1), TLS, Random(1), self.mine)
        self.swim.start(self.now)
        self.events: list[MemberEvent] = []
        self.pings: list[str] = []
        self.fetches: list[FetchCredentials] = []
        listed = [self.record(n) for n in range(peers if known is None else known)]
        if listed:
            self.swim.merge(listed, self.now, by=self.ids[0], joining=True)
        self.drain()

    def record(
        self, number: int, *, signer: int | None = None, opinion: State | None = None, **facts: Any
    ) -> Member:
        """What the peer signs about itself, or what `signer` signs in its name."""
        plain = Member(self.ids[number], f"p{number}", f"10.0.0.{number + 1}:7000", incarnation=1)
        sealed = self.keys[self.ids[number if signer is None else signer]].sign(replace(plain, **facts))
        return replace(sealed, state=opinion) if opinion else sealed

    def hear(self, *rumors: Member, sender: int = 0, by: str = "") -> None:
        told = tuple(Rumor(member, by) for member in rumors)
        packet = Packet(Kind.GOSSIP, self.record(sender), rumors=told)
        self.swim.receive(packet, "/call/1", self.now)
        self.drain()

    def drain(self) -> None:
        self.events += self.swim.take_events()
        self.pings += [to for to, packet in self.swim.take_packets() if packet.kind is Kind.PING]
        self.fetches += [a for a in self.swim.take_actions() if isinstance(a, FetchCredentials)]

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while (when := self.swim.next_wakeup()) is not None and when <= end:
            self.now = when
            self.swim.tick(when)
            self.drain()
        self.now = end

    def saw(self, kind: type[MemberEvent]) -> list[MemberEvent]:
        return [event for event in self.events if type(event) is kind]

    def get(self, number: int) -> Member | None:
        return self.swim.get(self.ids[number])


@pytest.mark.parametrize("ca", ["the CA", None])
@pytest.mark.parametrize(
    "lie",
    [
        {"state": State.LEFT},
        {"address": "192.0.2.66:1", "incarnation": 2},
        {"incarnation": 1 << 52},
        {"incarnation": 2, "opinion": State.SUSPECT},
        {"incarnation": 2, "opinion": State.DEAD},
        {"round": 1000},
        {"incarnation": 2, "reachability": Reachability.UNREACHABLE},
        {"incarnation": 2, "reachability": Reachability.RELAYED, "relays": ("eve",)},
    ],
    ids=["left", "moved", "incarnation", "suspect", "dead", "round", "unreachable", "relays"],
)
def test_nobody_else_can_evict_move_or_renew_a_member(lie: dict[str, Any], ca: str | None) -> None:
    hand = Signing(3, ca=ca)
    before = hand.get(1)
    hand.hear(hand.record(1, signer=0, **lie))
    assert hand.get(1) == before
    (forged,) = hand.saw(Forged)
    assert forged.by == hand.ids[0]  # type: ignore[attr-defined]
    unsigned = replace(hand.record(1, **lie), seal=None)
    hand.hear(unsigned)
    assert hand.get(1) == before
    assert len(hand.saw(Forged)) == 2


def test_the_member_itself_leaves_moves_and_renews() -> None:
    hand = Signing(3)
    hand.hear(hand.record(1, incarnation=2, address="10.0.0.77:7000", round=5))
    moved = hand.get(1)
    assert moved
    assert (moved.address, moved.incarnation, moved.round) == ("10.0.0.77:7000", 2, 5)
    hand.hear(hand.record(2, state=State.LEFT))
    assert len(hand.saw(Left)) == 1


def test_the_member_itself_states_its_reachability_and_its_relays() -> None:
    hand = Signing(3)
    hand.hear(hand.record(1, incarnation=2, reachability=Reachability.RELAYED, relays=(hand.ids[0],)))
    relayed = hand.get(1)
    assert relayed
    assert (relayed.reachability, relayed.relays) == (Reachability.RELAYED, (hand.ids[0],))
    assert len(hand.saw(Changed)) == 1


def test_relays_cannot_be_removed_from_a_signed_record() -> None:
    hand = Signing(3)
    whole = hand.record(1, incarnation=2, reachability=Reachability.RELAYED, relays=(hand.ids[0],))
    hand.hear(replace(whole, relays=()))
    assert hand.get(1) == hand.record(1)
    assert len(hand.saw(Forged)) == 1


@pytest.mark.parametrize("key", [b"", b"k" * 32])
def test_nobody_else_can_change_the_pair_key_of_a_member(key: bytes) -> None:
    """Whoever could would know the noise that its neighbours add."""
    hand = Signing(3)
    whole = hand.record(1, incarnation=2, pair_key=b"p" * 32)
    hand.hear(replace(whole, pair_key=key))
    assert hand.get(1) == hand.record(1)
    assert len(hand.saw(Forged)) == 1
    hand.hear(whole)
    known = hand.get(1)
    assert known
    assert known.pair_key == b"p" * 32


def test_an_invented_member_is_not_met_and_ends_the_message() -> None:
    hand = Signing(4, known=3)
    ghost = hand.record(3, signer=0)
    hand.hear(ghost, hand.record(2, round=7))
    assert hand.get(3) is None
    assert hand.get(2) == hand.record(2)  # the rest of the liar's message is ignored
    assert hand.pings == []


def test_a_fresh_record_introduces_a_member_without_a_ping() -> None:
    hand = Signing(4, known=3)
    hand.hear(hand.record(3))
    assert hand.get(3) == hand.record(3)
    assert hand.pings == []


def test_a_replayed_record_of_an_unknown_member_has_to_be_confirmed_by_an_answer() -> None:
    hand = Signing(4, known=3)
    old = hand.record(3)
    hand.wall += FRESH + 1
    hand.hear(old)
    assert hand.get(3) is None
    assert hand.pings == [old.address]
    hand.wall -= 3 * FRESH  # the clock of this machine, or of the other one, is wrong
    hand.hear(replace(old, seal=old.seal), sender=1)
    assert hand.get(3) is None


def test_replays_of_earlier_lives_change_nothing() -> None:
    hand = Signing(3)
    gone, before = hand.record(1, state=State.LEFT), hand.record(1)
    hand.hear(hand.record(1, incarnation=2, round=9))
    for replay in (gone, before, replace(before, state=State.DEAD), replace(before, state=State.SUSPECT)):
        hand.hear(replay)
        known = hand.get(1)
        assert known
        assert (known.incarnation, known.state, known.round) == (2, State.ALIVE, 9)
    assert hand.saw(Forged) == []


def test_after_a_departure_the_records_before_it_revive_nobody() -> None:
    hand = Signing(3)
    alive = hand.record(1, round=3)
    hand.hear(hand.record(1, state=State.LEFT, round=3))
    hand.hear(alive)
    hand.hear(hand.record(1, round=99))
    known = hand.get(1)
    assert known
    assert known.state is State.LEFT


def test_an_opinion_needs_no_signature_but_only_makes_suspect() -> None:
    hand = Signing(3)
    before = hand.get(1)
    hand.hear(replace(hand.record(1), state=State.DEAD, seal=None))
    known = hand.get(1)
    assert known
    assert before
    assert known.state is State.SUSPECT
    assert known.seal == before.seal
    hand.hear(hand.record(1, incarnation=2))
    assert hand.get(1) == hand.record(1, incarnation=2)
    assert hand.saw(Died) == []


def test_a_death_is_believed_at_once_only_if_several_members_say_so() -> None:
    hand = Signing(6)
    dead = replace(hand.record(1), state=State.DEAD)
    for sender in (0, 0, 0, 2, 0, 2):
        hand.hear(dead, sender=sender)
    assert hand.saw(Died) == []
    hand.hear(dead, sender=3)
    assert len(hand.saw(Died)) == 1


def test_this_member_refutes_opinions_and_its_own_earlier_life_but_no_forgeries() -> None:
    hand = Signing(2)
    mine = hand.swim.me
    hand.hear(replace(mine, state=State.DEAD, seal=None))
    assert hand.swim.me.incarnation == 2
    assert hand.mine.verify(hand.swim.me) is Proof.GENUINE
    hand.wait(1)
    hand.hear(replace(mine, incarnation=1 << 52, state=State.LEFT))
    assert hand.swim.me.incarnation == 2
    assert len(hand.saw(Forged)) == 1
    earlier = hand.mine.sign(replace(mine, incarnation=30, state=State.LEFT))
    hand.wait(1)
    hand.hear(earlier)
    assert hand.swim.me.incarnation == 31
    assert len(hand.saw(Changed)) == 2


def test_a_member_whose_key_is_unknown_is_met_when_its_credential_arrives() -> None:
    hand = Signing(4, known=3)
    hand.mine.keys = hand.keyed.sign(hand.me).keys  # forget all keys
    hand.mine.keys.add(hand.keyed.credential(hand.ids[0]))
    hand.hear(hand.record(3), hand.record(2, round=4))
    (fetch,) = hand.fetches
    assert fetch.address == hand.record(0).address
    assert [rumor.member.id for rumor in fetch.rumors] == [hand.ids[3], hand.ids[2]]
    hand.mine.keys.add(hand.keyed.credential(hand.ids[3]))
    hand.swim.learn(fetch, hand.now)
    assert hand.get(3) == hand.record(3)
    assert hand.get(2) == hand.record(2)
    assert hand.saw(Forged) == []


def test_a_revoked_member_is_not_met_and_cannot_refute() -> None:
    hand = Signing(4, known=3)
    hand.keyed.peers[hand.me].revoked |= {hand.ids[2], hand.ids[3]}
    hand.hear(hand.record(3))
    assert hand.get(3) is None
    hand.hear(replace(hand.record(2), state=State.SUSPECT), hand.record(1, round=2))
    hand.hear(hand.record(2, incarnation=2))
    known = hand.get(2)
    assert known
    assert (known.state, known.incarnation) == (State.SUSPECT, 1)
    assert hand.saw(Forged) == []
    assert hand.get(1) == hand.record(1, round=2)


def test_a_message_costs_at_most_one_verification_per_member(monkeypatch: pytest.MonkeyPatch) -> None:
    hand = Signing(3)
    many = [hand.record(1, round=n) for n in range(1, 200)]
    ids: list[str] = []
    real = Signed.verify

    def counted(me: Signed, member: Member) -> Proof:
        ids.append(member.id)
        return real(me, member)

    monkeypatch.setattr(Signed, "verify", counted)
    hand.hear(*many)
    assert ids.count(hand.ids[1]) == 1
    ids.clear()
    hand.hear(*[hand.record(2)] * 100, *[hand.record(1)] * 100)
    assert ids == []


def test_a_newcomer_needs_a_record_signed_with_its_key() -> None:
    hand = Signing(3, known=1)
    assert hand.swim.admit(hand.record(1), hand.now).accepted
    assert not hand.swim.admit(hand.record(2, signer=0), hand.now).accepted
    assert not hand.swim.admit(replace(hand.record(2), seal=None), hand.now).accepted
    assert hand.get(2) is None


def test_a_quiet_member_signs_its_record_again() -> None:
    hand = Signing(2)
    first = hand.swim.me.seal
    hand.wall += RENEWAL + 1
    hand.wait(RENEWAL + 1)
    second = hand.swim.me.seal
    assert first
    assert second
    assert second.at > first.at
    again = hand.record(1)
    hand.hear(again)
    known = hand.get(1)
    assert known
    assert known.seal == again.seal


def test_a_credential_that_was_renewed_is_fetched() -> None:
    hand = Signing(2)
    known = hand.get(1)
    assert known
    assert known.seal
    named = replace(hand.record(1, round=1), seal=None)
    other = Seal(int(START), b"newer123", b"")
    signature = hand.keys[hand.ids[1]].keys.sign(signed_bytes(named, other))
    hand.hear(replace(named, seal=replace(other, signature=signature)))
    assert [rumor.member.id for fetch in hand.fetches for rumor in fetch.rumors] == [hand.ids[1]]
    assert hand.get(1) == hand.record(1, round=1)


texts = st.text(max_size=6)
plains = st.builds(
    Member,
    texts,
    texts,
    texts,
    st.sampled_from(["node", "bootstrap"]),
    texts,
    st.integers(-1, 3),
    st.integers(0, 3),
    st.sampled_from([State.ALIVE, State.LEFT]),
    st.sampled_from(Reachability),
    st.lists(texts, max_size=2).map(tuple),
    st.booleans(),
    st.sampled_from([b"", bytes(32), b"\0\x1e" + b"x" * 30]),
)
seals = st.builds(Seal, st.integers(0, 2), st.binary(max_size=3), st.just(b""))


@given(plains, seals, plains, seals)
def test_two_records_never_have_the_same_bytes(one: Member, a: Seal, other: Member, b: Seal) -> None:
    assert (signed_bytes(one, a) == signed_bytes(other, b)) is ((one, a) == (other, b))


ONE = Member("a", "a", "10.0.0.1:7000")
beliefs = st.builds(
    lambda incarnation, state, round, at: replace(
        ONE,
        incarnation=incarnation,
        state=state,
        round=round,
        seal=Seal(60 * at, b"", bytes([incarnation, round, at, state is State.LEFT])),
    ),
    st.integers(0, 2),
    st.sampled_from(State),
    st.integers(0, 2),
    st.integers(0, 2),
)


@given(beliefs, beliefs)
def test_merging_keeps_a_record_whole_and_takes_the_later_one(a: Member, b: Member) -> None:
    merged = merge(a, b)
    assert merged.seal in (a.seal, b.seal)
    source = a if merged.seal == a.seal else b
    assert (merged.round, merged.incarnation) == (source.round, source.incarnation)
    if a.incarnation == b.incarnation:
        assert not follows(a if source is b else b, merged) or merged.left
        assert merge(b, a).state is merged.state


@pytest.mark.parametrize("ca", ["the CA", None])
def test_a_swarm_with_keys_converges_detects_a_crash_and_believes_a_departure(ca: str | None) -> None:
    net: SwimNetwork
    keyed = Keyed(12, ca=ca, clock=lambda: START + net.now)
    net = SwimNetwork(5, config=TLS, jitter=0.01, sign=keyed.sign)
    members = [Member(id, f"n{n}", f"10.0.0.1:{7000 + n}", incarnation=1) for n, id in enumerate(keyed.ids)]
    first = net.add(members[0])
    for member in members[1:]:
        net.add(member, seeds=[first.address])
    net.run_until(net.complete, at_most=60)
    dead, gone = net.hosts[members[3].address], net.hosts[members[4].address]
    net.kill(dead)
    net.leave(gone)
    net.run_until(lambda: net.seen(dead.id, {State.DEAD}), at_most=60)
    net.run_until(lambda: net.seen(gone.id, {State.LEFT}), at_most=60)
    net.run(3 * FRESH)
    assert net.complete()
    assert net.count(Forged) == 0
    assert {event.member.id for host in net.hosts.values() for _, event in host.events if type(event) is Died} == {
        dead.id
    }
    assert net.count(Suspected, of=gone.id) == 0
    late = Member(keyed.ids[4], "n4", members[4].address, incarnation=2)
    net.add(late, seeds=[first.address])
    net.run_until(net.complete, at_most=60)
    assert net.count(Joined, of=late.id) >= 2
