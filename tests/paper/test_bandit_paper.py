"""`bandit` against its description in docs/algorithms.md. Each test names the step."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from pfl_node.policies.bandit import Bandit, probability
from pfl_node.steps import Average, Fetch, Fresh, Gather, Publish, Report, Score, Send, Step, Train
from pfl_node.types import Eval, PeerId
from tests.drive_policy import A, B, C, Hand, core_of, make, model, offer

MANY = [PeerId(f"p{i:02}") for i in range(19)]


def scored(loss: float, samples: int) -> Eval:
    return Eval(loss, 0.0, samples)


def played(received: dict[PeerId, float], rounds: int = 1, n: int = 100, **knobs: Any) -> tuple[Bandit, Hand]:
    """All peers send their models in each round. The loss of a model is its distance to 1, that of mine is 0: its
    training adds 1 to a common initial model of 0."""

    def loss(step: Score) -> tuple[Eval, ...]:
        return tuple(scored(abs(core_of(m) - 1), n) for m in step.models)

    hand = Hand(list(received), {Score: loss, Fresh: lambda _: model(0)})
    hand.answers[Gather] = lambda step: tuple(offer(p, received[p], step.round) for p in step.peers)
    hand.served = {p: offer(p, value) for p, value in received.items()}
    policy = make(Bandit, rounds=rounds, **knobs)
    hand.run(policy.main())
    return policy, hand


def start_of(policy: Bandit) -> float:
    assert policy.start
    return core_of(policy.start)


def test_a_round_is_train_then_exchange_then_fetch_then_score_then_average() -> None:
    _, hand = played({A: 1, B: 1, C: 1})
    kinds: tuple[type[Step[Any]], ...] = (Train, Publish, Send, Gather, Fetch, Score, Average, Report)
    seen = list(dict.fromkeys(type(s) for s in hand.asked if isinstance(s, kinds)))
    assert seen == list(kinds)


def test_all_nodes_start_from_the_same_model() -> None:
    """Step 0: otherwise no average of two models would be better than either."""
    _, hand = played({A: 1})
    assert hand.all(Fresh)[0].common
    assert hand.all(Train)[0].model == model(0)


@pytest.mark.parametrize(("explore", "exploit"), [(2, 2), (1, 3), (2, 0)])
def test_a_node_sends_and_gets_no_more_models_than_el_does(explore: int, exploit: int) -> None:
    """Steps 2 and 3: some models are exchanged over a random graph, the others are fetched."""
    _, hand = played(dict.fromkeys(MANY, 1.0), rounds=6, explore=explore, exploit=exploit)
    for send, gather, fetch in zip(hand.all(Send), hand.all(Gather), hand.all(Fetch), strict=True):
        assert send.to == gather.peers
        assert (len(send.to), len(fetch.peers)) == (explore, exploit)
        assert not {*send.to} & {*fetch.peers}


def test_a_peer_whose_late_model_arrived_is_not_fetched_from_too() -> None:
    """Steps 2 and 3: its two models would both be averaged, and counted."""
    peers = [A, B, C, *MANY]
    policy, hand = make(Bandit, rounds=1, explore=1, exploit=len(peers)), Hand(peers)
    hand.answers[Gather] = lambda step: tuple(offer(p, 1, step.round - (p not in step.peers)) for p in peers[:3])
    hand.run(policy.main())
    assert not {A, B, C} & {*hand.all(Fetch)[0].peers}


def test_a_peer_of_which_nothing_is_known_is_chosen_like_any_other() -> None:
    """Step 3: the belief starts uniform."""
    seen = chosen({}, 700)
    assert all(abs(n / 1400 - 1 / 19) < 0.03 for n in seen.values())


def test_peers_that_help_are_chosen_equally_often_however_often_they_helped() -> None:
    """Step 3: at random among those, so that models spread in the whole group."""
    belief = {p: (9.0 + 9 * (i % 3), 1.0) if i < 6 else (1.0, 12.0) for i, p in enumerate(MANY)}
    seen = chosen(belief, 700)
    group = [seen[p] for p in MANY[:6]]
    assert sum(group) > 0.97 * 1400
    assert max(group) < 1.3 * min(group)


def test_with_too_few_peers_that_help_the_next_likely_are_tried() -> None:
    belief = dict.fromkeys(MANY, (1.0, 99.0)) | {A: (10.0, 1.0), B: (1.0, 6.0)}
    seen = chosen(belief, 300, [A, B, *MANY])
    assert seen[A] > 0.85 * 300
    assert seen[B] > 10 * max(seen[p] for p in MANY)


def chosen(belief: dict[PeerId, tuple[float, float]], rounds: int, peers: list[PeerId] = MANY) -> Counter[PeerId]:
    """How often peers are fetched from, with a belief that stays."""
    policy, hand = make(Bandit, rounds=rounds, memory=1), Hand(peers)
    policy.belief = dict(belief)
    hand.run(policy.main())
    return Counter(p for fetch in hand.all(Fetch) for p in fetch.peers)


def test_models_of_peers_are_ranked_by_their_loss_on_my_training_samples() -> None:
    """Step 4: no peer trained on them."""
    _, hand = played({A: 3, B: 1.5, C: 2}, score_samples=50)
    rank, size = hand.all(Score)
    assert (rank.split, rank.samples, size.split, size.samples) == ("train", 50, "val", 50)
    assert [core_of(m) for m in hand.all(Average)[2].others] == [1.5, 2, 3]


def test_the_number_of_models_with_the_lowest_validation_loss_of_their_average_is_taken() -> None:
    """Steps 5 and 6: of the best one, the best two, and so on, each averaged with mine."""
    policy, hand = played({A: 1.5, B: 0.25, C: 3}, n=10)
    assert [core_of(m) for m in hand.all(Score)[1].models] == pytest.approx([1, 2.5 / 2, 2.75 / 3, 5.75 / 4])
    assert start_of(policy) == pytest.approx(2.75 / 3)


def test_a_model_that_spoils_the_average_has_no_influence_on_the_next_training() -> None:
    """Step 5."""
    policy, _ = played({A: 1, B: 1, C: 50})
    assert start_of(policy) == pytest.approx(1)


def test_the_odds_of_two_models_are_the_likelihoods_of_the_samples() -> None:
    """Step 6: p is proportional to exp(-n loss)."""
    p = probability(scored(0.5, 10), scored(0.6, 10))
    assert p / (1 - p) == pytest.approx(2.718, abs=1e-3)
    assert probability(scored(0.5, 10), scored(0.5, 10)) == 0.5
    nan, infinite = float("nan"), float("inf")
    assert probability(scored(nan, 10), scored(5, 10)) == probability(scored(infinite, 10), scored(5, 10)) < 1e-300
    assert probability(scored(5, 10), scored(nan, 10)) == 1


@pytest.mark.parametrize(("n", "used"), [(0, True), (11, True), (12, False), (10_000, False)])
def test_an_average_is_used_unless_the_trained_model_is_almost_certainly_better(n: int, used: bool) -> None:
    """Step 6: the loss of the average is 0.25, that of the trained model 0, and exp(-0.25 * 12) is below 0.05."""
    policy, _ = played({A: 1.5}, n=n)
    assert start_of(policy) == (1.25 if used else 1)
    assert policy.belief[A] == ((2, 1) if used else (1, 2))
    assert (core_of(policy.model) == 1) == (not used)


def test_the_personal_model_weighs_the_trained_and_the_averaged_one_by_their_likelihoods() -> None:
    """Step 7: the next training starts from the averaged one."""
    policy, hand = played({A: 1.5, B: 1.5}, n=4)
    assert start_of(policy) == pytest.approx(1.25)
    assert core_of(policy.model) == pytest.approx(1 + 0.25 / (1 + 2.71828), abs=1e-4)
    assert hand.all(Report)[0].model == policy.model


def test_a_robust_rule_does_not_change_the_weights_of_the_personal_model() -> None:
    """Step 7: a median of two models would be their plain mean."""
    _, hand = played({A: 1.5, B: 1.5}, n=4)
    assert all(core_of(step.mine) == 1 and 1.5 in map(core_of, step.others) for step in hand.all(Average))


def test_models_whose_loss_is_not_finite_are_not_used() -> None:
    """Step 6: training from such an average would diverge."""
    policy, hand = make(Bandit), Hand([A, B])
    hand.answers[Score] = lambda step: tuple(
        scored(0.5 if step.split == "val" and i == 0 else float("nan"), 10) for i in range(len(step.models))
    )
    hand.answers[Gather] = lambda step: tuple(offer(p, 1e9, step.round) for p in step.peers)
    hand.run(policy.main())
    assert policy.start == policy.model == hand.all(Publish)[-1].model
    assert all(helped == 1 for helped, _ in policy.belief.values())


def test_a_node_that_joins_late_starts_from_the_common_model() -> None:
    """Step 0: its peers' averages with any other model would be useless to it."""
    policy, hand = make(Bandit, rounds=9), Hand([A])
    policy.round = 8
    hand.run(policy.main())
    assert hand.all(Fresh)[0].common


