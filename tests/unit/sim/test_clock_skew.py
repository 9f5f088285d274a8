"""Nodes with skewed clocks and with one-way links."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pfl_node.policies.base import Policy
from pfl_node.settings import Settings
from pfl_node.sim.event_loop import CLOCK, LocalTime, SkewedClock, VirtualLoop
from pfl_node.sim.faults import Crash, Cut, Delay, Partition, Skew
from pfl_node.steps import Fetch, Gather, Peers, Publish, Report, Send, Sleep
from tests.unit.sim.toy_swarms import A, B, C, ran

seconds = st.floats(0, 100)
skews = st.lists(
    st.builds(
        lambda rate, ahead, at, lasts: Skew(A, rate, ahead, at, at + lasts),
        st.floats(0.1, 10),
        st.floats(0, 50),
        seconds,
        st.floats(0.01, 50),
    ),
    max_size=4,
)


def test_a_clock_that_is_too_fast_shows_more_while_it_is() -> None:
    local = LocalTime([Skew(A, 2.0, 0.0, 10.0, 20.0)])
    assert [local.at(t) for t in (5.0, 10.0, 15.0, 20.0, 30.0)] == [5.0, 10.0, 20.0, 30.0, 40.0]
    assert [local.inverse(t) for t in (5.0, 20.0, 40.0)] == [5.0, 15.0, 30.0]


def test_a_clock_that_jumps_shows_every_time_between_at_the_moment_of_the_jump() -> None:
    local = LocalTime([Skew(A, 1.0, 30.0, 10.0)])
    assert [local.at(9.0), local.at(10.0)] == [9.0, 40.0]
    assert [local.inverse(t) for t in (10.0, 25.0, 40.0, 41.0)] == [10.0, 10.0, 10.0, 11.0]


@settings(max_examples=30, deadline=None)
@given(skews, seconds, seconds)
def test_no_clock_ever_goes_back(wrong: list[Skew], one: float, other: float) -> None:
    local = LocalTime(wrong)
    early, late = sorted((one, other))
    assert local.at(early) <= local.at(late) + 1e-9


@settings(max_examples=30, deadline=None)
@given(skews, seconds)
def test_a_timer_fires_when_the_clock_shows_its_time(wrong: list[Skew], after: float) -> None:
    loop = VirtualLoop()
    own = SkewedClock(LocalTime(wrong), lambda: loop.now)
    shown: list[float] = []

    async def go() -> float:
        CLOCK.set(own)
        due = loop.time() + after
        await asyncio.sleep(after)
        shown.append(loop.time())
        return due

    due = loop.run_until_complete(go())
    loop.close()
    assert shown[0] >= due
    jumps = sum(f.ahead for f in wrong)
    assert shown[0] <= due + jumps + 1e-6


class Sleeper(Policy):
    """Sleeps and records its local time."""

    async def main(self) -> None:
        for t in self.remaining():
            await Report(t, self.model, {"clock": await Sleep(10.0)})


def test_a_node_sleeps_by_its_own_clock(tmp_path: Path) -> None:
    done = ran(tmp_path, Sleeper, nodes=2, rounds=2, faults=[Skew(A, 2.0), Skew(B, 0.5, 100.0)])
    rounds = {(row["node"], row["round"]): (row["time"], row["clock"]) for row in done.of("round")}
    assert rounds[A, 0] == (pytest.approx(5.0, abs=0.1), pytest.approx(10.0, abs=0.1))
    assert rounds[B, 0] == (pytest.approx(20.0, abs=0.1), pytest.approx(110.0, abs=0.1))
    assert rounds[B, 1][0] == pytest.approx(40.0, abs=0.2)


class Waiter(Policy):
    """Waits for models that no peer sends."""

    lockstep = True

    async def main(self) -> None:
        for t in self.remaining():
            await Gather(await Peers(), t)
            await Report(t, self.model)


def test_patience_is_measured_by_the_own_clock(tmp_path: Path) -> None:
    done = ran(tmp_path, Waiter, nodes=2, rounds=1, faults=[Skew(A, 0.5)])
    patience = Settings().round.patience
    assert done.of("round", B)[0]["time"] == pytest.approx(patience, abs=0.1)
    # B leaves then, which ends the wait; otherwise it would take twice the patience
    assert patience < done.of("round", A)[0]["time"] < 2 * patience


class Teller(Policy):
    """The first sends to the second, which records the offers."""

    lockstep = True

    async def main(self) -> None:
        for t in self.remaining():
            await Sleep(1.0)
            peers = await Peers()
            taken = await Send([p for p in peers if p > self.me], self.model, round=t)
            offers = await Gather([p for p in peers if p < self.me], t)
            await Report(t, self.model, {"taken": taken, "got": [o.sender for o in offers]})


def test_a_model_whose_receipt_is_cut_off_is_taken_and_not_acknowledged(tmp_path: Path) -> None:
    done = ran(tmp_path, Teller, nodes=2, rounds=1, faults=[Cut(0.0, frozenset([B]), frozenset([A]), 30.0)])
    assert done.of("round", A)[0]["taken"] == []
    assert done.of("round", B)[0]["got"] == [A]


def test_a_model_that_is_cut_off_is_lost(tmp_path: Path) -> None:
    done = ran(tmp_path, Teller, nodes=2, rounds=1, faults=[Cut(0.0, frozenset([A]), frozenset([B]), 30.0)])
    assert done.of("round", A)[0]["taken"] == []
    assert done.of("round", B)[0]["got"] == []
    assert len(done.of("lost", A)) == 1


def test_a_call_on_a_slow_line_is_given_up_at_its_deadline(tmp_path: Path) -> None:
    late, later = (ran(tmp_path, Teller, nodes=2, rounds=1, faults=[Delay(s)]) for s in (6.0, 60.0))
    deadline = Settings().wire.base_timeout
    for done in (late, later):
        assert done.of("round", A)[0]["time"] == pytest.approx(1.0 + deadline, abs=0.1)
        assert done.of("round", A)[0]["taken"] == []
    assert [len(done.of("taken", B)) for done in (late, later)] == [1, 0]


class Long(Policy):
    """Records its live peers every second, and those whose model it can fetch."""

    async def main(self) -> None:
        await Publish(self.model, 0)
        for t in self.remaining():
            await Sleep(1.0)
            peers = await Peers()
            got = [o.sender for o in await Fetch(peers)]
            await Report(t, self.model, {"peers": peers, "got": got})


def test_probes_find_a_way_around_one_link_and_models_do_not(tmp_path: Path) -> None:
    both = Partition(0.0, (frozenset([A]), frozenset([B])), 60.0)
    cut = Cut(0.0, frozenset([A]), frozenset([B]), 60.0)
    apart = ran(tmp_path, Long, nodes=3, rounds=14, faults=[both])
    oneway = ran(tmp_path, Long, nodes=3, rounds=14, faults=[cut])
    assert apart.of("round", A)[-1]["peers"] == []
    assert oneway.of("round", A)[1]["peers"] == [B, C]  # at 12 s: the first fetch timed out
    assert oneway.of("round", A)[0]["got"] == [C]


def test_with_the_third_goes_the_way_around(tmp_path: Path) -> None:
    cut = Cut(0.0, frozenset([A]), frozenset([B]), 60.0)
    rows = ran(tmp_path, Long, nodes=3, rounds=20, faults=[cut, Crash(3.0, C)]).of("round", A)
    assert B in rows[0]["peers"]
    assert next(r for r in rows if r["time"] > 26)["peers"] == []  # asked for 11 s earlier at most


def test_a_node_that_nobody_hears_is_believed_dead_until_it_is_heard_again(tmp_path: Path) -> None:
    mute = Cut(0.0, frozenset([A]), frozenset([B, C]), 15.0)
    rows = ran(tmp_path, Long, nodes=3, rounds=40, faults=[mute]).of("round", B)
    assert A not in next(r for r in rows if r["time"] > 12)["peers"]
    assert A in next(r for r in rows if r["time"] > 21)["peers"]


def test_a_fast_clock_notices_a_death_sooner(tmp_path: Path) -> None:
    rows = ran(tmp_path, Long, nodes=3, rounds=40, faults=[Crash(0.5, C), Skew(A, 10.0)]).of("round")
    missed = {n: next(r["time"] for r in rows if r["node"] == n and C not in r["peers"]) for n in (A, B)}
    assert missed[A] < 2.0
    assert missed[B] > 5.0
