"""The table of everybody else."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from pfl_node.membership.member import Member, State
from pfl_node.membership.roster import Roster


def one(number: int, state: State = State.ALIVE) -> Member:
    return Member(f"n{number:03}", f"node-{number}", f"10.0.0.1:{7000 + number}", state=state)


def roster(count: int, *, limit: int = 1000, neighbours: int | None = None) -> Roster:
    table = Roster("me", Random(1), limit=limit, neighbours=neighbours)
    for number in range(count):
        table.put(one(number))
    return table


def targets(table: Roster, count: int) -> list[str]:
    return [member.id for _ in range(count) if (member := table.next_target())]


def test_everybody_is_probed_once_before_anybody_is_probed_again() -> None:
    table = roster(10)
    first, second = targets(table, 10), targets(table, 10)
    assert len(set(first)) == len(set(second)) == 10
    assert first != second


def test_a_newcomer_is_probed_within_the_round_and_the_dead_are_not() -> None:
    table = roster(10)
    targets(table, 3)
    table.put(one(77))
    table.put(one(5, State.DEAD))
    rest = targets(table, 8)
    assert "n077" in rest
    assert one(5).id not in targets(table, 30)


def test_suspects_are_probed_so_that_they_can_refute() -> None:
    table = roster(3)
    table.put(one(1, State.SUSPECT))
    assert one(1).id in targets(table, 3)


def test_an_empty_table_has_nobody_to_probe() -> None:
    assert roster(0).next_target() is None
    assert roster(0).draw(3) == []


def test_drawn_members_are_different_and_present_and_never_the_excluded() -> None:
    for count in (1, 3, 4, 7, 8, 40):
        table = roster(count)
        table.put(one(0, State.DEAD))
        for _ in range(50):
            drawn = [member.id for member in table.draw(3, without=("n001",))]
            assert len(set(drawn)) == len(drawn) == min(3, max(count - 2, 0))
            assert not {"n000", "n001"} & set(drawn)


def test_with_neighbours_only_those_are_talked_to() -> None:
    table = roster(50, neighbours=8)
    assert len(set(targets(table, 100))) == 8
    assert {m.id for _ in range(50) for m in table.draw(3)} <= set(targets(table, 100))


def test_a_full_table_takes_nobody_new_but_still_learns_about_the_known() -> None:
    table = roster(5, limit=5)
    assert not table.put(one(6))
    assert table.put(one(1, State.DEAD))
    assert (len(table), table.present) == (5, 4)


def test_a_member_that_comes_and_goes_does_not_fill_the_queue() -> None:
    table = roster(3)
    for _ in range(1000):
        table.put(one(1, State.DEAD))
        table.put(one(1))
    assert len(table._queue) <= 3


def test_the_buried_are_unlisted_and_remembered_as_gone_until_their_time() -> None:
    table = roster(3)
    table.add_tombstone(replace(one(1, State.DEAD), incarnation=4), until=100.0)
    assert table.get("n001") is None
    tombstone = table.tombstone("n001", now=99.0)
    assert tombstone is not None
    assert (tombstone.state, tombstone.incarnation) == (State.DEAD, 4)
    assert table.tombstone("n001", now=100.0) is None
    assert table.tombs == 0


def test_the_oldest_tombs_make_room() -> None:
    table = roster(0, limit=3)
    for number in range(5):
        table.add_tombstone(one(number, State.LEFT), until=100.0)
    assert table.tombs == 3
    assert table.tombstone("n000", now=0.0) is None
    assert table.tombstone("n004", now=0.0) is not None
