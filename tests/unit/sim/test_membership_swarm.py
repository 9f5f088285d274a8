"""Swarms of SWIM state machines on a virtual clock: detection times and absence of false alarms."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random

import pytest

from pfl_node.membership.member import State
from pfl_node.membership.member_events import Died, Joined, Left, Suspected
from pfl_node.membership.swim_config import SwimConfig
from tests.unit.sim.swim_harness import Host, SwimNetwork, node

DEAD, LEFT = {State.DEAD}, {State.LEFT}


def settled(count: int, seed: int = 1, **network: float) -> tuple[SwimNetwork, list[Host]]:
    net = SwimNetwork(seed, **network)  # type: ignore[arg-type]
    hosts = net.grow(count)
    net.run_until(net.complete, at_most=30)
    net.run(10)
    assert net.count(Died) == 0
    return net, hosts


def test_fifty_that_start_at_once_know_each_other_within_seconds() -> None:
    net = SwimNetwork(1, latency=0.025, loss=0.02)
    net.grow(50)
    assert net.run_until(net.complete, at_most=15) < 10
    assert net.count(Suspected) == 0


def test_three_that_start_at_once_know_each_other_at_once() -> None:
    net = SwimNetwork(1)
    net.grow(3)
    assert net.run_until(net.complete, at_most=5) < 1


def test_a_seed_that_starts_last_brings_all_together() -> None:
    net = SwimNetwork(1)
    for number in range(1, 6):
        net.add(node(number), seeds=[node(0).address])
    net.run(20)
    net.add(node(0))
    net.run_until(net.complete, at_most=10)


@pytest.mark.parametrize("seed", range(3))
def test_the_death_of_one_of_fifty_is_seen_by_all_within_eleven_seconds(seed: int) -> None:
    net, hosts = settled(50, seed, latency=0.025, loss=0.02)
    net.kill(hosts[7])
    assert net.run_until(lambda: net.seen(hosts[7].id, DEAD), at_most=30) <= 11
    net.run(20)
    assert net.count(Died) == net.count(Died, of=hosts[7].id) == 49


def test_the_death_of_one_of_three_is_seen_within_ten_seconds() -> None:
    net, hosts = settled(3)
    net.kill(hosts[0])
    assert net.run_until(lambda: net.seen(hosts[0].id, DEAD), at_most=30) <= 10


def test_the_death_of_twenty_of_fifty_is_seen_and_nobody_else_dies() -> None:
    net, hosts = settled(50, latency=0.025, loss=0.02)
    gone = hosts[10:30]
    net.kill(*gone)
    assert net.run_until(lambda: all(net.seen(host.id, DEAD) for host in gone), at_most=60) <= 24
    net.run(20)
    assert net.count(Died) == 20 * 30
    assert net.complete()


def test_in_five_minutes_of_loss_and_latency_nobody_is_taken_for_dead() -> None:
    net, hosts = settled(50, latency=0.04, jitter=0.02, loss=0.02)
    net.run(300)
    assert net.count(Died) == 0
    assert net.complete()
    packets = sum(host.packets for host in hosts) / len(hosts) / net.now
    assert packets < 4  # two of them are a ping and its ack


def test_a_healed_partition_is_whole_again_within_ten_seconds() -> None:
    net, hosts = settled(50, latency=0.025, loss=0.02)
    net.split(hosts[:20], hosts[20:])
    net.run(90)
    assert net.count(Died) == 2 * 20 * 30
    assert net.complete(hosts[:20])
    net.heal()
    assert net.run_until(net.complete, at_most=30) <= 10
    net.run(60)
    assert net.complete()
    assert net.count(Died) == 2 * 20 * 30


def test_a_partition_heals_even_when_both_sides_have_forgotten_each_other() -> None:
    net = SwimNetwork(3, config=SwimConfig(forget=30.0))
    first = net.add(node(0))
    for number in range(1, 10):
        net.add(node(number), seeds=[first.address])
    net.run(10)
    hosts = net.running
    net.split(hosts[:5], hosts[5:])
    net.run(120)
    assert len(hosts[9].swim.members()) == 5
    net.heal()
    assert net.run_until(net.complete, at_most=60) <= 20


def test_one_who_is_cut_off_alone_comes_back() -> None:
    net, hosts = settled(10)
    net.split(hosts[:1], hosts[1:])
    net.run(60)
    net.heal()
    assert net.run_until(net.complete, at_most=30) <= 10


@pytest.mark.parametrize("seed", range(5))
def test_a_goodbye_is_seen_by_all_of_fifty_within_half_a_second(seed: int) -> None:
    net, hosts = settled(50, seed, latency=0.025, loss=0.02)
    net.leave(hosts[9])
    assert net.run_until(lambda: net.seen(hosts[9].id, LEFT), at_most=10, step=0.02) <= 0.5
    net.run(30)
    assert net.count(Died) == 0
    assert net.count(Left) == 49


def test_a_restart_with_the_same_id_at_another_address_is_seen_at_once() -> None:
    net, hosts = settled(20)
    old = hosts[5].swim.me
    net.kill(hosts[5])
    net.run(0.5)
    net.add(replace(old, address="10.0.0.2:9999", incarnation=2, round=4), seeds=[hosts[0].address])

    def known() -> bool:
        views = [host.swim.get(old.id) for host in net.running]
        return all(m is not None and m.address == "10.0.0.2:9999" for m in views)

    assert net.run_until(known, at_most=10) <= 4  # the seed probes the old member first
    net.run(30)
    assert net.count(Died) == 0


def test_a_restart_that_forgot_its_incarnation_outdoes_its_former_life() -> None:
    net, hosts = settled(20)
    old = hosts[5].swim.me
    net.kill(hosts[5])
    net.run_until(lambda: net.seen(old.id, DEAD), at_most=30)
    back = net.add(replace(old, incarnation=0), seeds=[hosts[0].address])
    net.run_until(net.complete, at_most=10)
    assert back.swim.me.incarnation > old.incarnation


def test_a_copy_of_a_living_node_is_refused() -> None:
    net, hosts = settled(10)
    net.transcript = []
    copy = replace(hosts[5].swim.me, address="10.0.0.2:9999", incarnation=8)
    net.add(copy, seeds=[hosts[0].address])
    net.run(20)
    refusals = [line for line in net.transcript if "refused" in line]
    assert len(refusals) == 1
    assert f"the id {copy.id} is in use by {copy.name} at {hosts[5].address}" in refusals[0]
    assert all(
        m is not None and m.address == hosts[5].address for m in (h.swim.get(copy.id) for h in hosts if h.up)
    )


def test_a_stopped_process_judges_nobody_when_it_goes_on_and_is_taken_back() -> None:
    net, hosts = settled(20)
    sleeper = hosts[4]
    net.sleep(sleeper, 30.0)
    net.run(29)
    assert net.seen(sleeper.id, DEAD)
    net.run(1)
    assert net.run_until(net.complete, at_most=10) <= 6
    net.run(30)
    assert not [e for _, e in sleeper.events if isinstance(e, Died | Suspected)]
    assert net.count(Died) == net.count(Died, of=sleeper.id)


def test_one_behind_a_wall_that_drops_datagrams_lives_on_by_calls() -> None:
    net, hosts = settled(20)
    net.mute(hosts[3])
    net.run(120)
    assert net.count(Died) == 0
    assert net.complete()


def test_rounds_are_known_to_a_late_joiner_and_spread_without_gossip() -> None:
    net, hosts = settled(20)
    for host in hosts:
        host.swim.set_round(41)
    net.run(30)
    before = sum(host.packets for host in hosts)
    for host in hosts:
        host.swim.set_round(42)
    net.run(30)
    packets = (sum(host.packets for host in hosts) - before) / 30 / 20
    assert packets == pytest.approx(2.0, abs=0.2)
    late = net.add(node(99), seeds=[hosts[3].address])
    net.run(0.1)
    assert max(member.round for member in late.swim.members()) == 42


@pytest.mark.parametrize("seed", range(4))
def test_after_any_weather_a_quiet_while_brings_everybody_together(seed: int) -> None:
    net, hosts = settled(20, seed, latency=0.02, jitter=0.02, loss=0.05)
    rng = Random(seed)
    for _ in range(40):
        host = rng.choice(net.running[1:])
        match rng.randrange(5):
            case 0:
                net.sleep(host, rng.uniform(0.1, 20))
            case 1:
                net.kill(host)
                back = replace(host.swim.me, incarnation=host.swim.me.incarnation + rng.randrange(2), round=0)
                net.after(rng.uniform(0, 20), partial(net.add, back, seeds=[hosts[0].address]))
            case 2:
                some = set(rng.sample(net.running, 8))
                net.split(some, [other for other in net.hosts.values() if other not in some])
                net.after(rng.uniform(0, 20), net.heal)
            case _:
                net.run(rng.uniform(0, 10))
    net.run(25)
    assert net.run_until(net.complete, at_most=60) <= 30
    before = net.count(Died)
    net.run(60)
    assert net.count(Died) == before
    assert net.complete()
    assert len(net.running) == 20


def test_the_same_seed_gives_the_same_story_to_the_last_packet() -> None:
    def story(seed: int) -> list[str]:
        net = SwimNetwork(seed, latency=0.02, jitter=0.01, loss=0.05)
        net.transcript = []
        hosts = net.grow(12, spread=2.0)
        net.run(5)
        net.kill(hosts[3])
        net.run(15)
        net.leave(hosts[4])
        net.run(2)
        return net.transcript

    assert story(5) == story(5)
    assert story(5) != story(6)
    assert len(story(5)) > 500


def test_with_neighbours_only_a_death_and_a_goodbye_are_seen_by_all() -> None:
    net = SwimNetwork(2, config=SwimConfig(transport="grpc"), latency=0.005)
    hosts = net.grow(50)
    net.run_until(net.complete, at_most=30)
    net.run(5)
    net.kill(hosts[7])
    net.run_until(lambda: net.seen(hosts[7].id, DEAD), at_most=30)
    net.leave(hosts[9])
    net.run_until(lambda: net.seen(hosts[9].id, LEFT), at_most=6)
    assert net.count(Died) == 49


def test_the_dead_are_forgotten_after_minutes_and_do_not_come_back() -> None:
    net, hosts = settled(10)
    net.kill(hosts[2])
    net.run(330)
    assert all(host.swim.get(hosts[2].id) is None for host in net.running)
    assert net.count(Joined, of=hosts[2].id) == 9


@pytest.mark.slow
def test_a_thousand_know_each_other_and_see_a_death() -> None:
    net = SwimNetwork(1, latency=0.02, jitter=0.01, loss=0.01)
    hosts = net.grow(1000, spread=10.0)
    net.run_until(net.complete, at_most=40, step=5)
    net.kill(hosts[77])
    assert net.run_until(lambda: net.seen(hosts[77].id, DEAD), at_most=60, step=1) <= 30
    assert net.count(Died) == 999
