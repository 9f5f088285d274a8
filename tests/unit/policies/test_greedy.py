from __future__ import annotations

from math import nan
from typing import Any

import pytest

from pfl_node.policies.greedy import Greedy
from pfl_node.steps import Ask, Average, Fetch, Report, Score
from pfl_node.types import PeerId
from tests.drive_policy import A, B, C, D, Hand, Run, core_of, make, model
from tests.pull_swarm import among, right


@pytest.mark.parametrize("scored", ["mine", "theirs"])
@pytest.mark.parametrize("others", [[], [A], [A, B]])
def test_it_works_in_swarms_of_one_two_and_three(others: list[PeerId], scored: str) -> None:
    hand = among(dict.fromkeys(others, 1.0), dict.fromkeys(others, 0.5))
    hand.run(make(Greedy, rounds=2, scored=scored).main())
    assert [set(s.data["from"]) for s in hand.all(Report)] == [set(others)] * 2


def test_a_peer_that_does_not_answer_is_not_selected() -> None:
    assert chosen(among({A: 1, B: 2, C: 3}, {A: 0.1, C: 0.2}), m_selected=3) == [C, A]


def test_a_peer_that_answers_but_has_no_model_is_left_out_of_the_average() -> None:
    hand = among({B: 5}, {A: 0.9, B: 0.1}, also=[A])
    assert chosen(hand, m_selected=2) == [B]


def test_when_nobody_answers_it_trains_alone() -> None:
    policy, hand = make(Greedy, rounds=1), Hand([A, B])
    hand.run(policy.main())
    assert policy.model == model(2)


def test_an_accuracy_that_is_not_a_number_comes_last() -> None:
    told = {A: nan, B: 0.0, C: nan, D: 0.4}
    assert chosen(among(dict.fromkeys(told, 1.0), told), m_selected=2) == [D, B]


def test_by_loss_the_lowest_is_best_and_no_number_comes_last() -> None:
    hand = among(dict.fromkeys((A, B, C), 1.0))
    hand.scores = {A: right(0.9, loss=3), B: right(0.1, loss=nan), C: right(0.5, loss=2)}
    assert chosen(hand, m_selected=2, metric="loss") == [C, A]


def test_on_my_data_the_models_of_those_sampled_are_fetched_once_and_scored() -> None:
    hand = among({A: 5, B: 3, C: 9})
    assert chosen(hand, m_selected=2, metric="loss", scored="mine", score_samples=7) == [B, A]
    (fetch,), (score,) = hand.all(Fetch), hand.all(Score)
    assert set(fetch.peers) == {A, B, C}
    assert (score.split, score.samples, score.own_sample_each) == ("train", 7, False)
    assert [core_of(m) for m in hand.all(Average)[0].others] == [3, 5]
    assert hand.all(Ask) == []


def test_what_was_said_or_fetched_in_a_round_is_not_used_in_the_next() -> None:
    for scored in ("mine", "theirs"):
        policy, hand = make(Greedy, rounds=None, scored=scored), among({A: 5}, {A: 0.5})
        run = Run(policy.main(), hand)
        for _ in range(3):
            run.past(Report)
        assert len(hand.all(Ask if scored == "theirs" else Score)) == 3
        assert (policy.told, policy.here) == ({}, {})


def chosen(hand: Hand, **options: Any) -> list[PeerId]:
    """Whom it averages with in its first round."""
    hand.run(make(Greedy, rounds=1, m_sample=20, **options).main())
    (report,) = hand.all(Report)
    return list(report.data["from"])
