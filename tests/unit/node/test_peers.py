"""The peers of a run, from the membership."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from pfl_node.membership.member import Member, Reachability, Seal, State
from pfl_node.membership.member_events import Joined
from pfl_node.membership.run_members import RunMembers
from pfl_node.node.notifier import Notifier
from pfl_node.node.peers import RunPeers
from pfl_node.settings import StartSettings
from pfl_node.sim.event_loop import VirtualLoop
from pfl_node.types import PeerId


def member(id: str, round: int = 0, *, run: str = "r", state: State = State.ALIVE) -> Member:
    return Member(id=id, name=id, address=f"{id}:1", role="node", run=run, round=round, state=state)


@dataclass
class FakeMembers:
    """A membership with a fixed list of members."""

    rows: list[Member]
    announced: list[int] = field(default_factory=list)
    me: Member = field(default_factory=lambda: member("me"))
    answers: dict[str, int] = field(default_factory=dict)  # what members say when they are asked
    asked: list[str] = field(default_factory=list)

    def members(self) -> list[Member]:
        return self.rows

    def get(self, id: str) -> Member | None:
        return next((m for m in self.rows if m.id == id), None)

    def ask(self, members: Iterable[str]) -> None:
        self.asked = list(members)
        self.rows = [replace(m, round=self.answers.get(m.id, m.round)) for m in self.rows]

    def heard(self) -> set[str]:
        return set(self.answers)

    def set_round(self, round: int) -> None:
        self.announced.append(round)


def peers(*rows: Member, rounds: int | None = 5) -> tuple[RunPeers, FakeMembers]:
    table: Any = FakeMembers(list(rows))
    return RunPeers(members_of(table, rounds), rounds), table


def members_of(table: Any, rounds: int | None) -> RunMembers:
    return RunMembers(table, run="r", rounds=rounds)


def in_virtual_time(work: Coroutine[Any, Any, int]) -> int:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def test_a_newcomer_begins_where_peers_say_they_are_themselves() -> None:
    table: Any = FakeMembers(
        [member("a", 9), member("b", 1 << 52), member("c", 1 << 52)], answers={"a": 10, "b": 11}
    )
    assert in_virtual_time(members_of(table, 5).swarm_round()) == 10
    assert sorted(table.asked) == ["a", "b", "c"]


def test_a_newcomer_does_not_follow_the_few_that_answer() -> None:
    """Less than half: the others may be slow, and those that were quick may lie."""
    rows = [member(name, 50) for name in "abcde"]
    table: Any = FakeMembers(rows, answers={"a": 1 << 52, "b": 1 << 52})
    assert in_virtual_time(members_of(table, 5).swarm_round()) == 0


def test_a_signed_round_counts_like_an_answer() -> None:
    seal = Seal(0, b"", b"signature")
    rows = [replace(member(name, 50), seal=seal) for name in "abcde"]
    table: Any = FakeMembers(rows, answers={"a": 1 << 52, "b": 51})
    assert in_virtual_time(members_of(table, 5).swarm_round()) == 50


def test_those_alive_in_my_run_have_an_address() -> None:
    others, _ = peers(member("a"), member("b", run="other"), member("c", state=State.DEAD))
    assert others() == {"a": "a:1"}


def test_a_peer_that_nobody_can_connect_to_is_left_out_but_present() -> None:
    behind_nat = replace(member("b"), reachability=Reachability.UNREACHABLE)
    members = members_of(FakeMembers([member("a"), behind_nat]), None)
    assert members.alive() == {"a": "a:1"}
    assert members.everyone() == ("a",)
    assert members.left_out() == {"b": behind_nat}
    assert members.present(PeerId("b"))
    assert not members.present(PeerId("c"))


def test_a_peer_that_this_node_cannot_dial_is_left_out_until_it_can() -> None:
    rows: Any = FakeMembers([member("a"), member("b")])
    dialled = {"a"}
    members = RunMembers(rows, run="r", rounds=None, reaches=lambda m: m.id in dialled)
    assert members.alive() == {"a": "a:1"}
    dialled.add("b")
    members.on_event(Joined(member("b")))
    members.refresh()
    assert members.alive() == {"a": "a:1", "b": "b:1"}


def test_who_left_after_its_last_round_is_finished_and_who_left_before_is_not() -> None:
    others, _ = peers(member("a", 5, state=State.LEFT), member("b", 3, state=State.LEFT), member("c", 5))
    assert others.everyone(finished=True) == ("a", "c")
    assert others.everyone(finished=False) == ("c",)
    assert peers(member("a", 5, state=State.LEFT), rounds=None)[0].everyone(finished=True) == ()


def test_work_is_left_while_somebody_alive_is_before_the_last_round() -> None:
    assert peers(member("a", 4), member("b", 5))[0].unfinished()
    assert not peers(member("a", 5), member("b", 2, state=State.DEAD))[0].unfinished()
    assert not peers()[0].unfinished()


def test_without_an_end_there_is_always_work() -> None:
    others, table = peers(member("a", 99), rounds=None)
    assert others.unfinished()
    others.announce_finished()
    assert table.announced == []


def test_who_is_done_says_so_with_the_last_round() -> None:
    others, table = peers(member("a"))
    others.announce_round(2)
    others.announce_finished()
    assert table.announced == [2, 5]


def test_who_comes_when_all_is_done_is_waited_for() -> None:
    others, table = peers(member("a", 5))
    others.announce_start(5)
    assert table.announced == [4]


def test_those_who_are_done_and_gone_count_as_seen() -> None:
    others, _ = peers(member("a", 5, state=State.LEFT), member("b", 2, state=State.LEFT), member("c", 1))
    assert others.seen() == 2


def test_a_start_is_as_soon_as_there_are_enough_and_at_once_where_nobody_may_wait() -> None:
    async def scene() -> None:
        others, _ = peers(member("a"))
        await others.gather(StartSettings(peers=1, wait=1e6), Notifier())
        await others.gather(StartSettings(peers=2, calm=1e6, wait=0), Notifier())

    asyncio.run(scene())


def test_while_nodes_keep_coming_a_start_waits_unless_they_have_begun() -> None:
    async def scene() -> None:
        notifier, table = Notifier(), FakeMembers([member("a")])
        members = members_of(table, 5)
        start = asyncio.create_task(
            RunPeers(members, 5).gather(StartSettings(peers=1, calm=1e6, wait=1e7), notifier)
        )

        async def comes(who: Member) -> None:
            table.rows.append(who)
            members.on_event(Joined(who))
            await asyncio.sleep(0)
            notifier.notify("members")
            await asyncio.sleep(0)

        await asyncio.sleep(0)
        await comes(member("b"))
        assert not start.done()
        await comes(member("c", 3))
        await asyncio.wait_for(start, 30)

    asyncio.run(scene())


def test_a_start_comes_when_nobody_new_has_come_for_a_while() -> None:
    others, _ = peers(member("a"))
    asyncio.run(asyncio.wait_for(others.gather(StartSettings(peers=1, calm=0.01, wait=1e6), Notifier()), 30))
