"""`random` against Karlsson & Onoszko 2021: section 3.3.1, Algorithm 1 and table 3.2. Each test quotes its
source."""

from __future__ import annotations

from collections import Counter

import pytest

from pfl_node.policies.random_pull import RandomPull
from pfl_node.steps import Average, Fetch, Linger, Peers, Publish, Report, Send, Train
from tests.drive_policy import A, B, C, Hand, Run, core_of, make, model
from tests.pull_swarm import among, kinds, peers


def test_the_default_is_to_select_20() -> None:
    """Table 3.2, the row of Random."""
    assert make(RandomPull).cfg.m_selected == 20


def test_a_node_trains_then_selects_averages_and_trains_round_after_round() -> None:
    """Lines 2-6. Publish and Report make the model available to peers."""
    hand = among({A: 1})
    hand.run(make(RandomPull, rounds=2).main())
    assert kinds(hand) == [Train, Publish, *[Peers, Fetch, Average, Train, Report] * 2, Linger]


def test_m_selected_different_clients_are_selected_at_random_in_each_round() -> None:
    """Line 4; 3.3.1: "a random subset of clients is selected at each round"."""
    hand, rounds = among(dict.fromkeys(peers(10), 0.0)), 600
    hand_fetches(hand, rounds)
    drawn = [f.peers for f in hand.all(Fetch)]
    assert {len(set(d)) for d in drawn} == {3}
    counts = Counter(p for d in drawn for p in d)
    assert all(counts[p] == pytest.approx(rounds * 3 / 10, rel=0.25) for p in peers(10))
    assert len({frozenset(d) for d in drawn}) > 100  # of 120


def test_a_client_receives_models_and_sends_none() -> None:
    """Line 8; 3.3.1: "the client receives models from a number of other clients"."""
    hand = among({A: 1, B: 2})
    hand.run(make(RandomPull).main())
    assert hand.all(Send) == []
    assert RandomPull.takes == ()
    assert not RandomPull.pushes()


def test_the_average_is_the_plain_mean_of_my_model_and_those_received() -> None:
    """Lines 9-10: each counts 1 / (m_selected + 1)."""
    policy, hand = make(RandomPull, rounds=1), among({A: 3, B: 5, C: 11})
    hand.run(policy.main())
    (average,) = hand.all(Average)
    assert (core_of(average.mine), sorted(core_of(m) for m in average.others)) == (1, [3, 5, 11])
    assert (average.weights, average.own) == (None, 1.0)
    assert policy.model == model(5 + 1)


def test_the_model_that_others_get_is_the_trained_one_never_the_average() -> None:
    """Line 6 comes before line 8 of any peer."""
    run = Run(make(RandomPull, rounds=2).main(), hand := among({A: 7}))
    run.finish()
    told = [core_of(s.model) for s in hand.asked if isinstance(s, (Publish, Report))]
    assert told == [1, 4 + 1, 6 + 1]


def hand_fetches(hand: Hand, rounds: int) -> None:
    run = Run(make(RandomPull, rounds=None, m_selected=3).main(), hand)
    for _ in range(rounds):
        run.past(Fetch)
