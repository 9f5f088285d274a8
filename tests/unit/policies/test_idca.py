from __future__ import annotations

from math import nan

import pytest

from pfl_node.policies.idca import Idca
from pfl_node.steps import Average, Fetch, Gather, Report, Train
from pfl_node.types import PeerId
from tests.drive_policy import A, B, C, Hand, Run, make, model, offer


@pytest.mark.parametrize("peers", [[], [A], [A, B]])
@pytest.mark.parametrize("warmup", [0, 1, 5])
def test_it_works_in_swarms_of_one_two_and_three_with_any_warm_up(peers: list[PeerId], warmup: int) -> None:
    policy, hand = make(Idca, rounds=3, warmup=warmup), Hand(peers)
    hand.answers[Gather] = lambda s: tuple(offer(p, 50, round=s.round, tag=0) for p in s.peers)
    hand.run(policy.main())
    assert [s.round for s in hand.all(Report)] == [0, 1, 2, 3]
    assert len(hand.all(Train)) == 3
    assert policy.model == policy.heads[policy.j]


@pytest.mark.parametrize("tag", [-1, 2, 99])
def test_a_model_index_that_does_not_exist_is_ignored(tag: int) -> None:
    policy, hand = make(Idca, rounds=1, warmup=0, all_reduce=False), Hand([A])
    policy.heads = [model(9), model(4)]
    hand.answers[Gather] = lambda s: (offer(A, 1000, tag=tag),)
    hand.run(policy.main())
    assert policy.heads == [model(9), model(5)]
    assert hand.all(Average) == []


def test_a_model_whose_loss_is_not_a_number_is_not_chosen() -> None:
    policy, hand = make(Idca, rounds=1, warmup=0, all_reduce=False), Hand()
    policy.heads = [model(nan), model(4)]
    hand.run(policy.main())
    assert policy.j == 1


def test_a_late_node_takes_the_models_of_its_peers() -> None:
    policy, hand = make(Idca, rounds=30), Hand([A, B, C])
    policy.round = 20
    hand.served = {p: offer(p, v, tag=t) for p, v, t in ((A, 2, 0), (B, 6, 1), (C, 8, 1))}
    Run(policy.main(), hand).to(Train)
    assert hand.all(Fetch) == [Fetch((A, B, C), "model", whole=True)]
    assert policy.heads == [model(2), model(7)]


def test_a_restart_in_the_middle_keeps_the_models_and_the_choice() -> None:
    before = make(Idca, rounds=5, warmup=0)
    run = Run(before.main(), Hand())
    run.past(Report)
    run.to(Report)
    after = make(Idca, rounds=5, warmup=0)
    after.restore(before.snapshot())
    assert (after.round, after.j, after.heads) == (2, before.j, before.heads)


def test_equal_losses_are_decided_by_lot() -> None:
    chosen = set()
    for name in "abcdefgh":
        policy = make(Idca, rounds=1, warmup=0, me=PeerId(name), all_reduce=False)
        policy.heads = [model(5), model(5)]
        Hand().run(policy.main())
        chosen.add(policy.j)
    assert chosen == {0, 1}
