"""`ditto` against Li et al. 2021, "Ditto: Fair and Robust Federated Learning Through Personalization" (ICML, arXiv
2012.04221), Algorithm 1, and the authors' code. Each test names its source."""

from __future__ import annotations

from typing import Any

import pytest

from pfl_node.policies.ditto import Ditto
from pfl_node.policies.el import El
from pfl_node.steps import Average, Gather, Report, Send, Train
from pfl_node.types import PeerId
from tests.drive_policy import A, B, Hand, core_of, make, model, offer


def played(rounds: int = 1, **options: Any) -> tuple[Ditto, Hand]:
    policy, hand = make(Ditto, rounds=rounds, start=10, **options), Hand([A, B])
    hand.answers[Gather] = lambda s: (offer(A, 3, round=s.round), offer(B, 7, round=s.round))
    hand.run(policy.main())
    return policy, hand


def test_the_common_model_is_trained_without_the_personal_one() -> None:
    """Algorithm 1: w_k^t is trained from w^t before v_k; the code: by plain SGD, whatever lambda is."""
    _, hand = played()
    w, _ = hand.all(Train)
    assert (w.model, w.prox, w.anchor) == (model(10), 0, None)


def test_the_personal_model_is_pulled_towards_the_common_one_of_this_round() -> None:
    """Algorithm 1: lambda (v - w^t) is added to the gradient, with the w^t that the round began with."""
    policy, hand = played(rounds=2, lam=0.5)
    v = hand.all(Train)[3]
    assert v.prox == 0.5
    assert v.anchor == hand.all(Train)[2].model == model((11 + 3 + 7) / 3)
    assert v.model == model(11)
    assert core_of(policy.model) == 12


def test_the_two_models_have_separate_optimizers() -> None:
    """Algorithm 1, lambda = 0: v is trained as if there were no w, also with `train.keep_optimizer`."""
    _, hand = played(rounds=2)
    assert [s.slot for s in hand.all(Train)] == [0, 1, 0, 1]


def test_only_the_common_model_is_sent_and_averaged() -> None:
    """Algorithm 1: w_k^t - w^t is sent and aggregated, v_k stays."""
    policy, hand = played(rounds=2)  # in the first round both are trained from the same model
    assert [s.model for s in hand.all(Send)] == [model(11), model(8)]
    assert [s.mine for s in hand.all(Average)] == [model(11), model(8)]
    assert policy.w == model(6)
    assert policy.model == model(12)


def test_the_result_of_a_node_is_its_personal_model() -> None:
    """The code evaluates the local models."""
    policy, hand = played()
    assert hand.all(Report)[0].model == policy.model == model(11)
    assert policy.w != policy.model


def test_the_limits_of_lambda() -> None:
    """The authors' description of their code: lambda = 0 is separate local training; their example has 1."""
    assert played(lam=0)[1].all(Train)[1].prox == 0
    assert make(Ditto).cfg.lam == 1


def test_the_common_model_survives_a_restart() -> None:
    policy, _ = played(rounds=2)
    again = make(Ditto)
    again.restore(policy.snapshot())
    assert (again.w, again.model) == (policy.w, policy.model)


def test_the_graph_is_that_of_epidemic_learning() -> None:
    assert Ditto.near is El.near


@pytest.mark.parametrize("peers", [[], [A], [A, B]])
def test_it_works_in_swarms_of_one_two_and_three(peers: list[PeerId]) -> None:
    policy, hand = make(Ditto, rounds=3), Hand(peers)
    hand.run(policy.main())
    assert policy.model == model(3)