def test_the_next_training_starts_from_the_averaged_model_and_peers_get_the_trained_one() -> None:
    """Steps 6 and 3: neither has the personal model."""
    policy, hand = played({A: 1.5, B: 1.5}, rounds=2, n=0)
    averaged = 2.5 / 2
    assert [core_of(s.model) for s in hand.all(Train)] == pytest.approx([0, averaged])
    assert core_of(hand.all(Report)[0].model) == pytest.approx((1 + averaged) / 2)
    steps = [s for s in hand.asked if isinstance(s, Publish | Report)]
    assert [type(s) for s in steps] == [Publish, Report] * 2
    assert not any(s.publish for s in steps if isinstance(s, Report))
    trained = [core_of(s.model) for s in steps if isinstance(s, Publish)]
    assert trained == pytest.approx([1, averaged + 1])
    assert core_of(policy.model) != trained[-1]


def test_what_is_known_about_peers_survives_a_restart() -> None:
    policy, _ = played({A: 1, B: 50})
    again = make(Bandit)
    again.restore(policy.snapshot())
    assert (again.start, again.belief) == (policy.start, policy.belief)


def test_a_peer_whose_model_was_in_the_group_is_believed_to_help() -> None:
    """Step 8."""
    policy, _ = played({A: 1, B: 50})
    assert policy.belief[A] == pytest.approx((2, 1))
    assert policy.belief[B] == pytest.approx((1, 2))


def test_what_is_known_about_peers_fades() -> None:
    """Step 8: the models change, so that a peer of another group may become useful, and the other way round."""
    policy, _ = played({A: 1, B: 50}, rounds=3, memory=0.5)
    assert policy.belief[B] == pytest.approx((1, 1 + 1 + 0.5 + 0.25))


def test_alone_it_trains_on() -> None:
    policy, hand = played({}, rounds=3)
    assert core_of(policy.model) == start_of(policy) == 3
    assert not hand.all(Score)
