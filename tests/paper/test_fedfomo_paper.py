"""`fedfomo` against Zhang et al. 2021, "Personalized Federated Learning with First Order Model Optimization"
(ICLR, arXiv 2012.08565), as in the authors' code. Each test names its source."""

from __future__ import annotations

from collections import Counter
from math import inf, nan, sqrt
from typing import Any

import pytest

from pfl_node.policies.fedfomo import FedFomo, weight
from pfl_node.steps import Average, Fetch, Fresh, Publish, Report, Score, Train
from pfl_node.types import Eval, PeerId
from tests.drive_policy import A, B, C, D, Hand, core_of, make, model, offer


def played(goal: float, rounds: int = 1, **options: Any) -> tuple[FedFomo, Hand]:
    """The loss of a model is the distance of its core to the goal; training adds 1."""
    policy, hand = make(FedFomo, rounds=rounds, **options), Hand([A, B])
    hand.answers[Fresh] = lambda _: model(0)
    hand.answers[Score] = lambda s: tuple(Eval(abs(goal - core_of(m)), 0.0, 1) for m in s.models)
    hand.served = {A: offer(A, 3), B: offer(B, -3)}
    hand.run(policy.main())
    return policy, hand


@pytest.mark.parametrize(
    ("gain", "expected"), [(6.0, 6 / (2 * sqrt(3))), (0.0, 0.0), (-1.0, 0.0), (nan, 0.0), (inf, 0.0)]
)
def test_a_weight_is_the_saved_loss_per_distance_and_never_negative(gain: float, expected: float) -> None:
    """The code: (baseline loss - loss) / distance to the baseline; only positive ones are used."""
    assert weight(gain, model(1), model(3)) == pytest.approx(expected)
    assert weight(gain, model(1), model(1)) == 0


def test_models_are_compared_with_mine_before_its_last_training() -> None:
    """The code: the baseline is my model before its training (first_model); my own is one of the candidates."""
    policy, hand = played(goal=4, M=2)
    (score,) = hand.all(Score)
    assert score.split == "val"
    assert sorted(core_of(m) for m in score.models) == [-3, 0, 1, 3]
    (average,) = hand.all(Average)
    assert average.mine == model(1)
    assert average.own == pytest.approx(weight(1, model(0), model(1)))  # 4 -> 3
    assert average.weights is not None
    weights = dict(zip((core_of(m) for m in average.others), average.weights, strict=True))
    assert weights == {3: pytest.approx(weight(3, model(0), model(3))), -3: 0}
    assert core_of(policy.before) == pytest.approx(2)  # both save 1 per unit of distance
    assert core_of(policy.model) == pytest.approx(3)  # and trained


def test_a_peer_whose_model_is_worse_has_no_influence() -> None:
    """The code: models without a positive weight are left out."""
    policy, hand = played(goal=-4, M=2)
    assert hand.all(Report)[0].data == {"from": [B]}
    assert core_of(policy.before) == -3


def test_without_any_better_model_the_trained_one_is_kept() -> None:
    policy, _ = played(goal=0, M=2)
    assert policy.before == model(1)


def test_peers_that_helped_are_fetched_again() -> None:
    """The code: the sums of the weights decide whose models a client gets; ties are broken at random."""
    policy, _ = played(goal=30, rounds=3, M=2, epsilon=0)
    assert policy.P[A] > 0 == policy.P[B]
    policy.P = {A: 1.0, B: 3.0, C: 2.0}
    assert policy.choose([A, B, C, D], 0) == [B, C]


def test_with_probability_epsilon_a_random_peer_is_fetched_instead() -> None:
    """The authors' commands: epsilon-greedy, with epsilon 0.3 that decreases by 0.05 in each round."""
    policy = make(FedFomo, M=1)
    assert (policy.cfg.epsilon, policy.cfg.decay) == (0.3, 0.05)
    policy.P = {A: 1.0}
    first = Counter(policy.choose([A, B, C, D], 0)[0] for _ in range(4000))
    assert first[A] / 4000 == pytest.approx(1 - 0.3 * 3 / 4, abs=0.03)
    assert {policy.choose([A, B, C, D], 6)[0] for _ in range(100)} == {A}


def test_all_start_with_one_model_and_peers_get_what_was_trained() -> None:
    """The code: the server initialises one model; clients upload their trained models."""
    _, hand = played(goal=4)
    assert hand.all(Fresh)[0].common
    assert [core_of(s.model) for s in hand.all(Publish)] == [1]
    assert core_of(hand.all(Report)[0].model) == core_of(hand.all(Train)[1].model) + 1


def test_the_weights_of_peers_and_the_baseline_survive_a_restart() -> None:
    policy, _ = played(goal=30, rounds=2, M=2)
    again = make(FedFomo)
    again.restore(policy.snapshot())
    assert (again.P, again.before) == (policy.P, policy.before)


@pytest.mark.parametrize("peers", [[], [A], [A, B]])
def test_it_works_in_swarms_of_one_two_and_three(peers: list[PeerId]) -> None:
    policy, hand = make(FedFomo, rounds=3), Hand(peers)
    hand.run(policy.main())
    assert [s.round for s in hand.all(Report)] == [0, 1, 2]
    assert all(len(s.peers) <= len(peers) for s in hand.all(Fetch))
