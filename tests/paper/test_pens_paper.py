"""`pens` against Onoszko et al. 2021: section 4.2 and Algorithm 2. Each test quotes its source."""

from __future__ import annotations

from typing import Any

import pytest

from pfl_node.policies.gossip import Gossip
from pfl_node.policies.neighbours import more_than_expected
from pfl_node.policies.pens import Pens
from pfl_node.steps import Average, Record, Report, Score, Send, Train
from pfl_node.types import PeerId
from tests.drive_policy import A, B, C, D, Hand, Run, core_of, losses, make, model, offer


def test_the_default_is_the_best_2_of_10_for_200_selections() -> None:
    """5.2: "for PENS n_sampled = 10 and m = 2"; 5.4: "T = 200 communication rounds"."""
    cfg = make(Pens).cfg
    assert (cfg.n_sampled, cfg.m, cfg.T, cfg.n_peers) == (10, 2, 200, 20)


def test_main_sends_to_a_random_peer_as_gossip_does() -> None:
    """Algorithm 2, lines 2-6, are those of Algorithm 1."""
    assert Pens.main is Gossip.main
    run = Run(make(Pens).main(), hand := Hand([A, B]))
    for _ in range(30):
        run.past(Send)
    assert {s.to[0] for s in hand.all(Send)} == {A, B}


def test_a_received_model_is_scored_by_its_loss_on_the_receivers_own_training_data() -> None:
    """Line 10; 4.2: "the loss of client model w_i on the training set of client j"."""
    policy, hand = searching(n_sampled=3, m=1)
    feed(policy, hand, (A, 7), (B, 8), (C, 9))
    (score,) = hand.all(Score)
    assert [core_of(m) for m in score.models] == [7, 8, 9]
    assert (score.split, score.samples, score.own_sample_each) == ("train", None, False)


def test_the_m_models_with_the_lowest_loss_are_merged_with_my_own_and_trained() -> None:
    """Lines 13-14; 4.2: "The top m best performing (lowest loss) clients are selected [...] aggregated"."""
    policy, hand = searching(n_sampled=4, m=2)
    feed(policy, hand, (A, 50), (B, 3), (C, 40), (D, 6))
    (merge,) = hand.all(Average)
    assert [core_of(m) for m in merge.models] == [0, 3, 6]
    assert [type(s) for s in hand.asked] == [Score, Average, Train, Report]
    assert policy.model == model(3 + 1)


def test_the_loss_decides_and_not_the_accuracy() -> None:
    policy, hand = searching(n_sampled=2, m=1)
    hand.answers[Score] = lambda s: losses(0.2, 0.1)
    feed(policy, hand, (A, 1), (B, 2))
    assert [core_of(m) for m in hand.all(Average)[0].models] == [0, 2]


def test_nothing_happens_before_n_sampled_models_came_and_the_count_begins_anew_afterwards() -> None:
    """Lines 12 and 15."""
    policy, hand = searching(n_sampled=3, m=1)
    feed(policy, hand, (A, 1), (B, 2))
    assert hand.asked == []
    feed(policy, hand, (C, 3), (A, 4), (B, 5))
    assert len(hand.all(Average)) == 1
    feed(policy, hand, (C, 6))
    assert len(hand.all(Average)) == 2


def test_after_t_selections_those_merged_with_more_than_expected_become_neighbours() -> None:
    """Lines 7 and 18-24; 4.2: "selected more than the expected amount of times"."""
    policy, hand = searching(n_sampled=3, m=1, T=2)
    feed(policy, hand, (A, 1), (B, 2), (C, 3))
    assert policy.neighbours is None
    feed(policy, hand, (A, 1), (B, 2), (C, 3))
    assert policy.neighbours == [A]
    (told,) = hand.all(Record)
    assert told.event == "neighbours"
    assert (told.data["ids"], told.data["picked"], told.data["seen"]) == ([A], {A: 2}, {A: 2, B: 2, C: 2})


@pytest.mark.parametrize(
    ("picked", "expected", "chosen"),
    [
        ({}, {}, []),
        ({"a": 1}, {"a": 1.0}, []),  # exactly as expected is not more
        ({"a": 2}, {"a": 1.0}, ["a"]),
        ({"a": 1, "b": 3}, {"a": 2.0, "b": 2.0, "c": 2.0}, ["b"]),
        ({"b": 3, "a": 3}, {"a": 2.9, "b": 2.9}, ["a", "b"]),  # in the order of their ids
        ({"a": 2}, {"a": sum([0.2] * 10)}, []),  # 1.9999999999999998: a rounding error does not count
        ({"a": 3}, {"a": sum([0.2] * 10)}, ["a"]),
    ],
)
def test_more_than_expected_as_a_table(picked: Any, expected: Any, chosen: list[str]) -> None:
    """Line 20: "if merged with i more than expected"."""
    assert more_than_expected(picked, expected) == chosen


def test_what_is_expected_is_m_of_n_sampled_for_every_time_a_peer_was_seen() -> None:
    """4.2: "if the sampling of clients would have been uniform"."""
    policy, hand = searching(n_sampled=4, m=1, T=100, rounds=None)
    feed(policy, hand, (A, 1), (A, 2), (B, 3), (C, 4))
    assert policy.expected == pytest.approx({A: 0.5, B: 0.25, C: 0.25})
    feed(policy, hand, (A, 1), (B, 2), (C, 3), (D, 4))
    assert policy.expected == pytest.approx({A: 0.75, B: 0.5, C: 0.5, D: 0.25})
    assert policy.seen == {A: 3, B: 2, C: 2, D: 1}


def test_in_step_2_models_go_to_neighbours_only() -> None:
    """4.2: "the gossip learning protocol (algorithm 1) is used for the set of selected neighbors"."""
    policy, hand = settled(neighbours=[A, C], strangers=[B, D])
    run = Run(policy.main(), hand)
    for _ in range(40):
        run.past(Send)
    assert {s.to[0] for s in hand.all(Send)} == {A, C}


def test_in_step_2_the_models_of_neighbours_only_are_merged_and_none_is_scored() -> None:
    policy, hand = settled(neighbours=[A, C], strangers=[B, D], n_peers=4)
    feed(policy, hand, (A, 4), (B, 100), (C, 8), (D, 100))
    assert [core_of(m) for m in hand.all(Average)[0].models] == [0, 4, 8]
    assert hand.all(Score) == []


def test_the_model_of_step_1_goes_on_into_step_2() -> None:
    policy, hand = searching(n_sampled=2, m=1, T=1, n_peers=1)
    feed(policy, hand, (A, 2), (B, 100))
    assert policy.model == model(1 + 1)
    feed(policy, hand, (A, 10))
    assert policy.model == model(6 + 1)
    assert [s.round for s in hand.all(Report)] == [0, 1]


def feed(policy: Pens, hand: Hand, *models: tuple[PeerId, float]) -> None:
    for sender, value in models:
        hand.run(policy.on_model(offer(sender, value)))


def searching(rounds: int | None = None, **options: Any) -> tuple[Pens, Hand]:
    """A node in step 1, past its first training."""
    policy = make(Pens, rounds=rounds, **options)
    policy.trained = True
    return policy, Hand([A, B, C, D])


def settled(neighbours: list[PeerId], strangers: list[PeerId], **options: Any) -> tuple[Pens, Hand]:
    """A node in step 2."""
    policy, hand = searching(**options)
    policy.neighbours, policy.strangers = neighbours, strangers
    return policy, hand
