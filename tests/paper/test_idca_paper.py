"""`idca` against Trinca 2024, 5.1, "IDCA, the first version of FACADE". Each test quotes its source."""

from __future__ import annotations

from typing import Any

import pytest

from pfl_node.policies.facade import Facade
from pfl_node.policies.idca import Idca
from pfl_node.steps import Average, Fresh, Gather, Score, Send, Train
from tests.drive_policy import A, B, C, Hand, core_of, head_of, make, model, offer


def test_each_node_has_k_whole_models_with_starts_of_their_own() -> None:
    """5.1: "each node maintained k fully independent models instead of only duplicating the heads"."""
    policy, hand = make(Idca, k=3, rounds=1, warmup=0, all_reduce=False), Hand()
    hand.run(policy.main())
    assert [(s.part, s.seed) for s in hand.all(Fresh)] == [("model", 0), ("model", 1), ("model", 2)]
    assert {core_of(m) for m in hand.all(Score)[0].models} == {100, 101, 102}


def test_the_model_with_the_lowest_loss_is_trained_and_sent_with_its_index() -> None:
    """5.1: "the rest of the algorithm, including the model selection step, sharing, [...] remained"."""
    _, hand = played()
    assert hand.all(Train)[0].model == model(7, 4)
    assert hand.all(Train)[0].slot == 1  # the state of an optimizer belongs to one of the k
    assert (hand.all(Send)[0].model, hand.all(Send)[0].tag) == (model(8, 5), 1)


def test_a_model_is_averaged_with_those_of_its_index_and_with_no_other() -> None:
    """5.1: "and aggregation, remained"; with an empty core nothing is shared between the k."""
    came = [offer(A, model(2, 6), tag=1), offer(B, model(5, 1), tag=1), offer(C, model(40, 40), tag=0)]
    policy, hand = played(*came)
    assert policy.heads[1] == model((8 + 2 + 5) / 3, (5 + 6 + 1) / 3)
    assert policy.heads[0] == model((3 + 40) / 2, (9 + 40) / 2)
    assert policy.model == policy.heads[1]
    assert len(hand.all(Average)) == 2


def test_a_model_nobody_sent_stays_as_it_is() -> None:
    policy, hand = played(offer(A, model(2, 6), tag=1))
    assert policy.heads[0] == model(3, 9)
    assert len(hand.all(Average)) == 1


def test_it_is_facade_with_the_head_as_the_total_model() -> None:
    """5.1: "replicated by setting the head to be the total model and the core to be empty": the choices, the heads
    and the messages equal FACADE's where only the head matters."""
    played = {}
    for cls in (Facade, Idca):
        policy, hand = make(cls, rounds=4, warmup=1), Hand([A, B])
        hand.answers[Gather] = lambda s: (offer(A, model(0, 3), tag=0), offer(B, model(0, 8), tag=1))
        hand.run(policy.main())
        heads = [head_of(h) for h in policy.heads]
        played[cls] = heads, policy.j, [(s.to, s.tag, head_of(s.model)) for s in hand.all(Send)]
    assert played[Facade] == played[Idca]


@pytest.mark.parametrize("name", ["step", "all_reduce", "choose", "have_heads", "merge", "near", "exchange"])
def test_nothing_but_the_core_differs_from_facade(name: str) -> None:
    assert getattr(Idca, name) is getattr(Facade, name)


def played(*offers: Any) -> tuple[Idca, Hand]:
    """One round with the models (3, 9) and (7, 4)."""
    policy, hand = make(Idca, rounds=1, warmup=0, all_reduce=False), Hand([A, B, C])
    policy.heads = [model(3, 9), model(7, 4)]
    hand.answers[Gather] = lambda s: offers
    hand.run(policy.main())
    return policy, hand
