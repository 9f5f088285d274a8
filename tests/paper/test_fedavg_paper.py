"""`fedavg` against McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized
Data", Algorithm 1, and `fedprox` against Eriksson 2022, section 2.3.2. Each test quotes its source.
`test_fedavg_exact.py` compares whole runs."""

from __future__ import annotations

from typing import Any

import pytest

from pfl_node.aggregate import combine
from pfl_node.policies.fedavg import FedAvg
from pfl_node.policies.fedprox import FedProx
from pfl_node.policies.topology import sample
from pfl_node.settings import AggregateSettings
from pfl_node.steps import Average, Fresh, Gather, Report, Send, Train
from pfl_node.types import Offer, PeerId
from tests.drive_policy import ME, A, B, C, Hand, core_of, make, model

MANY = [PeerId(f"p{i:02}") for i in range(19)]


def update(sender: PeerId, value: float, samples: int, round: int = 0) -> Offer:
    return Offer(sender, model(value), round, samples=samples)


def test_everybody_begins_with_the_same_model() -> None:
    """Server executes: "initialize w_0", once."""
    policy, hand = make(FedAvg, rounds=3, C=1, start=7, samples=1), Hand([A])
    hand.run(policy.main())
    assert hand.all(Fresh) == [Fresh(common=True)]
    assert hand.all(Train)[0].model == model(100)


@pytest.mark.parametrize(("fraction", "m"), [(1.0, 20), (0.5, 10), (0.1, 2), (0.01, 1)])
def test_a_round_is_of_so_many_clients(fraction: float, m: int) -> None:
    """ "m <- max(C * K, 1)", of K = 20."""
    hands = [one_round(me, {ME, *MANY}, C=fraction) for me in (ME, *MANY)]
    assert sum(len(hand.all(Train)) for hand in hands) == m


def test_everybody_means_the_same_clients() -> None:
    """ "S_t <- (random set of m clients)": all nodes wait for the same clients, which send to all others."""
    chosen = sample([ME, *MANY], fraction=0.2, seed=0, round=0)
    for me in (ME, *MANY):
        hand = one_round(me, {ME, *MANY}, C=0.2)
        assert set(hand.all(Gather)[0].peers) == set(chosen) - {me}
        assert [set(s.to) for s in hand.all(Send)] == ([{ME, *MANY} - {me}] if me in chosen else [])


def test_the_clients_are_others_in_another_round() -> None:
    """ "S_t" is drawn in each round t."""
    policy, hand = make(FedAvg, rounds=10, C=0.2), Hand(MANY)
    hand.run(policy.main())
    assert len({tuple(s.peers) for s in hand.all(Gather)}) > 5


def test_the_paper_lets_a_tenth_of_the_clients_train() -> None:
    """Section 3, "Increasing parallelism": "we fix C = 0.1"."""
    assert make(FedAvg).cfg.C == 0.1


def test_a_client_trains_as_the_run_says_and_from_the_common_model() -> None:
    """ClientUpdate(k, w): E epochs of batches of B with eta, all of them settings of the run."""
    policy, hand = make(FedAvg, rounds=1, C=1), Hand([A])
    hand.run(policy.main())
    assert hand.all(Train) == [Train(model(100))]


def test_a_client_sends_what_it_has_trained() -> None:
    """ "return w to server", which is everybody."""
    policy, hand = make(FedAvg, rounds=1, C=1), Hand([A, B])
    hand.run(policy.main())
    assert [(s.to, s.model, s.round) for s in hand.all(Send)] == [((A, B), model(101), 0)]


def test_the_new_model_is_the_sum_weighted_with_the_numbers_of_samples() -> None:
    """ "w_t+1 <- sum n_k / n w_k"; mine is 101 with 10 samples."""
    policy, hand = make(FedAvg, rounds=1, C=1, samples=10), Hand([A, B])
    hand.answers[Gather] = lambda _: (update(A, 1, 30), update(B, 11, 60))
    hand.run(policy.main())
    assert core_of(policy.model) == pytest.approx((10 * 101 + 30 * 1 + 60 * 11) / 100)
    assert hand.all(Report)[0].model == policy.model


