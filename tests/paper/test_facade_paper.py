"""`facade` against Trinca 2024, "Enhancing Fairness in Decentralized Learning with Clustering-based
Personalization of Models": chapter 3, Algorithm 1, and section 4.1.3. Each test quotes its source."""

from __future__ import annotations

from typing import Any

import pytest

from pfl_node.policies.el import El
from pfl_node.policies.facade import Facade
from pfl_node.steps import Average, Fresh, Gather, Report, Score, Send, Train
from pfl_node.types import Offer, PeerId
from tests.drive_policy import A, B, C, Hand, core_of, head_of, losses, make, model, offer


def test_each_head_has_a_start_of_its_own_and_all_share_one_core() -> None:
    """3.1: "initializing k models for each node, where each model consists of a unique head and a common core"."""
    _, hand = played(k=3, rounds=1)
    assert [(s.part, s.seed) for s in hand.all(Fresh)] == [("head", 0), ("head", 1), ("head", 2)]
    scored = hand.all(Score)[0].models
    assert {core_of(m) for m in scored} == {0}
    assert {head_of(m) for m in scored} == {100, 101, 102}


def test_the_model_with_the_lowest_loss_on_the_training_data_is_trained() -> None:
    """Lines 3-4: j = argmin L(theta_j, Z_i), then LOCAL_TRAINING(theta_j)."""
    _, hand = played(rounds=1, heads=[9, 4])
    assert hand.all(Score)[0].split == "train"
    assert hand.all(Train)[0].model == model(0, 4)
    assert hand.all(Train)[0].slot == 1  # the state of an optimizer belongs to one of the k
    assert hand.all(Report)[0].data["head"] == 1


def test_heads_are_scored_on_a_part_of_the_training_data_the_same_for_all() -> None:
    """3.1: "evaluating each model on a subset of the dataset [...] was enough"; in the code 10 batches of 8."""
    _, hand = played(rounds=1, heads=[9, 4])
    assert (hand.all(Score)[0].samples, hand.all(Score)[0].own_sample_each) == (80, False)


def test_each_head_may_be_scored_on_a_sample_of_its_own_as_in_the_code() -> None:
    _, hand = played(rounds=1, heads=[9, 4], own_samples=True)
    assert hand.all(Score)[0].own_sample_each


def test_the_other_heads_are_kept() -> None:
    """The comment of line 4: h_j is unchanged for all j but the chosen one."""
    policy, _ = played(rounds=1, heads=[9, 4], all_reduce=False)
    assert [head_of(h) for h in policy.heads] == [9, 5]


def test_the_trained_model_and_the_index_of_its_head_go_to_the_neighbours() -> None:
    """Line 6."""
    _, hand = played(rounds=1, heads=[9, 4], peers=[A, B])
    send = hand.all(Send)[0]
    assert (set(send.to), send.round, send.tag) == ({A, B}, 0, 1)
    assert send.model == model(1, 5)


def test_all_cores_are_averaged_whatever_their_head() -> None:
    """Line 8: (own + received) / (|V| + 1)."""
    policy, _ = played(offers=[offer(A, model(4, 0), tag=0), offer(B, model(7, 0), tag=1)], **one_round)
    assert core_of(policy.model) == pytest.approx((1 + 4 + 7) / 3)


def test_heads_are_averaged_with_those_of_the_same_index() -> None:
    """Lines 9-11: (own + those received with index j) / (C_j + 1)."""
    came = [offer(A, model(0, 6), tag=1), offer(B, model(0, 10), tag=1), offer(C, model(0, 1), tag=0)]
    policy, _ = played(offers=came, **one_round)
    assert [head_of(h) for h in policy.heads] == [(9 + 1) / 2, (5 + 6 + 10) / 3]


def test_a_head_nobody_sent_stays_as_it_is() -> None:
    """Lines 10-11 with C_j = 0."""
    policy, hand = played(offers=[offer(A, model(0, 6), tag=0)], **one_round)
    assert head_of(policy.heads[1]) == 5
    assert len(hand.all(Average)) == 2  # the core and head 0


def test_the_personal_model_is_the_core_with_my_head() -> None:
    policy, hand = played(offers=[offer(A, model(3, 7), tag=1)], **one_round)
    assert policy.model == model(2, 6)
    assert hand.all(Report)[0].model == policy.model


