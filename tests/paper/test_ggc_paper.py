"""`ggc` against Kharrat, Canini & Horvath 2025, "DPFL: Decentralized Personalized Federated Learning" (AISTATS,
arXiv 2406.06520): its abstract and the authors' code. Each test names its source."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import nan
from random import Random
from typing import Any

import pytest

from pfl_node.model import Model
from pfl_node.policies.ggc import Ggc
from pfl_node.policies.grouping import average, double_greedy, weights
from pfl_node.steps import Average, Fetch, Fresh, Peers, Publish, Report, Score, Send, Train, advance
from pfl_node.types import Eval, Offer, PeerId
from tests.drive_policy import ME, A, B, C, D, Hand, Run, core_of, make, model, offer


def loss_towards(goal: float, step: Score) -> tuple[Eval, ...]:
    """The loss of a model is the distance of its core to the goal."""
    return tuple(Eval(abs(goal - core_of(m)), 0.0, 1) for m in step.models)


def searched(goal: float, *values: float, most: int = 9, seed: int = 0, mine: float = 0.0) -> list[float]:
    """The models that GGC chooses; their average with mine is to be near the goal."""
    offers = [offer(PeerId(f"p{i}"), value) for i, value in enumerate(values)]
    found: list[Offer] = []

    async def flow() -> None:
        found.extend(await double_greedy(offer(ME, mine), offers, most, Random(seed), None))

    run = flow()
    step = advance(run)
    while isinstance(step, Score):
        step = advance(run, loss_towards(goal, step))
    assert step is None
    return sorted(core_of(o.model) for o in found)


def test_a_peer_joins_if_the_average_with_it_lowers_my_validation_loss() -> None:
    """The authors' code: a group is rewarded for a low loss of its averaged model on the validation data."""
    assert searched(4, 8) == [8]
    assert searched(-4, 8) == []


def test_a_model_that_is_bad_alone_may_be_good_in_the_group() -> None:
    """Abstract: DPFL leverages combinatorial relationships among clients. The average of 0 and -4 is
    farther from the goal of 4 than 0, but that of 0, -4 and 12 is nearer than that of 0 and 12."""
    assert searched(4, -4) == []
    found = [searched(4, 12, -4, seed=seed) for seed in range(20)]
    assert [-4, 12] in found  # if 12 comes first
    assert all(12 in group for group in found)


def test_every_peer_that_helps_is_kept_and_every_other_is_removed() -> None:
    assert all(searched(10, 10, 10, 10, -90, -90, mine=10.5, seed=seed) == [10, 10, 10] for seed in range(20))


def test_the_odds_of_joining_are_the_gains_of_joining_and_of_leaving() -> None:
    """The authors' code: i joins X with probability a' / (a' + b'), the gains of X with it and of Y without."""
    losses = [(5.0, 2.5), (2.0, 1.5)]  # X gains 3 with it, Y gains 1 without it
    both = Counter(bool(played(losses, seed)) for seed in range(2000))
    assert both[True] / 2000 == pytest.approx(3 / (3 + 1), abs=0.03)


def played(losses: list[tuple[float, float]], seed: int, *values: float) -> list[float]:
    """Candidates of these values, by default one; the losses of X and Y, then for each candidate those of X with
    it and of Y without it. Returns the chosen ones."""
    return rehearsed(losses, seed, *values)[0]


def rehearsed(losses: list[tuple[float, float]], seed: int, *values: float) -> tuple[list[float], list[Score]]:
    """The same, and what was scored."""
    answers, found, asked = iter(losses), list[Offer](), list[Score]()
    offers = [offer(PeerId(f"p{i}"), value) for i, value in enumerate(values or (1,))]

    async def flow() -> None:
        found.extend(await double_greedy(offer(ME, 0), offers, 4, Random(seed), None))

    run = flow()
    step = advance(run)
    while isinstance(step, Score):
        asked.append(step)
        step = advance(run, tuple(Eval(loss, 0.0, 1) for loss in next(answers)))
    assert step is None
    return [core_of(o.model) for o in found], asked


def test_x_grows_from_nothing_and_y_shrinks_from_all() -> None:
    """Buchbinder et al. 2012, Algorithm 2: one candidate after the other, in an order of chance, joins X or leaves
    Y; the next one is compared with what X and Y have become."""
    orders = set()
    for seed in range(20):
        joins: list[tuple[float, float]] = [
            (5, 5),
            (1, 9),
            (2, 5),
        ]  # the second makes X worse than the first alone
        (first,), asked = rehearsed(joins, seed, 3, 30)
        other = 33 - first
        orders.add(first)
        assert {s.split for s in asked} == {"val"}
        means = [[core_of(m) for m in s.models] for s in asked]
        assert means[0] == [0, 11]  # X: mine alone; Y: mine with both
        assert means[1] == [first / 2, other / 2]
        assert means[2] == [11, first / 2]

        leaves: list[tuple[float, float]] = [
            (5, 5),
            (9, 1),
            (4, 2),
        ]  # Y gained by the first, and loses by the second
        (second,), asked = rehearsed(leaves, seed, 3, 30)
        assert second == other
        assert [core_of(m) for m in asked[2].models] == [other / 2, 0]
    assert orders == {3, 30}


def test_a_loss_that_is_no_number_is_the_worst() -> None:
    assert all(played([(nan, 1.0), (1.0, 1.0)], seed) == [1] for seed in range(20))


def test_a_model_that_is_not_finite_is_no_candidate() -> None:
    assert searched(4, 8, nan) == [8]


