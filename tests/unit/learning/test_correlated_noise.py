"""Trainings whose noise cancels that of the neighbours: the real learners of three nodes."""

from __future__ import annotations

from math import comb, exp, log, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from torch import nn

from pfl_node.errors import ConfigError, TaskError
from pfl_node.learning.accountant import epsilon
from pfl_node.learning.learner import Learner
from pfl_node.model import Model
from pfl_node.protocol.privacy.dp_account import DpAccount, DpStep
from pfl_node.protocol.privacy.pair_noise import PairSeeds, own_variance, pair_seeds
from pfl_node.settings import TrainSettings
from pfl_node.settings.sections import PrivacySettings
from pfl_node.types import PeerId
from tests.unit.learning.nets import blobs, plain, task

N = 40
NOISE = 3e9
MUTED: dict[str, Any] = {"dp_clip": 1e-9, "dp_noise": NOISE}  # the gradients vanish beside the noise
UNIT = 1e-9 * NOISE / N  # the noise of DP-SGD in the model after one step with lr = 1
IDS = [PeerId(name) for name in "abc"]
Matrix = npt.NDArray[np.float64]


def wide() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 100), nn.ReLU(), nn.Linear(100, 3))


def node(name: str, samples: int = N, model: Any = plain, train: Any = None, **dp: Any) -> Learner:
    settings = PrivacySettings(dp=True, dp_correlated=True, **(MUTED | dp))
    steps: dict[str, Any] = {"batch": N, "steps": 1, "lr": 1.0}
    data = blobs(samples)
    return Learner(
        task(model, data), TrainSettings(**steps | (train or {})), "cpu", settings, DpAccount(secret=name)
    )


def secret_of(me: PeerId) -> Any:
    return lambda peer: "".join(sorted((me, peer))).encode()


def pairs_of(me: PeerId, round: int = 0) -> PairSeeds:
    return pair_seeds(me, IDS, secret_of(me), "run", round)


def messages(nodes: list[Learner], start: Model, round: int, **more: Any) -> Matrix:
    """What each node adds to the common model in this round."""
    found = []
    for id, me in zip(IDS, nodes, strict=True):
        options: dict[str, Any] = {"partners": (pairs_of(id, round), 2)} | more
        found.append(me.train(start, seed=round, **options).vector.astype(np.float64) - start.vector)
    return np.array(found)


@pytest.mark.parametrize("steps", [1, 4])
def test_noise_of_pairs_cancels_in_the_mean_of_all_nodes(steps: int) -> None:
    """With the same noise of its own, a node's mean with its neighbours does not depend on the noise of the
    pairs."""
    nodes = [node(name, train={"steps": steps, "momentum": 0.5}, dp_pair_noise=100.0) for name in "abc"]
    start = nodes[0].fresh(0)

    def mean(round: int) -> Matrix:
        sent = [
            me.train(start, seed=1, partners=(pairs_of(id, round), 2)).vector.astype(np.float64)
            for id, me in zip(IDS, nodes, strict=True)
        ]
        assert np.linalg.norm(sent[0] - start.vector) > 50 * UNIT * sqrt(start.vector.size)  # one alone is noisy
        return np.asarray(np.mean(sent, axis=0))

    first, second = mean(1), mean(2)
    assert np.abs(first - start.vector).max() < 30 * UNIT * steps
    np.testing.assert_allclose(first, second, atol=1e-3 * UNIT * 100)


def test_without_one_node_the_noise_it_shares_remains() -> None:
    nodes = [node(name, model=wide, dp_pair_noise=10.0) for name in "abc"]
    start = nodes[0].fresh(0)
    found = np.array([messages(nodes, start, round) for round in range(5)])
    all_three, two = found.mean(axis=1), found[:, :2].mean(axis=1)
    own = own_variance(10.0, 2, 1, 2)
    assert all_three.std() == pytest.approx(UNIT * sqrt(own / 3), rel=0.05)
    assert two.std() == pytest.approx(UNIT * sqrt(own / 2 + 100 / 2), rel=0.05)  # two pairs, each divided by 2


def test_the_covariance_of_real_messages_leaves_an_observer_the_noise_of_dp_sgd() -> None:
    """Measured on three nodes, worst case over the eavesdropper and each colluding neighbour, which removes the
    noise of its own pairs."""
    nodes = [node(name, model=wide) for name in "abc"]
    start = nodes[0].fresh(0)
    found = np.array([messages(nodes, start, round) for round in range(25)]) / UNIT  # rounds, nodes, values
    covariance = np.cov(found.transpose(1, 0, 2).reshape(3, -1))
    eavesdropper = 1 / np.linalg.inv(covariance)[0, 0]
    assert eavesdropper > 1.1
    honest = covariance[:2, :2] - np.diag([0.49, 0.49])  # c knows the noise that a and b share with it
    neighbour = 1 / np.linalg.inv(honest)[0, 0]
    assert neighbour == pytest.approx(1, rel=0.03)
    assert covariance[0, 0] == pytest.approx(own_variance(0.7, 2, 1, 2) + 2 * 0.49, rel=0.03)
    assert covariance[0, 1] == pytest.approx(-0.49, rel=0.05)