def test_who_is_no_client_of_the_round_has_no_part_in_the_sum() -> None:
    """The sum is over S_t, n = sum of n_k over K_t (Eriksson 2022, Algorithm 1)."""
    outsider = next(p for p in MANY if p not in sample(MANY, fraction=0.2, seed=0, round=0))
    hand = one_round(outsider, set(MANY), C=0.2, answers=lambda s: tuple(update(p, 5, 7) for p in s.peers))
    assert hand.all(Report)[0].model == model(5)
    assert hand.all(Train) == []


def test_all_nodes_add_up_in_the_same_order() -> None:
    """A server has one sum. Here all nodes have the same sum, bit for bit: they add in the order of ids."""
    for me in (A, B, C):
        hand = Hand(sorted({A, B, C} - {me}))
        hand.answers[Train] = lambda _, me=me: model(ord(me))  # type: ignore[misc]
        hand.answers[Gather] = lambda s: tuple(update(p, ord(p), 1) for p in s.peers)
        hand.run(make(FedAvg, rounds=1, me=me, samples=1, C=1).main())
        assert hand.all(Average) == [Average(model(100), [model(ord(p)) for p in "abc"], [1.0] * 3, own=0)]
        assert hand.all(Report)[0].data == {"from": [A, B, C]}


@pytest.mark.parametrize(("claim", "share"), [(None, 1000 / 1003), (10.0, 10 / 13)])
def test_a_client_counts_by_its_samples_however_many_it_has(claim: float | None, share: float) -> None:
    """ "sum n_k / n w_k": by default without a bound. An operator who sets `aggregate.claim` gives that up."""
    policy, hand = make(FedAvg, rounds=1, C=1, samples=1), Hand([A, B, C])
    policy.claim, rule = claim, AggregateSettings.model_validate({"claim": claim or "auto"})
    hand.answers[Train] = lambda _: model(0)
    hand.answers[Gather] = lambda _: (update(A, 1, 1000), update(B, 0, 1), update(C, 0, 1))
    hand.answers[Average] = lambda s: combine(rule, s.mine, s.others, s.weights, s.own, claimed=s.claimed)
    hand.run(policy.main())
    assert core_of(policy.model) == pytest.approx(share)


def test_each_round_begins_with_the_model_of_the_last() -> None:
    """ "for each round t": w_t+1 is what the next ClientUpdate gets."""
    policy, hand = make(FedAvg, rounds=2, C=1, samples=1), Hand([A])
    hand.answers[Gather] = lambda s: (update(A, 1, 1, s.round),)
    hand.run(policy.main())
    assert [s.model for s in hand.all(Train)] == [model(100), model((101 + 1) / 2)]


# -- FedProx -----------------------------------------------------------------------------------------------------


def test_fedprox_only_changes_the_weight_update_of_a_client() -> None:
    """2.3.2: "which only changes the weight update [...] compared to FedAvg"."""
    told: dict[str, Any] = {"rounds": 3, "C": 1, "samples": 1}
    (avg, a), (prox, b) = (make(FedAvg, **told), Hand([A])), (make(FedProx, **told), Hand([A]))
    a.run(avg.main())
    b.run(prox.main())
    assert [s for s in a.asked if not isinstance(s, Train)] == [s for s in b.asked if not isinstance(s, Train)]


def test_fedprox_holds_a_client_near_the_model_of_the_round() -> None:
    """Equation 2.7: L_k(w) + mu / 2 ||w - w_t||^2, where w_t is what this round begins with."""
    policy, hand = make(FedProx, rounds=2, C=1, mu=0.3, samples=1), Hand()
    hand.run(policy.main())
    assert hand.all(Train) == [Train(model(100), prox=0.3), Train(model(101), prox=0.3)]  # anchor None: the start


def test_fedprox_takes_the_mu_of_the_thesis() -> None:
    """3.4: "The proximal parameter mu was chosen to 0.1 for all datasets"."""
    assert make(FedProx).cfg.mu == 0.1


def one_round(me: PeerId, everybody: set[PeerId], *, answers: Any = None, **knobs: Any) -> Hand:
    """The first round of one node."""
    hand = Hand(sorted(everybody - {me}))
    if answers:
        hand.answers[Gather] = answers
    hand.run(make(FedAvg, rounds=1, me=me, samples=1, **knobs).main())
    return hand
