"""Deadlines in simulated swarms: how long nodes wait for each peer, and what happens to late models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pfl_node.policies import load_policy
from pfl_node.policies.base import Policy
from pfl_node.settings import Settings
from pfl_node.sim.costs import Costs
from pfl_node.sim.faults import Crash, Cut, Fault, Loss, Partition, Slow, node_ids
from pfl_node.steps import Average, Gather, Peers, Report, Send, Train
from tests.unit.sim.toy_swarms import A, B, C, Ran, ran

ROUND = 1.0  # seconds of training


class InStep(Policy):
    """One second of training, then an exchange with all peers; late models are used."""

    lockstep = True
    late = True

    async def main(self) -> None:
        for t in self.remaining():
            self.model = await Train(self.model, steps=100)
            peers = await Peers()
            await Send(peers, self.model, round=t)
            offers = await Gather(peers, t)
            self.model = await Average(self.model, [o.model for o in offers])
            await Report(t, self.model, {"got": [[o.sender, o.round] for o in offers]})


def go(folder: Path, faults: Sequence[Fault] = (), rounds: int = 12, **waiting: Any) -> Ran:
    return ran(folder, InStep, rounds=rounds, faults=faults, settings=Settings.model_validate({"round": waiting}))


def given_up(run: Ran) -> list[tuple[int, list[str], float]]:
    return [(r["round"], r["peers"], r["seconds"]) for r in run.of("given_up", A)]


def lengths(run: Ran) -> list[float]:
    times = [r["time"] for r in run.of("round", A)]
    return [round(after - before, 1) for before, after in zip([0.0, *times], times, strict=False)]


def test_where_nobody_is_late_nobody_is_given_up(tmp_path: Path) -> None:
    assert given_up(go(tmp_path)) == []


def test_a_peer_that_stops_sending_costs_two_short_deadlines_and_then_nothing(tmp_path: Path) -> None:
    """The peer used to need 1 s, so its first deadline is 2 s after our own model, 3 s in all. The next one is
    twice as long, and then nodes no longer wait for it."""
    run = go(tmp_path, [Slow(C, 300.0, at=5.5, until=20.0)])
    assert given_up(run) == [(6, [C], 2.0), (7, [C], pytest.approx(5.0, abs=0.1))]
    assert lengths(run)[8:] == [ROUND] * 4


def test_before_enough_is_known_the_longest_deadline_holds(tmp_path: Path) -> None:
    run = go(tmp_path, [Slow(C, 300.0, at=1.5, until=20.0)], rounds=6, patience=7)
    assert [seconds for _, _, seconds in given_up(run)] == [7.0, 7.0]


def test_a_fixed_deadline_is_one_whose_least_is_its_most(tmp_path: Path) -> None:
    run = go(tmp_path, [Slow(C, 300.0, at=5.5, until=20.0)], patience=7, least=7)
    assert [seconds for _, _, seconds in given_up(run)] == [7.0, 7.0]


def test_a_deadline_that_became_too_short_for_all_the_others_grows_at_once(tmp_path: Path) -> None:
    run = go(tmp_path, [Slow(B, 6.0, at=5.5), Slow(C, 6.0, at=5.5)], rounds=20)
    assert [(round, peers) for round, peers, _ in given_up(run)] == [(6, [B, C])]
    assert run.of("round", A)[-1]["got"] == [[B, 19], [C, 19]]


def test_no_round_waits_longer_than_its_deadline(tmp_path: Path) -> None:
    run = go(tmp_path, [Loss(0.2), Slow(B, 4.0, 4.0, 30.0), Crash(9.0, C)], rounds=30, patience=5, least=1)
    assert all(seconds <= 5.001 for _, _, seconds in given_up(run))


def test_what_pushes_wait_in_vain_is_part_of_the_deadline(tmp_path: Path) -> None:
    """The push to C, whose usual time is unknown, fails after 5 s, in which the model of C could have arrived."""
    cut = [Cut(0.5, frozenset({here}), frozenset({there})) for here, there in ((A, C), (C, A))]
    run = go(tmp_path, cut, rounds=3, patience=12)
    [(first, peers, seconds), *_] = given_up(run)
    assert (first, peers) == (0, [C])
    assert seconds == pytest.approx(7.0, abs=0.1)
    assert lengths(run)[0] == pytest.approx(ROUND + 12, abs=0.1)


def test_one_that_can_never_be_called_does_not_hold_up_every_round(tmp_path: Path) -> None:
    """A and C cannot connect; B reaches both. Each push between A and C times out after 5 s, which also delays
    B."""
    run = go(tmp_path, [Cut(0.0, frozenset({a}), frozenset({b})) for a, b in ((A, C), (C, A))])
    assert lengths(run)[0] == pytest.approx(ROUND + 10, abs=0.1)
    assert max(lengths(run)[-7:]) == pytest.approx(ROUND + 2, abs=0.1)
    assert lengths(run)[-7:].count(ROUND) >= 4
    assert run.of("round", A)[-1]["got"] == [[B, 11]]


def test_one_whose_receipts_are_lost_does_not_hold_up_every_round(tmp_path: Path) -> None:
    """The models of C arrive at A, but the receipts do not arrive at C, for which the push is still pending."""
    run = go(tmp_path, [Cut(0.0, frozenset({A}), frozenset({C}))])
    assert min(lengths(run)[-2:]) == pytest.approx(ROUND + 2, abs=0.1)
    assert max(lengths(run)) <= ROUND + 10.1
    assert run.of("round", A)[-2]["got"] == [[B, 10], [C, 10]]


def test_those_left_behind_do_not_wait_for_each_other_on_their_way(tmp_path: Path) -> None:
    """Three slow nodes are partitioned from the others; then B is back while C still trains."""
    few, many = node_ids(8)[:3], node_ids(8)[3:]
    slow = [Slow(p, times, at=5.5, until=65.5) for p, times in zip(few, (5.0, 7.0, 9.0), strict=True)]
    apart = Partition(5.5, (frozenset(few), frozenset(many)), until=65.5)
    run = ran(tmp_path, InStep, nodes=8, rounds=70, faults=[apart, *slow])
    ended = {p: {r["round"]: r["time"] for r in run.of("round", p)} for p in (B, C)}
    assert [r for r in ended[B] if 65.5 < ended[B][r] < ended[C][12]] == [12, 29]
    assert ended[B][46] - ended[B][12] == pytest.approx(2 * ROUND, abs=0.1)


def test_a_late_model_is_taken_and_gives_way_to_a_newer_one_of_its_sender(tmp_path: Path) -> None:
    run = go(tmp_path, [Slow(C, 3.5, at=5.5, until=6.5)])
    assert given_up(run) == [(6, [C], 2.0)]
    got = {r["round"]: r["got"] for r in run.of("round", A)}
    assert got[6] == [[B, 6]]
    assert got[7] == [[B, 7], [C, 7]]
    assert run.swarm.refused() == {}


def test_a_late_model_stands_in_for_one_that_does_not_come(tmp_path: Path) -> None:
    run = go(tmp_path, [Slow(C, 3.5, at=5.5, until=6.5), Slow(C, 300.0, at=9.0, until=20.0)])
    got = {r["round"]: r["got"] for r in run.of("round", A)}
    assert got[7] == [[B, 7], [C, 6]]
    assert got[8] == [[B, 8]]


def test_without_staleness_what_comes_late_is_refused(tmp_path: Path) -> None:
    run = go(tmp_path, [Slow(C, 3.5, at=5.5, until=6.5), Slow(C, 300.0, at=9.0, until=20.0)], staleness=0)
    assert run.of("round", A)[7]["got"] == [[B, 7]]
    assert run.swarm.refused()["stale_round"] >= 1


def test_with_a_quorum_the_slow_are_not_waited_for_and_not_called_given_up(tmp_path: Path) -> None:
    run = go(tmp_path, [Slow(C, 5.0)], quorum=0.5)
    assert given_up(run) == []
    assert lengths(run)[:6] == [ROUND] * 6
    whole = go(tmp_path, [Slow(C, 5.0)], rounds=3)
    assert lengths(whole) == [5 * ROUND] * 3


def test_a_lost_push_holds_up_nobody_who_knows_how_long_a_push_takes(tmp_path: Path) -> None:
    run = go(tmp_path, [Loss(1.0, at=6.5, until=7.5)], rounds=10)
    assert max(lengths(run)) < 10  # the call's own deadline is 10 s
    assert run.of("round", A)[-1]["got"] == [[B, 9], [C, 9]]


@pytest.mark.parametrize("policy", ["el", "dpsgd", "facade", "fedavg"])
def test_where_nothing_is_late_deadlines_change_no_byte(tmp_path: Path, policy: str) -> None:
    """Without faults the journal is the same with fixed and adaptive deadlines, with and without late models."""

    def text(**waiting: Any) -> bytes:
        settings = Settings.model_validate({"train": {"steps": 200}, "round": waiting})
        slow_and_quick = Costs(speeds=(0.6, 1.6))
        return ran(
            tmp_path, load_policy(policy), nodes=10, rounds=15, settings=settings, costs=slow_and_quick
        ).text

    assert text() == text(least=10, staleness=0) == text(patience=100, staleness=3)