def test_rounds_follow_one_another_with_the_averaged_parts() -> None:
    """Lines 1-3: theta^(t+1) is what line 3 of the next round scores."""
    _, hand = played(rounds=2, heads=[9, 4], peers=[A], offers=[offer(A, model(3, 7), tag=1)], all_reduce=False)
    assert sorted((core_of(m), head_of(m)) for m in hand.all(Score)[1].models) == [(2, 6), (2, 9)]


def test_the_graph_is_that_of_epidemic_learning() -> None:
    """3.1: "We adopt a dynamic topology approach, similar to that used in EL"."""
    assert Facade.near is El.near
    assert make(Facade).cfg.degree == 4


def test_the_warm_up_is_plain_epidemic_learning_of_the_whole_model() -> None:
    """The authors' code: EL for the first rounds."""
    warm, cold = make(Facade, rounds=3, warmup=3, all_reduce=False), make(El, rounds=3)
    for policy in (warm, cold):
        hand = Hand([A, B])
        hand.answers[Gather] = lambda s: (offer(A, 3 + s.round, round=s.round),)
        hand.run(policy.main())
        assert hand.all(Score) == []
    assert warm.model == cold.model


def test_after_the_warm_up_all_heads_are_equal() -> None:
    policy = make(Facade, rounds=3, warmup=2, k=3, all_reduce=False)
    hand = Hand([A])
    hand.run(policy.main())
    assert {(core_of(m), head_of(m)) for m in hand.all(Score)[0].models} == {(2, 2)}
    assert hand.all(Fresh) == []


def test_equal_heads_part_because_a_tie_is_broken_by_lot() -> None:
    """After the warm-up the heads are equal and have equal losses."""
    chosen = set()
    for name in "abcdefgh":
        policy = make(Facade, rounds=1, warmup=0, me=PeerId(name), all_reduce=False)
        policy.heads = [model(5).head, model(5).head]
        Hand().run(policy.main())
        chosen.add(policy.j)
    assert chosen == {0, 1}


def test_the_final_all_reduce_exchanges_with_everybody_by_the_same_rule() -> None:
    """4.1.3: "a final all-reduce step, where all nodes share their models and perform a final aggregation"."""
    policy = make(Facade, rounds=1, warmup=0, degree=1)
    policy.heads = [model(9).head, model(4).head]
    hand = Hand([A, B, C])
    came = (offer(A, model(4, 1), tag=1), offer(B, model(4, 1), tag=0), offer(C, model(4, 3), tag=1))
    hand.answers[Gather] = lambda s: came if s.round == 1 else ()
    hand.run(policy.main())
    last = hand.all(Send)[-1]
    assert (set(last.to), last.round, last.tag) == ({A, B, C}, 1, 1)
    assert core_of(policy.model) == (1 + 4 + 4 + 4) / 4
    assert [head_of(h) for h in policy.heads] == [(9 + 1) / 2, (5 + 1 + 3) / 3]
    assert len(hand.all(Train)) == 1


def test_at_the_end_the_head_is_chosen_on_all_the_training_data_and_never_on_test_data() -> None:
    """The authors' code takes the lowest test loss, which leaks test data; ours does not."""
    policy = make(Facade, rounds=1, warmup=0)
    policy.heads = [model(9).head, model(4).head]
    hand = Hand()
    hand.answers[Score] = lambda s: losses(*(1 - s.models.index(m) for m in s.models))
    hand.run(policy.main())
    assert (hand.all(Score)[-1].samples, hand.all(Score)[-1].own_sample_each) == (None, False)
    assert {s.split for s in hand.all(Score)} == {"train"}
    assert hand.all(Report)[-1].model == policy.model == policy.model.core + policy.heads[policy.j]


one_round: dict[str, Any] = {"rounds": 1, "heads": [9, 4], "peers": [A, B, C], "all_reduce": False}


def played(
    *,
    heads: list[float] | None = None,
    peers: list[PeerId] | None = None,
    offers: list[Offer] | None = None,
    **options: Any,
) -> tuple[Facade, Hand]:
    """A run without warm-up in which every round receives `offers`."""
    policy = make(Facade, **({"warmup": 0} | options))
    policy.heads = [model(0, h).head for h in heads or []]
    hand = Hand(peers or [])
    hand.answers[Gather] = lambda s: tuple(offers or ())
    hand.run(policy.main())
    return policy, hand


def test_the_loss_of_every_head_is_recorded_in_the_order_of_the_heads() -> None:
    """Figure 4.4: the training loss of all models, of which the lowest is chosen."""
    _, hand = played(k=3, rounds=1)
    data = hand.all(Report)[0].data
    assert len(data["losses"]) == 3
    assert data["losses"][data["head"]] == min(data["losses"])
