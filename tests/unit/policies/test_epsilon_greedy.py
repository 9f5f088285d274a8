from __future__ import annotations

import pytest

from pfl_node.policies.epsilon_greedy import EpsilonGreedy
from pfl_node.steps import Fetch, Report
from pfl_node.types import PeerId
from tests.drive_policy import A, B, C, Hand, make, model
from tests.pull_swarm import among


@pytest.mark.parametrize("scored", ["mine", "theirs"])
@pytest.mark.parametrize("others", [[], [A], [A, B], [A, B, C]])
def test_it_works_in_small_swarms(others: list[PeerId], scored: str) -> None:
    hand = among(dict.fromkeys(others, 1.0), dict.fromkeys(others, 0.5))
    hand.run(make(EpsilonGreedy, rounds=5, eps=1, scored=scored).main())
    assert [set(s.data["from"]) for s in hand.all(Report)] == [set(others)] * 5


def test_with_nobody_to_swap_for_all_stay() -> None:
    hand = among({A: 1, B: 2}, {A: 0.5, B: 0.6})
    hand.run(make(EpsilonGreedy, rounds=10, m_selected=2, m_sample=2, eps=1).main())
    assert {frozenset(f.peers) for f in hand.all(Fetch)} == {frozenset((A, B))}


def test_a_silent_peer_does_not_come_in_by_a_swap() -> None:
    hand = among({A: 1, B: 2, C: 3}, {A: 0.5, B: 0.6})
    hand.run(make(EpsilonGreedy, rounds=30, m_selected=1, m_sample=3, eps=1).main())
    assert {p for f in hand.all(Fetch) for p in f.peers} == {A, B}


def test_when_nobody_answers_it_trains_alone() -> None:
    policy, hand = make(EpsilonGreedy, rounds=1), Hand([A, B])
    hand.run(policy.main())
    assert policy.model == model(2)


def test_on_my_data_a_model_that_came_in_by_a_swap_is_not_fetched_again() -> None:
    hand = among({A: 1, B: 2, C: 3})
    hand.run(make(EpsilonGreedy, rounds=10, m_selected=1, m_sample=3, eps=1, scored="mine").main())
    assert len(hand.all(Fetch)) == 10