@pytest.mark.parametrize(
    ("privacy", "train"),
    [
        ({"dp_pair_noise": 7.0}, {}),
        ({"dp_colluders": 0}, {}),
        ({"dp_clip": 2e-9}, {}),
        ({"dp_noise": 2 * NOISE}, {}),
        ({}, {"batch": N // 2}),
        ({}, {"lr": 0.5}),
    ],
)
def test_a_neighbour_with_other_settings_shares_no_noise(privacy: dict[str, Any], train: dict[str, Any]) -> None:
    """Less noise of its own, or more of the pair, would reveal more of mine than the account says."""
    nodes = [node("a", model=wide), node("b", model=wide, train=train, **privacy), node("c", model=wide)]
    start = nodes[0].fresh(0)
    found = np.array([messages(nodes, start, round) for round in range(10)]) / UNIT
    correlation = np.asarray(np.corrcoef(found.transpose(1, 0, 2).reshape(3, -1)))
    assert abs(correlation[0, 1]) < 0.06
    assert correlation[0, 2] < -0.2


def test_a_neighbour_that_expects_another_degree_shares_no_noise() -> None:
    nodes = [node(name, model=wide) for name in "ab"]
    start = nodes[0].fresh(0)

    def sent(me: Learner, sign: int, degree: int) -> Matrix:
        found = me.train(start, seed=1, partners=(((sign, "seed"),), degree))
        return (found.vector.astype(np.float64) - start.vector) / UNIT

    mine, same, other = sent(nodes[0], 1, 2), sent(nodes[1], -1, 2), sent(nodes[1], -1, 4)
    assert np.corrcoef(mine, same)[0, 1] < -0.2
    assert abs(np.corrcoef(mine, other)[0, 1]) < 0.15


@pytest.mark.parametrize("rate", [0.25, 1.0])
def test_epsilon_is_that_of_the_quadratic_form_of_three_nodes(rate: float) -> None:
    """Renyi divergences of the Poisson-sampled Gaussian mechanism in all three coordinates: the distributions
    differ by one clipped gradient of node 0. Only the quadratic form of the inverse covariance matters."""
    sigma, steps, delta, pair = 8.0, 50, 1e-5, 0.7
    own = own_variance(pair, 2, 1, 2)
    laplacian = np.array([[1.0, -1.0], [-1.0, 1.0]])  # of the honest nodes, if node 2 colludes
    covariance = sigma**2 * (pair**2 * laplacian + own * np.eye(2))
    form = float(np.linalg.inv(covariance)[0, 0])

    def renyi(order: int) -> float:
        terms = [
            comb(order, k) * (1 - rate) ** (order - k) * rate**k * exp(k * (k - 1) / 2 * form)
            for k in range(order + 1)
        ]
        return log(sum(terms)) / (order - 1)

    orders = range(2, 64)
    brute = min(steps * renyi(a) + log((a - 1) / a) - (log(delta) + log(a)) / (a - 1) for a in orders)
    reported = epsilon({DpStep(sigma, rate): steps}, delta)
    assert form == pytest.approx(1 / sigma**2)
    assert reported == pytest.approx(brute, rel=0.02)  # it has orders between the integers
    assert epsilon({DpStep(sigma * sqrt(own), rate): steps}, delta) > 1.1 * reported  # if all neighbours collude


def test_a_node_with_fewer_samples_adds_the_same_noise_of_pairs_and_more_of_its_own() -> None:
    small, large = node("a", samples=10, model=wide), node("b", model=wide)
    start = large.fresh(0)

    def sent(me: Learner, sign: int) -> Matrix:
        found = me.train(start, seed=1, partners=(((sign, "seed"),), 2))
        return (found.vector.astype(np.float64) - start.vector) / UNIT

    few, many = ((sent(me, 1), sent(me, -1)) for me in (small, large))
    np.testing.assert_allclose(few[0] - few[1], many[0] - many[1], atol=1e-3)  # twice the noise of the pair
    assert (few[0] - few[1]).std() == pytest.approx(2 * 0.7, rel=0.05)
    assert (few[0] + few[1]).std() == pytest.approx(2 * 4, rel=0.05)  # a sample weighs four times as much


def test_without_partners_the_training_is_that_of_dp_sgd() -> None:
    start = node("a").fresh(0)
    plainly = Learner(
        task(plain, blobs(N)),
        TrainSettings(batch=N, steps=1, lr=1.0),
        "cpu",
        PrivacySettings(dp=True, **MUTED),
        DpAccount(secret="a"),
    )
    assert node("a").train(start, seed=1, partners=((), 2)) == plainly.train(start, seed=1)


@pytest.mark.parametrize(
    ("train", "match"),
    [
        ({"steps": None, "epochs": 1}, "needs train.steps"),
        ({"optimizer": "adam"}, "train.optimizer = sgd"),
        ({"clip": 1.0}, "train.clip"),
    ],
)
def test_trainings_that_are_not_linear_or_not_equally_long_are_refused(train: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        node("a", train=train)


def test_private_tensors_are_refused() -> None:
    settings = PrivacySettings(dp=True, dp_correlated=True)
    with pytest.raises(TaskError, match="never cancels"):
        Learner(task(plain, blobs(N), private=("1.bias",)), TrainSettings(steps=1), "cpu", settings)
