from __future__ import annotations

import pytest

from pfl_node.policies.oracle import Oracle
from pfl_node.steps import Fetch, Record, Report
from pfl_node.types import PeerId
from tests.drive_policy import A, B, C, D, Run, make, model, offer
from tests.pull_swarm import among


@pytest.mark.parametrize("others", [[], [A], [A, B]])
def test_it_works_in_swarms_of_one_two_and_three(others: list[PeerId]) -> None:
    hand = among(dict.fromkeys(others, 1.0))
    hand.run(make(Oracle, rounds=2, truth=0).main())
    assert [set(s.data["from"]) for s in hand.all(Report)] == [set(others)] * 2


def test_alone_in_its_cluster_a_node_trains_alone() -> None:
    policy, hand = make(Oracle, rounds=2, truth=1), among({A: 50, B: 50})
    hand.run(policy.main())
    assert policy.model == model(3)
    assert hand.all(Record) == []


def test_a_peers_cluster_is_asked_once_with_its_head() -> None:
    hand = among({A: 1, B: 2}, tags={B: 1})
    hand.run(make(Oracle, rounds=5, truth=1).main())
    assert [list(f.peers) for f in hand.all(Fetch) if f.part == "head"] == [[A, B]]


def test_one_that_has_not_published_is_asked_again_and_not_used_before_it_tells() -> None:
    run = Run(make(Oracle, rounds=None, truth=1).main(), hand := among({A: 1}, tags={A: 1}, also=[B]))
    run.past(Report)
    hand.served[B] = offer(B, 5, tag=1)
    run.past(Report)
    run.past(Report)
    assert [list(f.peers) for f in hand.all(Fetch) if f.part == "head"] == [[A, B], [B]]
    assert [set(s.data["from"]) for s in hand.all(Report)] == [{A}, {A, B}, {A, B}]


def test_the_neighbours_are_told_when_they_change() -> None:
    run = Run(make(Oracle, rounds=None, truth=1).main(), hand := among({A: 1, C: 1}, tags={A: 1}, also=[B, D]))
    for news in (None, B, D, None):
        if news:
            hand.served[news] = offer(news, 5, tag=1 if news == B else 0)
        run.past(Report)
    assert [(s.event, s.data["ids"]) for s in hand.all(Record)] == [("neighbours", [A]), ("neighbours", [A, B])]


def test_a_peer_that_is_gone_is_not_fetched_but_remembered() -> None:
    run = Run(make(Oracle, rounds=None, truth=0).main(), hand := among({A: 1, B: 1}))
    run.past(Report)
    hand.peers = (B,)
    run.past(Report)
    hand.peers = (A, B)
    run.past(Report)
    assert [set(s.data["from"]) for s in hand.all(Report)] == [{A, B}, {B}, {A, B}]
    assert len([f for f in hand.all(Fetch) if f.part == "head"]) == 1


def test_a_restart_keeps_what_the_others_said() -> None:
    before = make(Oracle, rounds=None, truth=1)
    Run(before.main(), among({A: 1, B: 2}, tags={A: 1})).to(Report)
    after, hand = make(Oracle, rounds=None, truth=1), among({A: 1, B: 2}, tags={A: 1})
    after.restore(before.snapshot())
    Run(after.main(), hand).to(Report)
    assert [(f.peers, f.part) for f in hand.all(Fetch)] == [([A], "model")]
