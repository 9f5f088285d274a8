"""`scaffold` against Karimireddy et al. 2020, "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
Algorithm 1. Each test cites the statement that it checks."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from pfl_node.model import Entry, Layout, Model
from pfl_node.policies.dpsgd import Dpsgd
from pfl_node.policies.scaffold import Scaffold
from pfl_node.steps import Average, Gather, Gradient, Report, Send, Step, Train
from pfl_node.types import Offer
from tests.drive_policy import A, B, Hand, Run, core_of, make, model
from tests.paper.quadratic_swarm import CURVATURES, MINIMA, NODES, OPTIMUM, mean, star, swarm


def with_(policy: Scaffold, c: float, c_i: float) -> Scaffold:
    policy.c, policy.c_i = model(c), model(c_i)
    return policy


def test_local_steps_are_corrected_by_c_minus_c_i() -> None:
    """Line 10: y_i <- y_i - eta_l (g_i(y_i) - c_i + c), for k = 1 ... K."""
    policy, hand = with_(make(Scaffold, rounds=1, K=7, eta_l=0.2), 5.0, 2.0), Hand()
    hand.run(policy.main())
    (train,) = hand.all(Train)
    assert (train.steps, train.lr, train.plain) == (7, 0.2, True)
    assert train.correction == model(3.0)


def test_option_ii_takes_the_control_variate_from_the_local_steps() -> None:
    """Line 12 (ii): c_i+ = c_i - c + (x - y_i) / (K eta_l)."""
    policy, hand = with_(make(Scaffold, rounds=1, start=10.0, K=4, eta_l=0.5), 5.0, 2.0), Hand()
    hand.answers[Train] = lambda s: model(4.0)
    hand.run(policy.main())
    assert core_of(policy.c_i) == 2 - 5 + (10 - 4) / (4 * 0.5)
    assert hand.all(Gradient) == []


def test_what_no_gradient_moves_is_not_part_of_a_control_variate() -> None:
    """Line 12 (ii): c_i is a mean of local gradients, which batch statistics do not have."""
    layout = Layout((Entry("core", (2,)), Entry("running_var", (), False)), ())
    policy = with_(make(Scaffold, rounds=1, K=4, eta_l=0.5), 0.0, 0.0)
    policy.model, policy.c = Model(layout, np.zeros(3, np.float32)), Model(layout, np.zeros(3, np.float32))
    policy.c_i, hand = policy.c, Hand()
    hand.answers[Train] = lambda s: Model(layout, np.array([4, 4, 100], np.float32))
    hand.run(policy.main())
    assert policy.c.vector.tolist() == policy.c_i.vector.tolist() == [-2, -2, 0]
    assert policy.model.vector.tolist() == [4, 4, 100]


def test_option_i_takes_it_from_a_pass_over_all_my_data() -> None:
    """Line 12 (i): c_i+ = g_i(x); section 4: an additional pass over the local data, at the server's model."""
    policy, hand = with_(make(Scaffold, rounds=1, start=10.0, samples=33, option="I"), 5.0, 2.0), Hand()
    hand.run(policy.main())
    (asked,) = hand.all(Gradient)
    assert (asked.model, asked.samples) == (model(10.0), 33)
    assert policy.c_i == model(10.0)  # the gradient of half the squared length


def test_with_c_at_zero_the_first_round_is_that_of_local_sgd() -> None:
    """Section 4: the control variates may all start at 0; with c_i = 0, SCAFFOLD is FedAvg."""
    policy, hand = make(Scaffold, rounds=1), Hand()
    hand.run(policy.main())
    assert hand.all(Train)[0].correction == model(0.0)


def test_the_model_and_c_travel_and_are_averaged_with_the_same_weights() -> None:
    """Lines 13-17: the means of the models and of the control variates' changes are the server's next x and c."""
    policy, hand = with_(make(Scaffold, rounds=1, K=1, eta_l=1.0), 0.0, 0.0), Hand([A, B])
    hand.answers[Gather] = lambda s: (
        Offer(A, model(3.0), 0, vectors={"c": model(6.0)}),
        Offer(B, model(8.0), 0, vectors={"c": model(1.0)}),
    )
    hand.run(policy.main())
    kinds: tuple[type[Step[object]], ...] = (Train, Send, Gather, Average, Report)
    order = [type(s) for s in hand.asked if type(s) in kinds]
    assert order == [Train, Send, Gather, Average, Average, Report]
    (sent,) = hand.all(Send)
    assert (core_of(sent.model), core_of(sent.vectors["c"])) == (1.0, -1.0)  # training adds 1
    assert core_of(policy.model) == pytest.approx((1 + 3 + 8) / 3)
    assert core_of(policy.c) == pytest.approx((-1 + 6 + 1) / 3)
    assert policy.c_i == model(-1.0)
    assert [s.gated for s in hand.all(Average)] == [False, True]


@pytest.mark.parametrize("option", ["I", "II"])
def test_the_mean_of_all_c_is_the_mean_of_all_c_i(option: str, tmp_path: Path) -> None:
    """Section 4: c = 1/N sum c_i; here each node has its own c, and only the mean of them is exact."""
    for rounds, graph in product((1, 2, 9), ("ring", star(tmp_path))):
        policies = swarm(Scaffold, rounds, graph=graph, K=3, eta_l=0.05, option=option).values()
        np.testing.assert_allclose(mean(p.c for p in policies), mean(p.c_i for p in policies), atol=1e-4)


@pytest.mark.parametrize("option", ["I", "II"])
def test_client_drift_vanishes_however_many_local_steps(option: str) -> None:
    """Abstract: SCAFFOLD is "not affected by data heterogeneity"; without corrections, local steps end elsewhere
    (section 3.2, client drift)."""
    for steps in (1, 10):
        policies = swarm(Scaffold, 400, graph="ring", K=steps, eta_l=0.02, option=option).values()
        assert [core_of(p.model) for p in policies] == pytest.approx([OPTIMUM] * len(NODES), abs=1e-2)
        assert all(abs(core_of(p.c)) < 0.05 for p in policies)

    class Drifting(Dpsgd):
        async def learn(self) -> None:
            self.model = await Train(self.model, steps=10, lr=0.02)

    drifted = swarm(Drifting, 400, graph="ring").values()
    assert max(abs(core_of(p.model) - OPTIMUM) for p in drifted) > 0.5


def test_the_mean_of_all_models_moves_only_by_training(tmp_path: Path) -> None:
    """Line 16: x is the mean of the y_i, on a graph whose nodes have different degrees too."""
    policies = swarm(Scaffold, 1, graph=star(tmp_path), K=1, eta_l=0.1)
    trained = [i - 0.1 * CURVATURES[me] * (i - MINIMA[me]) for i, me in enumerate(NODES)]
    assert mean(p.model for p in policies.values())[0] == pytest.approx(fmean(trained))


def test_a_message_of_an_earlier_round_is_not_used() -> None:
    """Line 17: the changes of one round are added once."""
    assert not Scaffold.late


def test_a_training_that_was_discarded_changes_no_control_variate() -> None:
    policy, hand = with_(make(Scaffold, rounds=1), 5.0, 2.0), Hand()
    hand.answers[Train] = lambda s: Model(s.model.layout, s.model.vector.copy())
    run = Run(policy.main(), hand)
    run.past(Send)
    assert (policy.c, policy.c_i) == (model(5.0), model(2.0))
