"""`greedy` against Karlsson & Onoszko 2021: section 3.3.2 and Algorithm 2. Each test quotes its source."""

from __future__ import annotations

from collections import Counter

import pytest

from pfl_node.policies.greedy import Greedy
from pfl_node.policies.random_pull import RandomPull
from pfl_node.steps import Ask, Average, Fetch, Linger, Peers, Publish, Report, Score, Train
from tests.drive_policy import A, B, C, D, Run, core_of, make
from tests.pull_swarm import among, kinds, peers


def test_the_default_is_4_of_20_by_the_accuracy_on_their_data() -> None:
    """Table 3.2 with chapter 5: "20 instead of 4 in the Greedy-based methods"; lines 12-13."""
    cfg = make(Greedy).cfg
    assert (cfg.m_selected, cfg.m_sample, cfg.metric, cfg.scored) == (4, 20, "accuracy", "theirs")


def test_it_is_random_with_another_selection() -> None:
    """3.3.2: "the main difference from Random is in line 4 in Algorithm 1"."""
    assert (Greedy.main, Greedy.average) == (RandomPull.main, RandomPull.average)
    hand = among({A: 1}, {A: 0.5})
    hand.run(make(Greedy, rounds=2).main())
    assert kinds(hand) == [Train, Publish, *[Peers, Ask, Fetch, Average, Train, Report] * 2, Linger]


def test_m_sample_random_clients_are_asked_to_evaluate_my_model() -> None:
    """Lines 9 and 12: "request that it evaluates w on its training data"."""
    hand = among(dict.fromkeys(peers(10), 0.0), dict.fromkeys(peers(10), 0.5))
    run = Run(make(Greedy, rounds=None, m_sample=4, m_selected=1).main(), hand)
    for _ in range(300):
        run.past(Report)
    asks = hand.all(Ask)
    assert {len(set(a.peers)) for a in asks} == {4}
    counts = Counter(p for a in asks for p in a.peers)
    assert all(counts[p] == pytest.approx(300 * 4 / 10, rel=0.3) for p in peers(10))
    models = [s.model for s in hand.asked if isinstance(s, (Publish, Report))]
    assert [a.model for a in asks] == models[:300]


def test_the_m_selected_with_the_highest_accuracies_are_fetched_and_no_other() -> None:
    """Line 15; 3.3.2: "the subset of clients that report the highest accuracies"."""
    hand = among({A: 1, B: 2, C: 3, D: 4}, {A: 0.3, B: 0.9, C: 0.1, D: 0.6})
    hand.run(make(Greedy, rounds=1, m_selected=2, m_sample=4).main())
    assert [f.peers for f in hand.all(Fetch)] == [[B, D]]
    assert [core_of(m) for m in hand.all(Average)[0].models] == [1, 2, 4]
    assert hand.all(Report)[0].data == {"from": [B, D]}


def test_my_own_data_are_not_looked_at() -> None:
    """Lines 11-14: the accuracies are the peers'."""
    hand = among({A: 1, B: 2}, {A: 0.3, B: 0.9})
    hand.run(make(Greedy, rounds=1).main())
    assert hand.all(Score) == []


def test_only_those_sampled_can_be_selected() -> None:
    """Line 15: the selected are a subset of the sampled."""
    all10 = peers(10)
    hand = among(dict.fromkeys(all10, 0.0), {p: i / 10 for i, p in enumerate(all10)})
    run = Run(make(Greedy, rounds=None, m_sample=3, m_selected=1).main(), hand)
    for _ in range(50):
        run.past(Report)
    for ask, fetch in zip(hand.all(Ask), hand.all(Fetch), strict=True):
        assert list(fetch.peers) == [max(ask.peers)]
