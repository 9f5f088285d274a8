"""`dfedalt` against Shi et al. 2023, "Towards More Suitable Personalization in Federated Learning via
Decentralized Partial Model Training" (arXiv 2305.15157), its abstract and code of its authors, and FedPer
(Arivazhagan et al. 2019, arXiv 1912.00818). Each test names its source."""

from __future__ import annotations

from typing import Any

import pytest

from pfl_node.policies.dfedalt import DFedAlt
from pfl_node.policies.el import El
from pfl_node.steps import Gather, Report, Send, Train
from pfl_node.types import PeerId
from tests.drive_policy import A, B, Hand, core_of, head_of, make, model, offer
from tests.unit.policies.test_deprl import apart


def played(rounds: int = 1, **options: Any) -> tuple[DFedAlt, Hand]:
    policy, hand = make(DFedAlt, rounds=rounds, start=100, **options), Hand([A, B], {Train: apart})
    hand.answers[Gather] = lambda _: (offer(A, model(3).core, round=0), offer(B, model(8).core, round=0))
    hand.run(policy.main())
    return policy, hand


def test_the_personal_part_is_updated_first_with_the_shared_part_fixed() -> None:
    """Abstract: both are updated alternately; code: one epoch of the head, then the body."""
    _, hand = played()
    v, u = hand.all(Train)
    assert (v.only, v.epochs, v.model) == ("head", 1.0, model(100))
    assert (u.only, u.epochs, u.model) == ("core", None, model(100, 110))


def test_the_numbers_of_epochs_are_knobs() -> None:
    """Code: 1 epoch of the head, 5 of the body."""
    _, hand = played(head_epochs=2, core_epochs=5)
    assert [s.epochs for s in hand.all(Train)] == [2, 5]


def test_only_the_shared_part_is_sent_and_averaged() -> None:
    """Abstract: shared parameters are aggregated in a peer-to-peer manner; code: each client keeps its head."""
    policy, hand = played()
    assert {s.model.layout.part for s in hand.all(Send)} == {"core"}
    assert DFedAlt.takes == DFedAlt.serves == ("core",)
    assert core_of(policy.model) == pytest.approx((101 + 3 + 8) / 3)
    assert head_of(policy.model) == 110
    assert hand.all(Report)[0].model == policy.model


def test_fedper_trains_both_parts_at_once_and_shares_the_base() -> None:
    """Arivazhagan et al. 2019: SGD on base and personalization layers together."""
    policy, hand = played(at_once=True)
    (both,) = hand.all(Train)
    assert (both.only, both.model) == (None, model(100))
    assert {s.model.layout.part for s in hand.all(Send)} == {"core"}
    assert head_of(policy.model) == 110


def test_it_is_compared_with_epidemic_learning_on_the_same_graph() -> None:
    assert DFedAlt.near is El.near
    assert make(DFedAlt).cfg.degree == make(El).cfg.degree


@pytest.mark.parametrize("peers", [[], [A], [A, B]])
def test_it_works_in_swarms_of_one_two_and_three(peers: list[PeerId]) -> None:
    policy, hand = make(DFedAlt, rounds=3), Hand(peers, {Train: apart})
    hand.run(policy.main())
    assert policy.model == model(3, 30)
