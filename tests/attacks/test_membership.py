"""What one member, or a stranger where there is no TLS, says of others."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from pfl_node.membership import membership_pb2 as pb
from pfl_node.membership import packet_codec
from pfl_node.membership.member import INCARNATION_LIMIT, Member, State
from pfl_node.membership.member_events import Changed
from pfl_node.membership.packet import Kind, Packet, Rumor
from pfl_node.membership.swim_config import SwimConfig
from pfl_node.store.data_dir import DataDir, NodeIdentity
from pfl_node.wire.endpoint import channel_options
from pfl_node.wire.membership_pb2_grpc import MembershipStub
from tests.attacks.conftest import Figure
from tests.e2e.in_process import Town, play
from tests.e2e.processes import Process
from tests.unit.membership.manual_swim import ME, Hand, peer

INVENTED = 4200


def invented(count: int = INVENTED, **facts: object) -> list[Member]:
    return [
        replace(Member(f"x{n}", f"x{n}", f"127.0.0.1:{1 + n % 60000}", incarnation=1), **facts)  # type: ignore[arg-type]
        for n in range(count)
    ]


@pytest.mark.parametrize("proven", [False, True])
def test_invented_members_are_pinged_a_few_at_a_time_and_never_met(proven: bool, figure: Figure) -> None:
    hand = Hand(3, config=SwimConfig(proven=proven))
    hand.swim.merge(invented(round=1 << 52), hand.now, by="p1")
    for _ in range(10):
        for member in invented(400):
            hand.hear_rumor(member, sender=peer(2))
        hand.answer_all(1.0)
    assert [m.id for m in hand.swim.members()] == ["me", "p1", "p2", "p3"]
    hand.packets.clear()
    hand.swim.merge(invented(), hand.now, by="p3")
    hand.drain()
    pings = len(hand.said(Kind.PING))
    assert pings <= 64
    if not proven:
        figure("4,200 invented members in one Sync", "view full, 0 models exchanged", f"0 met, {pings} pings")


def test_a_stranger_cannot_invent_members_by_datagrams_of_their_own() -> None:
    hand = Hand(3)
    for member in invented(2000):
        hand.hear(Packet(Kind.PING, member, 1, "me"), source="192.0.2.9:1")
        hand.hear(Packet(Kind.ACK, member, 1, member.id), source="192.0.2.9:1")
    assert len(hand.swim.members()) == 4


def test_rumours_of_rounds_do_not_move_a_member_further_than_its_models_would_be_taken(figure: Figure) -> None:
    hand = Hand(3)
    hand.swim.set_round(100)
    hand.swim.merge([replace(p, round=1 << 52) for p in hand.peers], hand.now, by="p1")
    rounds = sorted(m.round for m in hand.swim.members())
    assert rounds[:-1] == [100, 116, 116]  # the liar's own is its own affair
    figure("rumours of round 2^52", "a newcomer starts in round 2^53", f"{rounds[2] - 100} rounds ahead")


@pytest.mark.parametrize("state", [State.LEFT, State.DEAD, State.ALIVE])
@pytest.mark.parametrize("incarnation", [1 << 20, 1 << 40, INCARNATION_LIMIT - 2, INCARNATION_LIMIT - 1])
def test_a_forged_incarnation_does_not_evict_for_good(state: State, incarnation: int) -> None:
    victim, witness = Hand(2), Hand(2)
    lie = replace(ME, state=state, incarnation=incarnation)
    witness.swim.merge([ME], witness.now, by="me", joining=True)
    for hand in (victim, witness):
        hand.swim.merge([lie], hand.now, by="p1")
        hand.drain()
    assert victim.swim.me.incarnation < 1 << 21
    truth = victim.swim.me
    if incarnation < 1 << 21 or state is not State.ALIVE:
        witness.hear(Packet(Kind.PING, truth, 1, "me"))
    assert witness.state_of(ME) is State.ALIVE
    known = witness.swim.get("me")
    assert known is not None
    assert known.incarnation <= truth.incarnation


def test_a_million_forged_incarnations_leave_room(figure: Figure) -> None:
    """One rumour goes 1,024 beyond what is known at the most, and a refutation comes once in a gossip interval."""
    hand = Hand(2)
    for _ in range(1000):
        high = max(1 << 20, hand.swim.me.incarnation) + 1023
        hand.swim.merge([replace(ME, state=State.LEFT, incarnation=high)], hand.now, by="p1")
        hand.wait(0.2)
    a_day = (hand.swim.me.incarnation - (1 << 20)) / 200 * 86400
    assert a_day * 365 * 1000 < INCARNATION_LIMIT
    figure(
        "incarnation 2^53-1 and LEFT in one Sync",
        "evicted for ever",
        f"1,000 of 1,000 refuted, {INCARNATION_LIMIT / a_day / 365:,.0f} years are left",
    )


def test_a_used_up_incarnation_does_not_make_a_directory_unusable(tmp_path: Path, figure: Figure) -> None:
    home = DataDir.open(tmp_path / "n")
    home._write(NodeIdentity(home.identity.id, INCARNATION_LIMIT - 2))
    home.close()
    again = DataDir.open(tmp_path / "n")
    packet_codec.from_wire(
        packet_codec.to_wire(Member(again.identity.id, "n", "127.0.0.1:1", incarnation=again.identity.incarnation))
    )
    assert again.identity.incarnation == 1
    again.close()
    figure(
        "incarnation 2^53-2 on the victim's disk",
        "directory unusable",
        f"incarnation {again.identity.incarnation}",
    )


def test_twelve_thousand_rumours_about_a_member_are_refuted_once(figure: Figure) -> None:
    hand = Hand(3)
    lies = [replace(ME, state=State.SUSPECT, incarnation=n, round=n) for n in range(1, 12_001)]
    hand.swim.merge(lies, hand.now, by="p1")
    hand.drain()
    refuted = len(hand.events_of(Changed))
    assert refuted == 1
    assert hand.swim.me.incarnation == 12_001
    hand.hear(Packet(Kind.GOSSIP, peer(1), rumors=tuple(Rumor(replace(m, incarnation=20_000)) for m in lies)))
    assert len(hand.events_of(Changed)) == 1
    hand.wait(0.25)
    assert len(hand.events_of(Changed)) == 2
    figure(
        "12,000 rumours about a member in one message", "loop frozen for 114 s", f"{refuted} refutation and write"
    )


def test_a_datagram_of_a_stranger_is_not_answered_with_much_more(
    start: Callable[..., Process], figure: Figure
) -> None:
    """A real socket and a real node, which has as many news to tell as fit into a datagram."""
    node = start("bootstrap", "--listen", "127.0.0.1:0", "--name", "b" * 60, "--log-format", "json")
    host, port = node.address.rsplit(":", 1)
    news = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(20)]
    for n, one in enumerate(news):  # real members, so that there is news
        one.bind(("127.0.0.1", 0))
        one.settimeout(5.0)
        me = Member(f"m{n}" * 8, f"m{n}" * 8, f"127.0.0.1:{one.getsockname()[1]}", incarnation=1)
        one.sendto(packet_codec.encode(Packet(Kind.PING, me, 1)), (host, int(port)))
        ping = _ping(one)
        one.sendto(packet_codec.encode(Packet(Kind.ACK, me, ping.seq, me.id)), (host, int(port)))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.bind(("127.0.0.1", 0))
        gains = [_gain(stranger, (host, int(port)), padding) for padding in (0, 10, 20, 40, 60)]
    for one in news:
        one.close()
    assert max(gains) <= 4
    figure("UDP amplification of a ping", "x33", f"x{max(gains):.1f}")


def _ping(one: socket.socket) -> Packet:
    while (packet := packet_codec.decode(one.recv(2048))).kind is not Kind.PING:
        pass
    return packet


def _gain(stranger: socket.socket, to: tuple[str, int], padding: int) -> float:
    """Bytes that come back for each byte of a ping, all answers within a moment."""
    ping = packet_codec.encode(Packet(Kind.PING, Member("s", "s" * padding, "9.9.9.9:9", run=""), 1))
    stranger.sendto(ping, to)
    stranger.settimeout(0.5)
    back = 0
    try:
        while True:
            back += len(stranger.recv(2048))
    except TimeoutError:
        return back / len(ping)


def test_false_addresses_do_not_move_a_member_that_answers_however_many_there_are(figure: Figure) -> None:
    """Without TLS. The attacker answers every ping to the false address at once."""
    hand, there = Hand(3), "192.0.2.66:1"
    for n in range(200):
        lie = replace(peer(1), address=there, incarnation=2 + n)
        hand.hear_rumor(lie, sender=peer(2))
        for address, packet in hand.said(Kind.PING):
            if address == there:
                hand.hear(Packet(Kind.ACK, lie, packet.seq, "p1"), source=there)
        hand.answer_all(0.1)
        assert hand.swim.get("p1") == peer(1)
    moved = int(hand.swim.get("p1") != peer(1))
    figure("200 false addresses in 20 s, without TLS", "moved, faster than refuted", f"moved {moved} times")


def test_a_relay_pings_members_only_and_only_for_members(figure: Figure) -> None:
    hand = Hand(3)
    hand.packets.clear()
    hand.hear(Packet(Kind.PING_REQ, peer(1), 7, "db", "192.0.2.77:5432"))
    hand.hear(Packet(Kind.PING_REQ, peer(1), 7, "p2", "192.0.2.77:5432"))
    hand.hear(Packet(Kind.PING_REQ, peer(9), 7, "p2", peer(2).address))
    dialled = [to for to, packet in hand.said(Kind.PING) if packet.target in ("db", "p2")]
    assert not dialled
    hand.hear(Packet(Kind.PING_REQ, peer(1), 7, "p2", peer(2).address))
    assert [to for to, packet in hand.said(Kind.PING) if packet.target == "p2"] == [peer(2).address]
    figure("PingReq to any host and port", "dialled", f"{len(dialled)} of 3 dialled")


def test_a_swarm_goes_on_after_a_sync_with_thousands_of_invented_members(tmp_path: Path, figure: Figure) -> None:
    """Real nodes that exchange models; one member sends the message to both."""

    async def scene(town: Town) -> None:
        ann = await town.runs("ann", policy={"name": "el"})
        bob = await town.runs("bob", policy={"name": "el"}, peer_seed=[ann.address])
        await bob.until(lambda: bob.node.host.received)
        usual = await bob.rounds_per_second()
        members = invented(round=(1 << 52))
        state = pb.State(
            sender=packet_codec.to_wire(replace(members[0], id="eve")), members=packet_codec.to_wires(members)
        )
        for life in (ann, bob):
            async with grpc.aio.insecure_channel(life.address, options=channel_options()) as channel:
                await MembershipStub(channel).Sync(state)
        before = sum(bob.node.host.received.values())
        first = bob.round
        now = await bob.rounds_per_second()
        assert len(bob.node.peers()) == 1
        came = sum(bob.node.host.received.values())
        assert came >= before + 10
        carl = await town.runs("carl", policy={"name": "el"}, peer_seed=[ann.address])
        await carl.trains()
        assert carl.round < bob.round + 1000
        figure(
            "the same Sync, real nodes",
            "3 of 52 rounds/s, 0 models",
            f"{now:.0f} of {usual:.0f} rounds/s, {came - before} models in {bob.round - first} rounds",
        )

    play(tmp_path, scene)
