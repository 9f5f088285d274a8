"""One machine, driven by hand: what it says, asks, believes."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from pfl_node.membership.member import INCARNATION_LIMIT, Reachability, State
from pfl_node.membership.member_events import Changed, Clashed, Died, Joined, Left, PingCall, Suspected, Sync
from pfl_node.membership.packet import Kind, Packet, Rumor
from pfl_node.membership.swim_config import SwimConfig
from pfl_node.membership.view import SILENCE
from tests.unit.membership.manual_swim import ME, Hand, peer


def test_a_ping_is_answered_to_where_it_came_from_with_my_round_on_board() -> None:
    hand = Hand(2)
    hand.swim.set_round(12)
    hand.hear(Packet(Kind.PING, peer(1), seq=5, target="me"), source="192.0.2.1:9")
    address, ack = hand.packets[-1]
    assert (address, ack.kind, ack.seq, ack.target) == ("192.0.2.1:9", Kind.ACK, 5, "me")
    assert ack.sender.round == 12


def test_the_round_of_whoever_speaks_is_learned_without_an_event() -> None:
    hand = Hand(2)
    hand.events.clear()
    hand.hear(Packet(Kind.PING, peer(1, round=9), seq=5, target="me"))
    known = hand.swim.get("p1")
    assert known is not None
    assert known.round == 9
    assert hand.events == []


def test_those_who_are_there_can_be_asked_for_their_rounds_at_once_and_are_not_judged_by_it() -> None:
    hand = Hand(9)
    hand.dies(peer(3))
    hand.packets.clear()
    hand.swim.ask(["p2", "p3", "nobody"], hand.now)
    hand.drain()
    [(address, ping)] = hand.said(Kind.PING)
    assert (address, ping.target) == (peer(2).address, "p2")
    hand.hear(Packet(Kind.ACK, peer(2, round=40), seq=ping.seq, target="p2"))
    known = hand.swim.get("p2")
    assert known is not None
    assert known.round == 40
    assert hand.swim.health == 0


def test_one_who_speaks_is_met_when_it_answers_and_told_of() -> None:
    hand = Hand()
    hand.hear(Packet(Kind.PING, peer(1), seq=5, target="me"))
    assert hand.events_of(Joined) == []
    hand.answers(peer(1))
    assert [event.member.id for event in hand.events_of(Joined)] == ["p1"]
    hand.hear(Packet(Kind.PING, peer(2), seq=5, target="me"))
    hand.answers(peer(2))
    _, gossip = hand.wait_for(Kind.GOSSIP)
    assert {rumor.member.id for rumor in gossip.rumors} == {"p1", "p2"}


def test_a_silent_member_is_asked_for_through_three_others_and_by_a_call() -> None:
    hand = Hand(6)
    address, ping = hand.wait_for(Kind.PING)
    hand.packets.clear()
    hand.wait(0.55)
    asked = hand.said(Kind.PING_REQ)
    assert len({to for to, _ in asked}) == 3
    assert address not in {to for to, _ in asked}
    assert {(p.target, p.target_address, p.seq) for _, p in asked} == {(ping.target, address, ping.seq)}
    dials = [action for action in hand.actions if isinstance(action, PingCall)]
    assert [(d.address, d.packet.target) for d in dials] == [(address, ping.target)]


@pytest.mark.parametrize("through", ["itself", "a relay"])
def test_an_answer_in_time_saves_it(through: str) -> None:
    hand = Hand(6)
    _, ping = hand.wait_for(Kind.PING)
    hand.wait(0.7)
    sender = next(p for p in hand.peers if (p.id == ping.target) == (through == "itself"))
    hand.hear(Packet(Kind.ACK, sender, ping.seq, ping.target))
    hand.wait(0.5)
    assert not hand.events_of(Suspected)


def test_an_answer_about_somebody_else_does_not() -> None:
    hand = Hand(6)
    _, ping = hand.wait_for(Kind.PING)
    stranger = next(p for p in hand.peers if p.id != ping.target)
    hand.hear(Packet(Kind.ACK, stranger, ping.seq, stranger.id))
    hand.wait(1.0)
    assert [event.member.id for event in hand.events_of(Suspected)] == [ping.target]


def test_a_silent_member_is_suspected_and_then_dead() -> None:
    hand = Hand(2)
    hand.answer_all(4.0, silent=frozenset({"p2"}))
    assert hand.state_of(peer(2)) is State.SUSPECT
    hand.answer_all(6.0, silent=frozenset({"p2"}))
    assert hand.state_of(peer(2)) is State.DEAD
    assert [type(e) for e in hand.events if e.member.id == "p2"] == [Joined, Suspected, Died]
    assert hand.state_of(peer(1)) is State.ALIVE


def test_a_suspect_hears_of_it_with_the_next_ping_and_refutes() -> None:
    hand = Hand(1)
    hand.hear_rumor(peer(1, state=State.SUSPECT), sender=peer(2), by="p2")
    while (ping := hand.wait_for(Kind.PING)[1]).target != "p1":
        pass
    assert [(r.member.id, r.member.state) for r in ping.rumors][:1] == [("p1", State.SUSPECT)]
    hand.hear(Packet(Kind.ACK, peer(1, incarnation=2), ping.seq, "p1"))
    assert hand.state_of(peer(1)) is State.ALIVE
    assert [event.member.incarnation for event in hand.events_of(Changed)] == [2]


def test_independent_accusers_shorten_a_suspicion_and_one_who_repeats_himself_does_not() -> None:
    def death(*accusers: str) -> float:
        hand = Hand(9)
        start = hand.now
        for accuser in accusers:
            hand.hear_rumor(peer(1, state=State.SUSPECT), sender=peer(2), by=accuser)
        while not hand.events_of(Died):
            hand.answer_all(0.2)
        return hand.now - start

    assert death("p2", "p2", "p2") == pytest.approx(24.0, abs=0.3)
    assert death("p2", "p3") == pytest.approx(11.4, abs=0.3)
    assert death("p2", "p3", "p4") == death("p2", "p3", "p4", "p5") == pytest.approx(4.0, abs=0.3)


def test_confirmations_that_come_late_end_a_suspicion_at_once_and_are_no_pause() -> None:
    hand = Hand(9)
    hand.hear_rumor(peer(1, state=State.SUSPECT), sender=peer(2), by="p2")
    hand.answer_all(10.0)
    assert hand.state_of(peer(1)) is State.SUSPECT
    for accuser in ("p3", "p4"):
        hand.hear_rumor(peer(1, state=State.SUSPECT), sender=peer(2), by=accuser)
    hand.wait(0.1)
    assert hand.state_of(peer(1)) is State.DEAD


def test_i_refute_what_is_not_true_of_me() -> None:
    for state in (State.SUSPECT, State.DEAD, State.LEFT):
        hand = Hand(3)
        hand.hear_rumor(replace(ME, state=state), sender=peer(1), by="p1")
        assert (hand.swim.me.incarnation, hand.swim.me.state) == (2, State.ALIVE)
        assert hand.wait_for(Kind.GOSSIP)[1].sender.incarnation == 2
        assert [event.member for event in hand.events_of(Changed)] == [hand.swim.me]


def test_old_news_about_me_needs_no_answer() -> None:
    hand = Hand(3)
    hand.hear_rumor(replace(ME, state=State.DEAD, incarnation=0), sender=peer(1))
    hand.hear_rumor(ME, sender=peer(1))
    assert hand.swim.me.incarnation == 1


def test_a_forged_incarnation_leaves_room_for_the_truth() -> None:
    hand = Hand(3)
    for forged in (INCARNATION_LIMIT, INCARNATION_LIMIT - 1, -1):
        hand.hear_rumor(replace(ME, state=State.DEAD, incarnation=forged), sender=peer(1))
        hand.hear_rumor(peer(2, state=State.DEAD, incarnation=INCARNATION_LIMIT + 1), sender=peer(1))
    assert hand.swim.me.incarnation == 1
    assert hand.state_of(peer(2)) is State.ALIVE


def test_i_know_that_i_am_slow_when_relays_do_not_answer_either() -> None:
    hand = Hand(6)
    hand.wait(3.0)
    assert hand.swim.health > 0
    gap = hand.wait_for(Kind.PING) and hand.now
    hand.wait_for(Kind.PING, at_most=30)
    assert hand.now - gap > 2.0
    hand.answer_all(60.0)
    assert hand.swim.health == 0


def test_relays_that_say_nack_show_that_the_fault_is_not_mine() -> None:
    hand = Hand(6)
    hand.answer_all(20.0, silent=frozenset({"p3"}))
    assert hand.swim.health == 0
    assert hand.events_of(Suspected)


def test_i_relay_a_ping_and_its_answer() -> None:
    hand = Hand(3)
    request = Packet(Kind.PING_REQ, peer(1), seq=40, target="p2", target_address=peer(2).address)
    hand.packets.clear()
    hand.hear(request)
    (address, ping), *_ = hand.said(Kind.PING)
    assert (address, ping.target) == (peer(2).address, "p2")
    hand.hear(Packet(Kind.ACK, peer(2), ping.seq, "p2"))
    (address, ack), *_ = hand.said(Kind.ACK)
    assert (address, ack.seq, ack.target) == (peer(1).address, 40, "p2")
    hand.wait(1.0)
    assert not hand.said(Kind.NACK)


def test_i_say_nack_when_the_target_does_not_answer_me() -> None:
    hand = Hand(3)
    hand.hear(Packet(Kind.PING_REQ, peer(1), seq=40, target="p2", target_address=peer(2).address))
    address, nack = hand.wait_for(Kind.NACK, at_most=0.45)
    assert (address, nack.seq, nack.target) == (peer(1).address, 40, "p2")


def test_only_so_many_pings_are_relayed_at_once() -> None:
    hand = Hand(3)
    hand.packets.clear()
    for seq in range(500):
        hand.hear(Packet(Kind.PING_REQ, peer(1), seq=seq, target="p2", target_address=peer(2).address))
    assert len(hand.said(Kind.PING)) == 64


def test_gossip_is_sent_only_while_there_is_something_to_say() -> None:
    hand = Hand(9)
    hand.answer_all(5.0)
    hand.packets.clear()
    hand.answer_all(10.0)
    assert not hand.said(Kind.GOSSIP)


def test_nobody_is_judged_for_a_silence_that_i_slept_through() -> None:
    hand = Hand(6)
    hand.hear_rumor(peer(1, state=State.SUSPECT), sender=peer(2), by="p2")
    hand.wait_for(Kind.PING)
    hand.now += 120.0
    hand.swim.tick(hand.now)
    hand.drain()
    assert not hand.events_of(Died)
    hand.wait(4.9)
    assert [event.member.id for event in hand.events_of(Suspected)] == ["p1"]
    assert not hand.events_of(Died)


def test_a_suspicion_that_ends_while_nobody_is_judged_ends_right_after() -> None:
    hand = Hand(6)
    for accuser in ("p2", "p3", "p4"):
        hand.hear_rumor(peer(1, state=State.SUSPECT), sender=peer(2), by=accuser)
    hand.wait(3.9)
    hand.now += 23.45
    hand.swim.tick(hand.now)
    hand.answer_all(4.5)
    assert hand.state_of(peer(1)) is State.SUSPECT
    hand.answer_all(1.0)
    assert hand.state_of(peer(1)) is State.DEAD


def test_a_short_stall_gives_an_answer_in_the_socket_time_to_be_read() -> None:
    hand = Hand(6)
    _, ping = hand.wait_for(Kind.PING)
    hand.now += 2.0
    hand.swim.tick(hand.now)
    target = next(p for p in hand.peers if p.id == ping.target)
    hand.hear(Packet(Kind.ACK, target, ping.seq, ping.target))
    hand.wait(0.3)
    assert not hand.events_of(Suspected)


def test_leaving_is_told_to_many_at_once_and_then_i_am_silent() -> None:
    hand = Hand(9)
    hand.packets.clear()
    hand.swim.leave(hand.now)
    hand.drain()
    told = {to for to, p in hand.packets if p.sender.state is State.LEFT}
    assert told == {p.address for p in hand.peers}
    hand.packets.clear()
    hand.hear(Packet(Kind.PING, peer(1), seq=1, target="me"))
    hand.hear_rumor(replace(ME, state=State.DEAD), sender=peer(1))
    hand.swim.leave(hand.now)
    hand.drain()
    assert hand.packets == []
    assert hand.swim.next_wakeup() is None
    assert hand.swim.me.state is State.LEFT


def test_a_goodbye_is_believed_and_told_on() -> None:
    hand = Hand(5)
    hand.hear(Packet(Kind.GOSSIP, peer(1, state=State.LEFT)))
    assert [event.member.id for event in hand.events_of(Left)] == ["p1"]
    _, gossip = hand.wait_for(Kind.GOSSIP)
    assert ("p1", State.LEFT) in {(r.member.id, r.member.state) for r in gossip.rumors}


def test_old_gossip_does_not_revive_the_forgotten() -> None:
    hand = Hand(3, config=SwimConfig(forget=60.0))
    hand.dies(peer(1))
    hand.answer_all(61.0)
    assert hand.swim.get("p1") is None
    hand.hear_rumor(peer(1), sender=peer(2))
    assert hand.swim.get("p1") is None
    hand.hear_rumor(peer(1, incarnation=2), sender=peer(2))
    hand.answers(peer(1, incarnation=2))
    assert hand.state_of(peer(1)) is State.ALIVE


def test_the_unknown_dead_are_not_listed_but_remembered() -> None:
    hand = Hand(2)
    hand.hear_rumor(peer(9, state=State.DEAD), sender=peer(2))
    assert hand.swim.get("p9") is None
    hand.hear_rumor(peer(9), sender=peer(2))
    assert hand.swim.get("p9") is None


def test_one_who_is_taken_for_dead_and_speaks_is_told_so() -> None:
    hand = Hand(3)
    hand.dies(peer(1))
    for kind in (Kind.PING, Kind.GOSSIP):
        hand.packets.clear()
        hand.hear(Packet(kind, peer(1), seq=3, target="me"))
        address, reply = hand.packets[-1]
        assert address == peer(1).address
        assert [(r.member.id, r.member.state) for r in reply.rumors][:1] == [("p1", State.DEAD)]
    hand.hear(Packet(Kind.PING, peer(1, incarnation=2), seq=4, target="me"))
    assert hand.state_of(peer(1)) is State.ALIVE
    assert [event.member.id for event in hand.events_of(Joined)].count("p1") == 2


def test_one_who_is_back_from_the_dead_and_doubted_in_the_same_rumour_has_joined() -> None:
    hand = Hand(3)
    hand.dies(peer(2))
    hand.hear_rumor(peer(2, incarnation=2, state=State.SUSPECT), sender=peer(1), by="p3")
    hand.hear_rumor(peer(2, incarnation=3), sender=peer(1))
    told = [type(event) for event in hand.events if event.member.id == "p2"]
    assert told == [Joined, Died, Joined, Suspected, Changed]


def test_a_restart_with_a_higher_incarnation_at_another_address_replaces_the_old_life_when_it_answers() -> None:
    hand = Hand(3)
    life = replace(peer(1, incarnation=2), address="10.0.0.77:7000")
    hand.hear(Packet(Kind.PING, life, seq=1, target="me"))
    hand.wait(0.8)  # its old address is silent
    assert hand.swim.get("p1") == peer(1)
    hand.answers(life)
    assert hand.swim.get("p1") == life
    assert [event.member for event in hand.events_of(Changed)] == [life]


def test_a_probe_of_the_old_life_does_not_count_against_the_new_one() -> None:
    hand = Hand(1)
    hand.wait_for(Kind.PING)
    life = replace(peer(1, incarnation=2), address="10.0.0.77:7000")
    hand.hear(Packet(Kind.GOSSIP, life))
    hand.wait(0.8)
    hand.answers(life)
    hand.wait(1.0)
    assert not hand.events_of(Suspected)


def test_a_ping_for_somebody_who_was_at_my_address_before_is_no_sign_of_his_life() -> None:
    hand = Hand(2)
    hand.packets.clear()
    hand.hear(Packet(Kind.PING, peer(1), seq=3, target="my-predecessor"))
    assert [packet.kind for _, packet in hand.packets] == [Kind.GOSSIP]


def test_in_an_exchange_the_dead_of_others_are_only_suspects_to_me() -> None:
    hand = Hand(3)
    hand.swim.merge([peer(1, state=State.DEAD)], hand.now, by="p2")
    assert hand.state_of(peer(1)) is State.SUSPECT
    hand.swim.merge([peer(3, state=State.LEFT)], hand.now, by="p2")
    assert hand.state_of(peer(3)) is State.LEFT


def test_in_an_exchange_the_living_that_i_take_for_dead_are_told_so() -> None:
    hand = Hand(3)
    hand.dies(peer(1))
    hand.packets.clear()
    hand.swim.merge([peer(1)], hand.now, by="p2")
    hand.drain()
    assert [address for address, _ in hand.packets] == [peer(1).address]
    assert hand.state_of(peer(1)) is State.DEAD


def test_every_five_seconds_one_of_the_living_and_one_of_the_dead_is_wished_for() -> None:
    hand = Hand(3)
    hand.dies(peer(1))
    hand.answer_all(2.1)
    hand.actions.clear()
    hand.answer_all(21.0)
    wished = [action.address for action in hand.actions if isinstance(action, Sync)]
    assert 3 <= wished.count(peer(1).address) <= 5
    assert len(wished) == 2 * wished.count(peer(1).address)


def test_a_seed_where_nobody_is_known_is_tried_again() -> None:
    hand = Hand(1, seeds=("seed.example:7000", peer(1).address))
    hand.answer_all(2.1)
    hand.actions.clear()
    hand.answer_all(12.0)
    assert Sync("seed.example:7000") in hand.actions


def test_two_of_the_same_id_refute_each_other_slowly_and_it_is_told() -> None:
    hand = Hand(3)
    for _ in range(100):
        other = replace(ME, address="10.9.9.9:1", incarnation=hand.swim.me.incarnation + 1)
        hand.hear_rumor(other, sender=peer(1))
        hand.answer_all(0.1)
    assert 10 <= hand.swim.me.incarnation <= 30
    assert hand.events_of(Clashed)


def test_the_life_before_this_one_is_outdone_without_an_alarm() -> None:
    hand = Hand(3)
    hand.hear_rumor(replace(ME, address="10.9.9.9:1", incarnation=7), sender=peer(1))
    assert hand.swim.me.incarnation == 8
    assert not hand.events_of(Clashed)


def test_a_packet_with_my_own_id_or_an_impossible_sender_is_ignored() -> None:
    hand = Hand(2)
    hand.packets.clear()
    hand.hear(Packet(Kind.PING, replace(ME, address="10.9.9.9:1"), seq=1, target="me"))
    hand.hear(Packet(Kind.PING, peer(5, state=State.DEAD), seq=1, target="me"))
    assert hand.packets == []
    assert hand.swim.get("p5") is None


def test_the_same_inputs_give_the_same_outputs() -> None:
    def story() -> list[tuple[str, Packet]]:
        hand = Hand(9)
        said: list[tuple[str, Packet]] = []
        for step in range(30):
            hand.hear(Packet(Kind.PING, peer(1 + step % 9, round=step), seq=step, target="me"))
            hand.wait(0.5)
            said += hand.packets
            hand.packets = []
        return said

    assert story() == story()


@pytest.mark.parametrize("transport", ["udp", "grpc"])
def test_only_eight_neighbours_are_probed_and_told_rumours(transport: Literal["udp", "grpc"]) -> None:
    hand = Hand(40, config=SwimConfig(transport=transport))
    hand.wait(40.0)
    assert 0 < len({to for to, _ in hand.packets}) <= 8
    if transport == "grpc":
        assert not [action for action in hand.actions if isinstance(action, PingCall)]


def test_a_slow_process_lets_a_suspicion_last_longer() -> None:
    """24 s without confirmations in a swarm of ten; twice that after one late wake-up."""
    healthy, slow = Hand(9), Hand(9)
    slow.now += 2.0  # the machine was too busy to run it
    slow.swim.tick(slow.now)
    assert (healthy.swim.health, slow.swim.health) == (0, 1)
    for hand in (healthy, slow):
        hand.hear_rumor(peer(1, state=State.SUSPECT), sender=peer(2))
        hand.wait(30.0)
    assert "p1" in {event.member.id for event in healthy.events_of(Died)}
    assert "p1" not in {event.member.id for event in slow.events_of(Died)}
    slow.wait(30.0)
    assert "p1" in {event.member.id for event in slow.events_of(Died)}


def test_a_rumour_with_an_accuser_keeps_him_when_it_is_told_on() -> None:
    hand = Hand(9)
    hand.hear_rumor(peer(1, state=State.SUSPECT), sender=peer(2), by="p7")
    _, gossip = hand.wait_for(Kind.GOSSIP)
    assert Rumor(peer(1, state=State.SUSPECT), by="p7") in gossip.rumors


def test_a_round_of_mine_that_i_am_not_in_is_refuted() -> None:
    hand = Hand(2)
    hand.swim.set_round(5)
    hand.hear_rumor(replace(ME, round=900), sender=peer(1))
    assert hand.swim.me.incarnation == ME.incarnation + 1
    assert hand.swim.me.round == 5
    assert [event.member.round for event in hand.events_of(Changed)] == [5]


def test_a_change_of_my_reachability_is_gossiped_with_a_higher_incarnation_and_once() -> None:
    hand = Hand(2)
    hand.packets.clear()
    hand.events.clear()
    for _ in range(2):
        hand.swim.set_reachability(Reachability.RELAYED, ["p2"], hand.now)
    _, packet = hand.wait_for(Kind.GOSSIP)
    assert (packet.sender.reachability, packet.sender.relays) == (Reachability.RELAYED, ("p2",))
    assert packet.sender.incarnation == ME.incarnation + 1
    assert [event.member.incarnation for event in hand.events_of(Changed)] == [ME.incarnation + 1]


def test_a_new_address_of_mine_is_gossiped_with_a_higher_incarnation() -> None:
    hand = Hand(2)
    hand.swim.move("10.0.0.77:7000", hand.now)
    _, packet = hand.wait_for(Kind.GOSSIP)
    assert (packet.sender.address, packet.sender.incarnation) == ("10.0.0.77:7000", ME.incarnation + 1)


def test_the_reachability_of_a_member_is_what_it_last_stated() -> None:
    hand = Hand(2)
    stated = replace(peer(1, incarnation=2), reachability=Reachability.UNREACHABLE)
    hand.hear_rumor(stated, sender=peer(2))
    hand.hear_rumor(replace(peer(1, round=3), reachability=Reachability.DIRECT), sender=peer(2))
    known = hand.swim.get("p1")
    assert known is not None
    assert known.reachability is Reachability.UNREACHABLE
    hand.hear(Packet(Kind.GOSSIP, replace(stated, incarnation=3, reachability=Reachability.DIRECT)))
    known = hand.swim.get("p1")
    assert known is not None
    assert known.reachability is Reachability.DIRECT


def test_a_member_that_nobody_can_call_is_not_pinged_and_not_suspected_while_it_reports_itself() -> None:
    hand = Hand(3)
    silent = replace(peer(1, incarnation=2), reachability=Reachability.UNREACHABLE)
    for _ in range(6):
        hand.hear(Packet(Kind.PING, silent, seq=1, target="me"), source="203.0.113.9:5")
        hand.answer_all(SILENCE / 5)
        assert not [to for to, packet in hand.packets if to == silent.address]
    assert hand.state_of(silent) is State.ALIVE
    assert hand.events_of(Suspected) == []


def test_a_member_that_nobody_can_call_and_that_reports_nothing_any_more_dies() -> None:
    hand = Hand(3)
    hand.hear(Packet(Kind.PING, replace(peer(1, incarnation=2), reachability=Reachability.UNREACHABLE), seq=1))
    hand.answer_all(SILENCE + 40)
    assert hand.state_of(peer(1)) is State.DEAD


def test_an_earlier_round_of_mine_is_old_news_and_not_refuted() -> None:
    hand = Hand(2)
    hand.swim.set_round(5)
    hand.hear_rumor(replace(ME, round=4), sender=peer(1))
    hand.hear_rumor(replace(ME, round=5), sender=peer(1))
    assert hand.swim.me.incarnation == ME.incarnation


@pytest.mark.parametrize("kind", [Kind.PING, Kind.ACK, Kind.GOSSIP])
def test_one_who_speaks_of_an_earlier_round_than_is_believed_is_told_so_and_its_refutation_wins(
    kind: Kind,
) -> None:
    hand = Hand(2)
    hand.hear(Packet(Kind.GOSSIP, peer(1, round=900)), source="192.0.2.66:1")  # somebody says that it is p1
    hand.packets.clear()
    hand.hear(Packet(kind, peer(1, round=3), target="me" if kind is Kind.PING else "p1"))
    told = [rumor.member for to, packet in hand.packets if to == peer(1).address for rumor in packet.rumors]
    assert [(m.id, m.round) for m in told] == [("p1", 900)]
    hand.hear(Packet(Kind.GOSSIP, peer(1, round=3, incarnation=2)))
    believed = hand.swim.get("p1")
    assert believed is not None
    assert believed.round == 3
