"""When nodes notice that others crash, join, leave or return."""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random
from typing import cast

from pfl_node.sim.costs import Costs
from pfl_node.sim.event_loop import VirtualLoop
from pfl_node.sim.failure_detector import FailureDetector
from pfl_node.sim.faults import Conditions
from pfl_node.sim.simulation import World
from pfl_node.types import PeerId
from tests.unit.sim.toy_swarms import A, B, C, D


class FakeWorld:
    """A world as a failure detector sees it: the actual state of the nodes, and what they notice."""

    def __init__(self, *members: PeerId, seed: int = 0) -> None:
        self.seed = seed
        self.clock = VirtualLoop()
        self.costs = Costs()
        self.down: set[PeerId] = set()
        self.walls: set[frozenset[PeerId]] = set()
        self.noticed: list[tuple[float, PeerId, tuple[PeerId, ...]]] = []
        self.conditions = Conditions(())
        self.views = FailureDetector(cast(World, self))
        self.views.start_with(members)

    def chance(self, *key: object) -> float:
        return Random(f"{self.seed}/{key}").random()

    def in_touch(self, a: PeerId, b: PeerId) -> bool:
        return b not in self.down and frozenset((a, b)) not in self.walls

    def notice(self, observer: PeerId, gone: Collection[PeerId]) -> None:
        self.noticed.append((self.clock.now, observer, tuple(gone)))

    def after(self, _: PeerId, seconds: float, action: Callable[[], None]) -> None:
        self.clock.after(seconds, action)

    def until(self, time: float) -> None:
        self.clock.at(time, lambda: None)
        self.clock.run(lambda: self.clock.now >= time)


def test_founders_know_each_other_and_not_themselves() -> None:
    town = FakeWorld(C, A, B)
    assert town.views.alive(B) == (A, C)
    assert town.views.believes(A, C)
    assert not town.views.believes(A, D)


def test_a_crash_is_noticed_after_a_delay_by_all_within_a_moment_of_each_other() -> None:
    town = FakeWorld(A, B, C)
    town.down.add(C)
    town.views.crashed(C)
    town.until(4.9)
    assert town.views.alive(A) == (B, C)
    town.until(10.0 + town.costs.news)
    assert (town.views.alive(A), town.views.alive(B)) == ((B,), (A,))
    times = {observer: time for time, observer, gone in town.noticed if gone == (C,)}
    assert 0 < abs(times[A] - times[B]) <= town.costs.news
    assert all(5.0 <= time <= 10.0 + town.costs.news for time in times.values())


def test_a_crash_that_was_over_before_it_could_be_noticed_is_not() -> None:
    town = FakeWorld(A, B)
    town.down.add(B)
    town.views.crashed(B)
    town.until(1.0)
    town.down.clear()
    town.views.arrived(B)
    town.until(20.0)
    assert town.views.alive(A) == (B,)
    assert town.noticed == []


def test_a_node_that_comes_back_is_seen_again_soon() -> None:
    town = FakeWorld(A, B)
    town.down.add(B)
    town.views.crashed(B)
    town.until(15.0)
    assert town.views.alive(A) == ()
    town.down.clear()
    town.views.arrived(B)
    town.until(15.0 + town.costs.news)
    assert town.views.alive(A) == (B,)


def test_a_leave_is_known_to_all_at_once() -> None:
    town = FakeWorld(A, B, C)
    town.views.left(B)
    town.until(town.costs.news)
    assert (town.views.alive(A), town.views.alive(C)) == ((C,), (A,))
    assert (town.views.everyone(A), town.views.finished()) == ((B, C), [B])


def test_a_joiner_sees_the_others_now_and_they_see_it_in_a_moment() -> None:
    town = FakeWorld(A, B)
    town.views.arrived(C)
    assert town.views.alive(C) == (A, B)
    assert town.views.alive(A) == (B,)
    town.until(town.costs.news)
    assert town.views.alive(A) == (B, C)


def test_a_joiner_does_not_see_who_is_down() -> None:
    town = FakeWorld(A, B)
    town.down.add(B)
    town.views.arrived(C)
    assert town.views.alive(C) == (A,)


def test_a_partition_makes_the_other_side_look_dead_and_healing_brings_it_back() -> None:
    town = FakeWorld(A, B, C)
    town.walls = {frozenset((A, C)), frozenset((B, C))}
    town.views.divided()
    town.until(11.0)
    assert (town.views.alive(A), town.views.alive(C)) == ((B,), ())
    town.walls.clear()
    town.views.healed()
    town.until(17.0)
    assert (town.views.alive(A), town.views.alive(C)) == ((B, C), (A, B))


def test_a_short_partition_is_not_noticed() -> None:
    town = FakeWorld(A, B)
    town.walls = {frozenset((A, B))}
    town.views.divided()
    town.until(2.0)
    town.walls.clear()
    town.views.healed()
    town.until(20.0)
    assert town.views.alive(A) == (B,)
    assert town.noticed == []


def test_the_delays_follow_from_the_seed() -> None:
    def noticed(seed: int) -> list[tuple[float, PeerId, tuple[PeerId, ...]]]:
        town = FakeWorld(A, B, C, seed=seed)
        town.down.add(C)
        town.views.crashed(C)
        town.until(20.0)
        return town.noticed

    assert noticed(1) == noticed(1)
    assert noticed(1) != noticed(2)


def test_a_joiner_learns_of_a_crash_in_the_moment_before_it_is_known() -> None:
    town = FakeWorld(A, B)
    town.views.arrived(C)
    town.down.add(B)
    town.views.crashed(B)
    town.until(town.costs.news)
    assert town.views.alive(C) == (A, B)
    town.until(11.0)
    assert town.views.alive(C) == (A,)


def test_a_joiner_learns_that_a_partition_healed_in_the_moment_before_it_is_known() -> None:
    town = FakeWorld(A, B)
    town.walls = {frozenset((B, C))}
    town.views.arrived(C)
    town.walls.clear()
    town.views.healed()
    town.until(11.0)
    assert town.views.alive(C) == (A, B)


def test_the_round_of_the_swarm_is_the_one_that_half_of_those_alive_have_begun() -> None:
    town = FakeWorld(A, B, C, D)
    for node, round in ((B, 5), (C, 2), (D, 7)):
        town.views.announce(node, round, 0.5)
    assert town.views.swarm_round(A) == 0  # nobody has heard of it yet
    town.until(1.0)
    assert town.views.swarm_round(A) == 5
    assert town.views.swarm_round(D) == 2  # of 0, 2 and 5
    town.down.add(B)
    town.views.crashed(B)
    town.until(20.0)
    assert town.views.swarm_round(A) == 2  # of 2 and 7


def test_news_that_comes_late_does_not_take_the_place_of_newer_news() -> None:
    town = FakeWorld(A, B)
    town.views.announce(B, 1, 5.0)
    town.views.announce(B, 2, 0.1)
    town.until(6.0)
    assert town.views.round_of(B) == 2
