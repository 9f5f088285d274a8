"""Whom a member asks to dial it back, how often, and what it concludes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random

import pytest

from pfl_node.errors import PeerGone
from pfl_node.membership import reachability
from pfl_node.membership.member import Member, Reachability, Role
from pfl_node.membership.member_calls import DialBackAnswer
from pfl_node.membership.reachability import DialBackResult, ReachabilityMonitor, decide
from tests.unit.membership.local_swarm import until

DIRECT, UNREACHABLE, UNKNOWN = Reachability.DIRECT, Reachability.UNREACHABLE, Reachability.UNKNOWN
ME = Member("me", "me", "192.168.50.2:7946")
YES, NO = DialBackAnswer(True, "", 0.0), DialBackAnswer(False, "no answer within 2 s", 0.0)


class Others:
    """Members that answer as the test says; `asked` counts by name."""

    me = ME

    def __init__(self, **answers: DialBackAnswer | None) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def alive(self, *, role: Role | None = "node", run: str | None = None) -> Sequence[Member]:
        return [Member(f"id-{name}", name, name) for name in self.answers]

    async def dial_back(self, address: str, me: Member) -> DialBackAnswer:
        assert me is ME
        self.asked.append(address)
        answer = self.answers[address]
        if answer is None:
            raise PeerGone(address, "gone")
        return answer


def result(*, reached: bool) -> DialBackResult:
    return DialBackResult("id-north", "north", ME.address, reached, "" if reached else "no answer", 0.0, 0.0)


def test_one_that_reaches_me_is_enough_and_nobody_says_nothing() -> None:
    assert decide([]) is UNKNOWN
    assert decide([result(reached=False)]) is UNREACHABLE
    assert decide([result(reached=False), result(reached=True)]) is DIRECT


def test_the_operator_reads_who_cannot_reach_the_node_where_and_what_to_do() -> None:
    assert str(result(reached=False)) == (
        "north cannot reach you at 192.168.50.2:7946 (no answer): open the port, set advertise, or use a relay"
    )


def watched(others: Others, so: Callable[[list[Reachability], Others], bool]) -> list[Reachability]:
    """What the monitor decides until it is so."""

    async def scenario() -> list[Reachability]:
        found: list[Reachability] = []
        monitor = ReachabilityMonitor(
            others, others.dial_back, rng=Random(1), decided=lambda state, _: found.append(state)
        )
        monitor.start()
        await until(lambda: so(found, others))
        await monitor.close()
        return found

    return asyncio.run(scenario())


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RETRY", "RETRY_MOST", "RECHECK", "NO_ANSWER_RETRY"):
        monkeypatch.setattr(reachability, name, 0.001)


def test_at_most_three_are_asked_at_a_time() -> None:
    others = Others(**{f"n{n}": YES for n in range(9)})
    assert watched(others, lambda found, _: bool(found)) == [DIRECT]
    assert len(others.asked) == 3


@pytest.mark.usefixtures("quick")
def test_all_are_asked_in_turn() -> None:
    others = Others(**{f"n{n}": YES for n in range(9)})
    watched(others, lambda _, those: len(those.asked) >= 9)
    assert len(set(others.asked[:9])) == 9


@pytest.mark.usefixtures("quick")
def test_a_member_with_relays_in_any_case_compares_clocks_and_decides_nothing() -> None:
    async def scenario() -> None:
        others, found = Others(north=NO), list[Reachability]()
        monitor = ReachabilityMonitor(
            others, others.dial_back, rng=Random(1), decided=lambda state, _: found.append(state)
        )
        monitor.start(decides=False)
        await until(lambda: len(others.asked) > 2)
        await monitor.close()
        assert found == []
        assert monitor.state is UNKNOWN
        assert [result.clock_ahead for result in monitor.results.values()] == [0.0]

    asyncio.run(scenario())


@pytest.mark.usefixtures("quick")
def test_one_who_cannot_be_asked_says_nothing() -> None:
    others = Others(north=None)
    assert watched(others, lambda _, those: len(those.asked) >= 5) == []


@pytest.mark.usefixtures("quick")
def test_a_member_that_nobody_reaches_asks_again_until_one_does() -> None:
    others = Others(north=NO, east=NO)

    def so(found: list[Reachability], those: Others) -> bool:
        if len(those.asked) > 6:
            those.answers["east"] = YES
        return len(found) == 2

    assert watched(others, so) == [UNREACHABLE, DIRECT]


@pytest.mark.usefixtures("quick")
def test_one_failed_check_of_a_member_that_was_reached_is_not_enough() -> None:
    others = Others(north=YES)
    answers = iter([YES, NO, YES, NO, YES])

    async def flaky(address: str, me: Member) -> DialBackAnswer:
        others.answers["north"] = next(answers, YES)
        return await Others.dial_back(others, address, me)

    others.dial_back = flaky  # type: ignore[method-assign]
    assert watched(others, lambda _, those: len(those.asked) > 6) == [DIRECT]


@pytest.mark.usefixtures("quick")
def test_a_member_that_is_not_reached_any_more_says_so() -> None:
    others = Others(north=YES)

    def so(found: list[Reachability], those: Others) -> bool:
        those.answers["north"] = NO if found else YES
        return len(found) == 2

    assert watched(others, so) == [DIRECT, UNREACHABLE]


@pytest.mark.usefixtures("quick")
def test_a_member_that_left_is_forgotten() -> None:
    async def scenario() -> None:
        others = Others(north=YES)
        monitor = ReachabilityMonitor(others, others.dial_back, rng=Random(1), decided=lambda *_: None)
        await monitor.ask_some()
        assert set(monitor.results) == {"id-north"}
        others.answers.clear()
        await monitor.ask_some()
        assert monitor.results == {}

    asyncio.run(scenario())


def test_an_accusation_leads_to_a_check_but_not_to_many(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> int:
        others = Others(north=YES)
        monitor = ReachabilityMonitor(others, others.dial_back, rng=Random(1), decided=lambda *_: None)
        monitor.start()
        await until(lambda: monitor.state is DIRECT)
        for _ in range(5):
            monitor.accused()  # soon after a check
        await asyncio.sleep(0)
        assert len(others.asked) == 1
        monkeypatch.setattr(reachability, "RECHECK_AFTER_ACCUSATION", 0.0)
        monitor.accused()
        await until(lambda: len(others.asked) == 2)
        await monitor.close()
        return len(others.asked)

    assert asyncio.run(scenario()) == 2
