"""Who may join under which id."""

from __future__ import annotations

from dataclasses import replace

from pfl_node.membership.member import State
from pfl_node.membership.packet import Kind, Packet
from tests.unit.membership.manual_swim import ME, Hand, peer

ELSEWHERE = replace(peer(1), address="10.0.0.99:7000")


def test_a_newcomer_is_let_in_and_known_when_it_answers() -> None:
    hand = Hand(2)
    assert hand.swim.admit(peer(9), hand.now).accepted
    assert hand.state_of(peer(9)) is None
    hand.answers(peer(9))
    assert hand.state_of(peer(9)) is State.ALIVE


def test_a_restart_at_the_same_address_is_let_in_even_when_its_incarnation_was_lost() -> None:
    hand = Hand(2)
    assert hand.swim.admit(peer(1, incarnation=0), hand.now).accepted


def test_one_who_was_dead_or_gone_is_let_in_from_anywhere() -> None:
    for left in (False, True):
        hand = Hand(2)
        if left:
            hand.hear_rumor(peer(1, state=State.LEFT), sender=peer(2))
        else:
            hand.dies(peer(1))
        assert hand.swim.admit(replace(ELSEWHERE, incarnation=2), hand.now).accepted
        hand.answers(replace(ELSEWHERE, incarnation=2))
        assert hand.swim.get("p1") == replace(ELSEWHERE, incarnation=2)


def test_a_second_holder_of_an_id_is_refused_when_the_first_one_answers() -> None:
    hand = Hand(2)
    hand.packets.clear()
    first = hand.swim.admit(ELSEWHERE, hand.now)
    hand.drain()
    assert not first.accepted
    assert first.again > 0
    (address, ping), *_ = hand.said(Kind.PING)
    assert (address, ping.target) == (peer(1).address, "p1")
    hand.hear(Packet(Kind.ACK, peer(1), ping.seq, "p1"))
    second = hand.swim.admit(ELSEWHERE, hand.now)
    assert not second.accepted
    assert not second.again
    assert second.reason == (
        "the id p1 is in use by peer-1 at 10.0.0.1:7000, which answers; give this node a data directory of its own"
    )
    assert hand.swim.get("p1") == peer(1)


def test_one_who_came_back_elsewhere_is_let_in_when_the_old_address_is_silent() -> None:
    hand = Hand(2)
    life = replace(ELSEWHERE, incarnation=2)
    assert hand.swim.admit(life, hand.now).again
    hand.wait(0.8)
    assert hand.swim.admit(life, hand.now).accepted
    hand.answers(life)
    assert hand.swim.get("p1") == life


def test_my_own_id_is_refused_to_others() -> None:
    hand = Hand(2)
    admission = hand.swim.admit(replace(ME, address="10.0.0.99:7000"), hand.now)
    assert not admission.accepted
    assert "the id me is in use by myself at 10.0.0.100:7000" in admission.reason


def test_nobody_is_let_in_by_one_who_leaves() -> None:
    hand = Hand(2)
    hand.swim.leave(hand.now)
    assert hand.swim.admit(peer(9), hand.now).reason == "myself is leaving"
