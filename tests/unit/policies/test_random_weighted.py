from __future__ import annotations

from math import nan

import pytest

from pfl_node.policies.random_weighted import RandomWeighted
from pfl_node.steps import Average, Fetch, Report
from pfl_node.types import PeerId
from tests.drive_policy import A, B, C, Hand, core_of, make, model
from tests.pull_swarm import among, validated


@pytest.mark.parametrize("others", [[], [A], [A, B]])
def test_it_works_in_swarms_of_one_two_and_three(others: list[PeerId]) -> None:
    hand = validated(among(dict.fromkeys(others, 1.0), dict.fromkeys(others, 0.5)), [0.5])
    hand.run(make(RandomWeighted, rounds=2).main())
    assert [set(s.data["from"]) for s in hand.all(Report)] == [set(others)] * 2


@pytest.mark.parametrize("accuracy", [nan, 0.0])
def test_an_accuracy_of_nothing_gets_no_weight_and_its_model_does_not_travel(accuracy: float) -> None:
    average, hand = averaged(among({A: 9, B: 5}, {A: accuracy, B: 0.6}), own=0.2)
    assert [f.peers for f in hand.all(Fetch)] == [[B]]
    assert average.weights == pytest.approx([0.75])
    assert average.own == pytest.approx(0.25)


def test_a_peer_that_does_not_answer_gets_no_weight() -> None:
    average, hand = averaged(among({A: 9, B: 5}, {B: 0.6}), own=0.6)
    assert [core_of(m) for m in average.others] == [5]
    assert hand.all(Report)[0].data == {"from": [B]}


def test_a_peer_that_answers_but_has_no_model_does_not_count_in_the_sum() -> None:
    average, _ = averaged(among({B: 5}, {A: 0.9, B: 0.6}, also=[A]), own=0.2)
    assert average.weights == pytest.approx([0.75])


def test_an_own_accuracy_that_is_not_a_number_gets_no_weight() -> None:
    average, hand = averaged(among({A: 9}, {A: 0.5}), own=nan)
    assert (average.own, average.weights) == (0, [1])
    assert hand.all(Report)[0].model == model(9 + 1)


@pytest.mark.parametrize("own", [nan, 0.0, 0.5])
def test_when_nobody_answers_my_model_stays(own: float) -> None:
    _, hand = averaged(among({}, also=[A, B, C]), own=own)
    assert hand.all(Report)[0].model == model(2)


def averaged(hand: Hand, own: float) -> tuple[Average, Hand]:
    """The average of a first round."""
    validated(hand, [own]).run(make(RandomWeighted, rounds=1).main())
    return hand.all(Average)[0], hand
