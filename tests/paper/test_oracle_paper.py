"""`oracle` against Karlsson & Onoszko 2021: table 3.6 and section 3.5. Each test quotes its source."""

from __future__ import annotations

from pfl_node.policies.oracle import Oracle
from pfl_node.policies.random_pull import RandomPull
from pfl_node.steps import Average, Fetch, Publish, Report
from tests.drive_policy import Run, core_of, make
from tests.pull_swarm import among, peers

ALL = peers(10)
TAGS = {p: i % 2 for i, p in enumerate(ALL)}
VALUES = {p: 1000.0 * TAGS[p] for p in ALL}  # a model encodes its cluster


def test_it_is_random_where_each_client_only_communicates_within_its_cluster() -> None:
    """Table 3.6, the row of Oracle: not one model of another cluster in 100 rounds."""
    assert (Oracle.main, Oracle.select, Oracle.average) == (RandomPull.main, RandomPull.select, RandomPull.average)
    hand = among(VALUES, tags=TAGS)
    run = Run(make(Oracle, truth=1, m_selected=3, rounds=None).main(), hand)
    for _ in range(100):
        run.past(Report)
    assert {core_of(m) for s in hand.all(Average) for m in s.others} == {1000.0}
    assert {p for s in hand.all(Report) for p in s.data["from"]} == {p for p in ALL if TAGS[p] == 1}


def test_models_of_another_cluster_are_not_even_fetched() -> None:
    """3.5: "communicating with clients from the other data partition is detrimental". Heads encode clusters."""
    hand = among(VALUES, tags=TAGS)
    run = Run(make(Oracle, truth=0, rounds=None).main(), hand)
    for _ in range(10):
        run.past(Report)
    models = [p for f in hand.all(Fetch) if f.part == "model" for p in f.peers]
    assert {TAGS[p] for p in models} == {0}


def test_the_true_cluster_is_told_by_a_lab_and_goes_along_with_the_model() -> None:
    assert Oracle.oracular
    hand = among(VALUES, tags=TAGS)
    hand.run(make(Oracle, truth=1, rounds=2).main())
    assert [s.tag for s in hand.asked if isinstance(s, (Publish, Report))] == [1, 1, 1]
