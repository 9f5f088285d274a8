from __future__ import annotations

from math import nan
from typing import Any

import pytest

from pfl_node.policies.facade import Facade
from pfl_node.steps import Average, Fetch, Fresh, Gather, Report, Score, Send, Train
from pfl_node.types import Offer, PeerId
from tests.drive_policy import A, B, C, Hand, Run, core_of, head_of, losses, make, model, offer


@pytest.mark.parametrize("peers", [[], [A], [A, B]])
@pytest.mark.parametrize("warmup", [0, 1, 2, 5])
def test_it_works_in_swarms_of_one_two_and_three_with_any_warm_up(peers: list[PeerId], warmup: int) -> None:
    policy, hand = make(Facade, rounds=3, warmup=warmup), Hand(peers)
    hand.answers[Gather] = lambda s: tuple(offer(p, 50, round=s.round, tag=0) for p in s.peers)
    hand.run(policy.main())
    assert [s.round for s in hand.all(Report)] == [0, 1, 2, 3]
    assert len(hand.all(Train)) == 3
    assert policy.model == policy.model.core + policy.heads[policy.j]


@pytest.mark.parametrize("tag", [-1, 2, 99])
def test_a_head_index_that_does_not_exist_is_ignored_but_the_core_counts(tag: int) -> None:
    policy, hand = make(Facade, rounds=1, warmup=0, all_reduce=False), Hand([A])
    policy.heads = [model(9).head, model(4).head]
    hand.answers[Gather] = lambda s: (offer(A, model(5, 1000), tag=tag),)
    hand.run(policy.main())
    assert core_of(policy.model) == 3
    assert [head_of(h) for h in policy.heads] == [9, 5]


def test_a_head_whose_loss_is_not_a_number_is_not_chosen() -> None:
    policy, hand = make(Facade, rounds=1, warmup=0, all_reduce=False), Hand()
    policy.heads = [model(nan).head, model(4).head]
    hand.answers[Score] = lambda s: losses(*(head_of(m) for m in s.models))
    hand.run(policy.main())
    assert policy.j == 1


def test_one_head_is_epidemic_learning() -> None:
    policy, hand = make(Facade, rounds=2, k=1, warmup=0), Hand([A])
    hand.answers[Gather] = lambda s: (offer(A, model(8, 8), tag=0),)
    hand.run(policy.main())
    assert (policy.j, len(policy.heads)) == (0, 1)


def test_without_an_end_there_is_no_all_reduce() -> None:
    run = Run(make(Facade, rounds=None).main(), hand := Hand([A]))
    for _ in range(40):
        run.past(Report)
    assert all(len(s.models) <= 2 for s in hand.all(Average))


def test_a_restart_in_the_middle_keeps_core_heads_and_choice() -> None:
    before, hand = make(Facade, rounds=5, warmup=0), Hand()
    run = Run(before.main(), hand)
    run.past(Report)
    run.to(Report)
    after, hand = make(Facade, rounds=5, warmup=0), Hand()
    after.restore(before.snapshot())
    assert (after.round, after.j) == (2, before.j)
    Run(after.main(), hand).to(Train)
    assert hand.all(Fresh) == []
    assert {head_of(m) for m in hand.all(Score)[0].models} == {head_of(h) for h in before.heads}


def test_a_restart_in_the_warm_up_goes_on_with_the_warm_up() -> None:
    before = make(Facade, rounds=5, warmup=3)
    Run(before.main(), Hand()).to(Report)
    after, hand = make(Facade, rounds=5, warmup=3, all_reduce=False), Hand()
    after.restore(before.snapshot())
    hand.run(after.main())
    assert ["head" in s.data for s in hand.all(Report)] == [False, False, True, True]


def late(*served: Offer, **options: Any) -> tuple[Facade, Hand]:
    """A node that begins in round 20, as far as its first training; these are the peers."""
    policy = make(Facade, **({"rounds": 30, "warmup": 10} | options))
    policy.round = 20
    hand = Hand([o.sender for o in served])
    hand.served = {o.sender: o for o in served}
    Run(policy.main(), hand).to(Train)
    return policy, hand


def test_a_node_that_joins_after_the_warm_up_takes_the_heads_of_its_peers_and_keeps_its_core() -> None:
    policy, hand = late(offer(A, model(5, 2), tag=0), offer(B, model(5, 7), tag=1), offer(C, model(5, 9), tag=1))
    assert hand.all(Fetch) == [Fetch((A, B, C), "head", whole=True)]
    assert [head_of(h) for h in policy.heads] == [2, 8]
    assert {core_of(m) for m in hand.all(Score)[0].models} == {0}


def test_a_late_node_takes_the_mean_of_all_heads_for_an_index_that_no_peer_has() -> None:
    policy, _ = late(offer(A, model(5, 2), tag=0), offer(B, model(5, 6), tag=0), k=3)
    assert [head_of(h) for h in policy.heads] == [4, 4, 4]


def test_a_late_node_whose_peers_have_nothing_yet_begins_with_equal_heads_of_its_own() -> None:
    policy, _ = late()
    assert [head_of(h) for h in policy.heads] == [0, 0]


def test_a_late_node_without_a_warm_up_and_without_answers_has_fresh_heads() -> None:
    policy, _ = late(warmup=0)
    assert [head_of(h) for h in policy.heads] == [100, 101]


def test_a_head_of_a_peer_that_is_not_a_number_is_left_out() -> None:
    policy, _ = late(offer(A, model(5, nan), tag=0), offer(B, model(5, 6), tag=0), offer(C, model(5, 3), tag=1))
    assert [head_of(h) for h in policy.heads] == [6, 3]


def test_a_node_that_is_there_from_the_start_fetches_nothing() -> None:
    for warmup in (0, 2):
        policy, hand = make(Facade, rounds=4, warmup=warmup), Hand([A, B])
        hand.run(policy.main())
        assert hand.all(Fetch) == []


def test_what_others_fetch_says_which_head_it_is() -> None:
    policy, hand = make(Facade, rounds=2, warmup=0), Hand([A])
    policy.heads = [model(9).head, model(4).head]
    hand.run(policy.main())
    assert [s.tag for s in hand.all(Report)] == [s.data["head"] for s in hand.all(Report)] == [1, 1, 1]


def test_a_checkpoint_with_another_number_of_heads_gets_new_ones() -> None:
    policy, hand = make(Facade, rounds=4, warmup=1, k=3), Hand()
    policy.round, policy.j, policy.heads = 3, 5, [model(1).head] * 6
    hand.run(policy.main())
    assert len(policy.heads) == 3
    assert policy.j in range(3)


def test_the_graph_is_drawn_after_the_training_when_it_is_known_who_is_still_there() -> None:
    policy, hand = make(Facade, rounds=1, warmup=0, all_reduce=False), Hand([A, B])
    run = Run(policy.main(), hand)
    run.past(Train)
    hand.peers = (B,)
    run.finish()
    assert hand.all(Send)[0].to == (B,)
