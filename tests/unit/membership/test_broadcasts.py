"""Which rumours are told, and how often."""

from __future__ import annotations

from pfl_node.membership.broadcasts import Broadcasts
from pfl_node.membership.member import Member, State
from pfl_node.membership.packet import Rumor, rumor_bytes


def about(name: str, state: State = State.ALIVE) -> Rumor:
    return Rumor(Member(name, name, "10.0.0.1:7000", state=state))


PLENTY = 10_000


def names(rumors: list[Rumor]) -> list[str]:
    return [rumor.member.id for rumor in rumors]


def test_a_rumour_is_told_so_often_and_then_dropped() -> None:
    queue = Broadcasts()
    queue.put(about("a"))
    assert [names(queue.take(PLENTY, limit=3)) for _ in range(4)] == [["a"], ["a"], ["a"], []]
    assert len(queue) == 0


def test_those_told_least_come_first_and_of_those_the_newest() -> None:
    queue = Broadcasts()
    for name in "ab":
        queue.put(about(name))
    queue.take(PLENTY, limit=9)
    for name in "cd":
        queue.put(about(name))
    one = rumor_bytes(about("a"))
    assert names(queue.take(3 * one, limit=9)) == ["d", "c", "a"]


def test_newer_news_replaces_older_and_counts_anew() -> None:
    queue = Broadcasts()
    queue.put(about("a"))
    queue.take(PLENTY, limit=2)
    queue.put(about("a", State.DEAD))
    assert len(queue) == 1
    assert [r.member.state for r in queue.take(PLENTY, limit=2)] == [State.DEAD]
    assert len(queue.take(PLENTY, limit=2)) == 1
    assert len(queue) == 0


def test_no_packet_gets_more_bytes_than_it_has_room_for() -> None:
    queue = Broadcasts()
    for number in range(50):
        queue.put(about(f"node-{number}"))
    taken = queue.take(1000, limit=9)
    assert 0 < sum(map(rumor_bytes, taken)) <= 1000
    assert queue.take(10, limit=9) == []
    assert len(queue) == 50