def test_without_any_gain_a_peer_joins_unless_it_harms() -> None:
    """The authors' code: p = 1 if neither joining nor leaving gains anything."""
    assert all(searched(0, 0, seed=seed) == [0] for seed in range(20))
    losses = [(1.0, 1.0), (2.0, 2.0)]  # joining and leaving both cost
    assert all(played(losses, seed) == [] for seed in range(20))


def test_the_budget_limits_the_collaborators() -> None:
    """Abstract: a fixed budget; the authors' code stops when a group has so many members."""
    assert len(searched(1, *[1] * 9, most=3)) == 3


def test_the_average_is_weighted_by_the_numbers_of_samples() -> None:
    """The authors' code weights models by their clients' data; the claims of peers are limited as elsewhere."""
    mine, group = (
        replace(offer(ME, 0), samples=10),
        [replace(offer(A, 1), samples=30), replace(offer(B, 1), samples=5)],
    )
    assert weights(mine, group, None) == [10, 30, 5]
    assert weights(mine, [replace(group[0], samples=10**9), group[1]], 10.0) == [10, 100, 5]
    assert core_of(average(mine, group, None)) == pytest.approx(35 / 45)


def swarm(goal: float = 5, rounds: int = 1, **options: Any) -> tuple[Ggc, Hand]:
    policy, hand = make(Ggc, rounds=rounds, **options), Hand([A, B, C, D])
    hand.answers[Fresh] = lambda _: model(0)
    hand.answers[Score] = lambda s: loss_towards(goal, s)
    hand.served = {A: offer(A, 6), B: offer(B, 7), C: offer(C, -60), D: offer(D, -70)}
    return policy, hand


def test_all_clients_start_with_one_model_and_train_it_before_they_look_for_others() -> None:
    """The authors' code: copies of one model, some rounds of training, then the first search."""
    policy, hand = swarm()
    Run(policy.main(), hand).to(Fetch)
    assert [type(s) for s in hand.asked] == [Fresh, Train, Publish, Train, Publish, Peers]
    assert hand.all(Fresh)[0].common


def test_in_the_first_round_everybody_is_looked_at_in_batches_of_the_budget() -> None:
    """No more models than the budget at a time; the authors' code has those of all clients at hand."""
    policy, hand = swarm(B_c=3)
    hand.run(policy.main())
    first, second = hand.all(Fetch)
    assert (len(first.peers), len(second.peers)) == (3, 1)
    assert {*first.peers, *second.peers} == {A, B, C, D}
    assert set(policy.C or ()) == {A, B}


def test_the_search_can_be_limited_and_left_out() -> None:
    for search, fetched in ((2, 2), (0, 0)):
        policy, hand = swarm(search=search)
        hand.run(policy.main())
        assert sum(len(s.peers) for s in hand.all(Fetch)) == fetched


def test_in_each_round_a_client_trains_then_searches_then_averages_with_its_group() -> None:
    """The authors' code: all train, then each searches, then each averages with its group."""
    policy, hand = swarm()
    hand.run(policy.main())
    (step,) = hand.all(Average)
    assert {core_of(m) for m in step.others} == {6, 7}
    assert core_of(step.mine) == 2  # initial training and one round
    assert core_of(policy.model) == pytest.approx((2 + 6 + 7) / 3)
    assert set(hand.all(Report)[0].data["from"]) == {A, B}


def test_the_model_of_a_round_is_weighted_by_the_numbers_of_samples() -> None:
    """As in the search."""
    policy, hand = swarm(samples=10)
    hand.served = {A: replace(offer(A, 6), samples=30)}
    hand.run(policy.main())
    (step,) = hand.all(Average)
    assert (step.own, step.weights) == (10, [30])
    assert core_of(policy.model) == pytest.approx((10 * 2 + 30 * 6) / 40)


def test_the_group_survives_a_restart() -> None:
    policy, hand = swarm()
    hand.run(policy.main())
    again = make(Ggc)
    again.restore(policy.snapshot())
    assert set(again.C or ()) == {A, B}


def test_peers_fetch_what_a_client_trained() -> None:
    """The authors' code: the models of a search are those after local training, not averages."""
    policy, hand = swarm()
    hand.run(policy.main())
    published: list[Model] = [s.model for s in hand.all(Publish)]
    assert [core_of(m) for m in published] == [1, 2]
    assert not hand.all(Report)[0].publish


def test_a_collaborator_is_fetched_and_judged_again_in_every_round() -> None:
    """The search is repeated within the group; the graph is directed: nobody is asked to take part."""
    policy, hand = swarm(goal=20, rounds=2, B_c=2)
    hand.answers[Train] = lambda s: s.model
    hand.run(policy.main())
    assert [{*s.peers} for s in hand.all(Fetch)[2:]] == [{A, B}]
    assert hand.all(Send) == []


def test_the_places_of_lost_collaborators_are_filled_with_others() -> None:
    policy, hand = swarm(B_c=2)
    policy.C, policy.round, policy.rounds = [A, B], 1, 2
    hand.peers = (B, C, D)
    hand.run(policy.main())
    (fetch,) = hand.all(Fetch)
    assert fetch.peers[0] == B
    assert fetch.peers[1] in (C, D)
    assert policy.C == [B]


def test_after_a_restart_with_a_smaller_budget_fewer_collaborators_are_kept() -> None:
    policy, hand = swarm(B_c=2)
    policy.C, policy.round, policy.rounds = [A, B, C], 1, 2
    hand.run(policy.main())
    assert hand.all(Fetch)[0].peers == [A, B]
    assert policy.C == [A, B]
