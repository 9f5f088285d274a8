"""`dfedpgp` against Liu et al. 2024, "Decentralized Directed Collaboration for Personalized Federated Learning"
(CVPR, arXiv 2405.17876): its abstract and the authors' code. Each test names its source."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pfl_node.policies.dfedalt import Alternating
from pfl_node.policies.dfedpgp import DFedPgp
from pfl_node.policies.sgp import Sgp
from pfl_node.steps import Average, Gather, Report, Send, Train
from tests.drive_policy import A, B, Hand, core_of, head_of, make, model, offer
from tests.unit.policies.test_deprl import apart


def played() -> tuple[DFedPgp, Hand]:
    policy, hand = make(DFedPgp, rounds=1, start=100), Hand([A, B], {Train: apart})
    hand.answers[Send] = lambda s: tuple(s.to)
    hand.answers[Gather] = lambda _: (replace(offer(A, model(5).core), notes={"w": 0.5}),)
    hand.run(policy.main())
    return policy, hand


def test_the_personal_part_is_trained_before_the_shared_one() -> None:
    """The code: the head with the body fixed, then the body with the new head."""
    _, hand = played()
    v, u = hand.all(Train)
    assert (v.only, v.model) == ("head", model(100))
    assert (u.only, u.model) == ("core", model(100, 110))


def test_only_the_shared_part_and_its_weight_travel() -> None:
    """Abstract: "partial gradient push"; the linear classifier is personal."""
    _, hand = played()
    (send,) = hand.all(Send)
    assert send.model == model(101).core
    assert send.notes == {"w": pytest.approx(1 / 3)}  # two recipients and itself
    assert DFedPgp.takes == DFedPgp.serves == ("core",)


def test_the_shared_part_is_debiased_by_the_push_sum_weight() -> None:
    """As in SGP: the sum of p u divided by the sum of p w; the personal part stays as it was trained."""
    policy, hand = played()
    assert core_of(policy.model) == pytest.approx((101 / 3 + 5 * 0.5) / (1 / 3 + 0.5))
    assert policy.w == pytest.approx(1 / 3 + 0.5)
    assert head_of(policy.model) == 110
    assert hand.all(Report)[0].model == policy.model
    assert {s.mine.layout.part for s in hand.all(Average)} == {"core"}


def test_the_weight_survives_a_restart() -> None:
    policy, _ = played()
    again = make(DFedPgp)
    again.restore(policy.snapshot())
    assert again.w == policy.w == pytest.approx(1 / 3 + 0.5)


def test_each_client_draws_its_own_recipients() -> None:
    """The code: each client draws its neighbours anew in every round."""
    assert make(DFedPgp).cfg.graph == "random"


def test_it_is_gradient_push_with_the_training_of_dfedalt() -> None:
    """Abstract: stochastic gradient push and partial personalization together."""
    assert DFedPgp.learn is Alternating.learn
    assert DFedPgp.mix is Sgp.mix
    assert DFedPgp.near is Sgp.near
