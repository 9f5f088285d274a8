"""`gradient_tracking` against Pu & Nedic 2021, "Distributed stochastic gradient tracking methods" (Mathematical
Programming 187, arXiv 1805.11454): DSGT. Each test states what it checks."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from pfl_node.policies.gradient_tracking import GradientTracking
from pfl_node.steps import Average, Gather, Gradient, Report, Send, Train
from pfl_node.types import Offer
from tests.drive_policy import A, B, Hand, core_of, make, model
from tests.paper.quadratic_swarm import NODES, OPTIMUM, gradient, mean, star, swarm


def test_one_round_averages_steps_along_y_and_adds_the_change_of_the_gradient() -> None:
    """x_i,k+1 = sum_j w_ij (x_j,k - alpha y_j,k) and y_i,k+1 = sum_j w_ij y_j,k + g_i,k+1 - g_i,k."""
    policy, hand = make(GradientTracking, rounds=1, start=8.0, alpha=0.5), Hand([A, B])
    hand.answers[Gather] = lambda s: (
        Offer(A, model(1.0), 0, vectors={"y": model(3.0)}),
        Offer(B, model(6.0), 0, vectors={"y": model(4.0)}),
    )
    hand.run(policy.main())
    order = [type(s) for s in hand.asked if not isinstance(s, Train) and type(s) in ORDER]
    assert order == [Gradient, Send, Gather, Average, Average, Gradient, Report]
    (sent,) = hand.all(Send)
    assert core_of(sent.model) == 8 - 0.5 * 8  # x_0 - alpha y_0
    assert core_of(sent.vectors["y"]) == 8  # y_0 = g(x_0)
    x = (4 + 1 + 6) / 3
    assert core_of(policy.model) == pytest.approx(x)
    assert policy.y is not None
    assert core_of(policy.y) == pytest.approx((8 + 3 + 4) / 3 + x - 8)  # the gradient at x is x


ORDER = (Gradient, Send, Gather, Average, Report)


def test_every_node_trusts_its_own_gradient_first() -> None:
    """y_i,0 = g_i(x_i,0, xi_i,0)."""
    policy, hand = make(GradientTracking, rounds=1, start=3.0), Hand()
    hand.run(policy.main())
    assert hand.all(Send)[0].vectors["y"] == model(3.0)


def test_the_mean_of_all_y_is_the_mean_of_all_gradients(tmp_path: Path) -> None:
    """By induction, y-bar_k = 1/n sum_i g_i(x_i,k, xi_i,k), because W is doubly stochastic."""
    for rounds, graph in product((1, 2, 7), ("ring", star(tmp_path))):
        policies = swarm(GradientTracking, rounds, graph=graph, alpha=0.1)
        gradients = [gradient(me, policies[me].model) for me in NODES]
        np.testing.assert_allclose(mean(p.y for p in policies.values()), mean(gradients), atol=1e-4)


def test_all_nodes_come_to_the_optimum_of_the_sum_of_their_losses() -> None:
    """With exact gradients (sigma = 0) and a constant step the error goes to zero, although the data differ."""
    tracked = swarm(GradientTracking, 300, graph="ring", alpha=0.1)
    assert [core_of(p.model) for p in tracked.values()] == pytest.approx([OPTIMUM] * len(NODES), abs=1e-3)
    assert all(abs(core_of(p.y)) < 1e-3 for p in tracked.values() if p.y is not None)


def test_a_gradient_is_asked_for_at_new_samples_and_only_once_for_each_model() -> None:
    """Assumption 1: the random vectors xi are independent; so each round has a batch of its own."""
    policy, hand = make(GradientTracking, rounds=3, batch=5), Hand()
    hand.run(policy.main())
    asked = hand.all(Gradient)
    assert [(s.batch, s.samples) for s in asked] == [(0, 5), (1, 5), (1, 5), (1, 5)]


def test_a_message_of_an_earlier_round_is_not_used() -> None:
    """All y_j,k are of the same k: a late one would be added to those of a round whose sum has it already."""
    assert not GradientTracking.late


def test_nothing_but_the_gradient_moves_a_model() -> None:
    assert GradientTracking.only_gradients
    policy, hand = make(GradientTracking, rounds=2), Hand([A])
    hand.run(policy.main())
    assert hand.all(Train) == []


def test_a_missing_message_leaves_its_weight_with_the_node() -> None:
    policy, hand = make(GradientTracking, rounds=1, start=8.0, alpha=0.5), Hand([A, B])
    hand.answers[Gather] = lambda s: (Offer(A, model(1.0), 0, vectors={"y": model(2.0)}),)
    hand.run(policy.main())
    assert core_of(policy.model) == pytest.approx((2 * 4 + 1) / 3)


def test_the_guard_does_not_score_a_gradient() -> None:
    policy, hand = make(GradientTracking, rounds=1), Hand([A])
    hand.answers[Gather] = lambda s: (Offer(A, model(1.0), 0, vectors={"y": model(2.0)}),)
    hand.run(policy.main())
    assert [s.gated for s in hand.all(Average)] == [True, False]
