"""`random_weighted` against Karlsson & Onoszko 2021: section 3.3.2 and Algorithm 5, quoted test by test."""

from __future__ import annotations

from typing import Any

import pytest

from pfl_node.policies.random_pull import RandomPull
from pfl_node.policies.random_weighted import RandomWeighted
from pfl_node.steps import Ask, Average, Fetch, Linger, Peers, Publish, Report, Score, Train
from tests.drive_policy import A, B, C, Hand, core_of, make
from tests.pull_swarm import among, kinds, validated


def test_the_clients_are_selected_as_in_random() -> None:
    """Line 4; 3.3.2: "the clients are still selected randomly"; table 3.2: 20 of them."""
    assert RandomWeighted.select is RandomPull.select
    assert make(RandomWeighted).cfg.m_selected == 20


def test_the_selected_evaluate_my_model_then_theirs_are_received_then_mine_is_validated() -> None:
    """Lines 9-17, in this order."""
    hand = weighted()
    turn = [Peers, Ask, Fetch, Score, Average, Train, Report]
    assert kinds(hand) == [Train, Publish, *turn, Linger]


def test_those_asked_are_those_whose_models_are_received() -> None:
    """Lines 9 and 13: both C'."""
    hand = weighted(m_selected=2)
    (ask,), (fetch,) = hand.all(Ask), hand.all(Fetch)
    assert len(ask.peers) == 2
    assert list(fetch.peers) == list(ask.peers)
    assert core_of(ask.model) == 1


def test_my_own_weight_is_my_accuracy_on_the_local_validation_set() -> None:
    """Line 14."""
    (score,) = weighted().all(Score)
    assert (score.split, [core_of(m) for m in score.models]) == ("val", [1])


def test_the_weights_are_the_accuracies_normalised_to_one() -> None:
    """Line 17: a' / a with a the sum of all accuracies."""
    (average,) = weighted().all(Average)
    assert average.weights is not None
    weights = {core_of(m): w for m, w in zip(average.others, average.weights, strict=True)}
    assert weights == pytest.approx({10: 0.4 / 2, 20: 0.8 / 2, 30: 0.2 / 2})
    assert average.own == pytest.approx(0.6 / 2)
    assert average.own + sum(average.weights) == pytest.approx(1)


def test_the_average_is_the_weighted_sum() -> None:
    """Line 17."""
    hand = weighted()
    mean = (0.4 * 10 + 0.8 * 20 + 0.2 * 30 + 0.6 * 1) / 2
    assert core_of(hand.all(Report)[0].model) == pytest.approx(mean + 1)


def weighted(**options: Any) -> Hand:
    """The first round among three peers, with an own accuracy of 0.6."""
    hand = validated(among({A: 10, B: 20, C: 30}, {A: 0.4, B: 0.8, C: 0.2}), [0.6])
    hand.run(make(RandomWeighted, rounds=1, **options).main())
    return hand
