"""`dac` against Listo Zec et al. 2022, "Decentralized adaptive clustering of deep nets is beneficial for client
collaboration", Algorithm 1, and what Trinca 2024, section 4.1.2, says of it. Each test cites its source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import exp
from random import Random
from statistics import fmean
from typing import Any

import pytest

from pfl_node.policies.dac import Dac, tau
from pfl_node.settings import Settings
from pfl_node.sim.simulate import simulate
from pfl_node.steps import Average, Fetch, Publish, Report, Score, Send, Step, Train
from pfl_node.tracking.tracking import Observe
from pfl_node.types import Offer, PeerId
from tests.drive_policy import A, B, C, D, Hand, core_of, make, model, offer


@pytest.mark.parametrize(
    ("t", "value"), [(0, 1.0), (1, 3.990), (5, 14.864), (10, 23.848), (20, 29.921), (1000, 31.0)]
)
def test_tau_goes_from_1_to_a_plus_1(t: int, value: float) -> None:
    """tau(t) = 2a / (1 + exp(-b t)) - a + 1 with a = 30 and b = 0.2."""
    cfg = make(Dac).cfg
    assert (cfg.a, cfg.b) == (30, 0.2)
    assert tau(t, cfg.a, cfg.b) == pytest.approx(value, abs=1e-3)


def test_at_first_everybody_is_as_likely_as_anybody() -> None:
    """Unseen peers have s = 0, so p is uniform before the first score."""
    policy, seen = make(Dac, n_sampled=1), Counter[PeerId]()
    for _ in range(4000):
        seen.update(policy.sample([A, B, C, D], tau(0, 30, 0.2)))
    assert all(abs(n / 4000 - 0.25) < 0.035 for n in seen.values())


def test_peers_are_sampled_by_the_softmax_of_their_similarities() -> None:
    """p_ij = exp(tau s_ij) / sum_k exp(tau s_ik)."""
    policy, seen = make(Dac, n_sampled=1), Counter[PeerId]()
    policy.s, policy.hearsay = {A: 0.5, B: 0.2}, {C: 0.3}
    for _ in range(6000):
        seen.update(policy.sample([A, B, C, D], 4.0))
    weights = {A: exp(2.0), B: exp(0.8), C: exp(1.2), D: exp(0.0)}
    for p, w in weights.items():
        assert seen[p] / 6000 == pytest.approx(w / sum(weights.values()), abs=0.03)


def test_they_are_sampled_without_replacement() -> None:
    """The second peer is drawn from the remaining ones by the same rule."""
    policy, first = make(Dac, n_sampled=2), Counter[tuple[PeerId, ...]]()
    policy.s = {A: 1.0, B: 0.5, C: 0.0}
    for _ in range(6000):
        first[tuple(policy.sample([A, B, C], 2.0))] += 1
    p = {j: exp(2 * s) for j, s in policy.s.items()}
    total = sum(p.values())
    for (i, j), n in first.items():
        assert n / 6000 == pytest.approx(p[i] / total * p[j] / (total - p[i]), abs=0.03)
    assert len(first) == 6


def test_the_chances_sharpen_with_time() -> None:
    """tau grows, so late rounds prefer the most similar peers."""
    shares = []
    for t in (0, 5, 20):
        policy, seen = make(Dac, n_sampled=1), Counter[PeerId]()
        policy.s = {A: 1.0, B: 0.8, C: 0.8, D: 0.8}
        for _ in range(1500):
            seen.update(policy.sample([A, B, C, D], tau(t, 30, 0.2)))
        shares.append(seen[A] / 1500)
    assert shares[0] < 0.4 < shares[1] < shares[2]
    assert shares[2] > 0.95


def test_the_similarity_is_one_over_the_loss_of_its_model_on_my_training_data() -> None:
    """s_ij = 1 / l(w_j; x_i, y_i)."""
    policy, hand = played({A: offer(A, model(0, 4)), B: offer(B, model(0, 0.5))}, score_samples=50)
    score = hand.all(Score)[0]
    assert (score.split, score.samples, score.own_sample_each) == ("train", 50, False)
    assert policy.s == {A: 0.25, B: 2.0}


def test_the_models_are_averaged_by_numbers_of_samples_and_not_by_similarity() -> None:
    """The weights of FedAvg: n_train of each, including our own."""
    served = {A: replace(offer(A, model(10, 0.01)), samples=30), B: replace(offer(B, model(20, 9)), samples=10)}
    policy, hand = played(served, samples=10)
    average = hand.all(Average)[0]
    assert dict(zip(hand.all(Report)[0].data["from"], average.weights or (), strict=True)) == {A: 30, B: 10}
    assert average.own == 10
    assert core_of(policy.model) == pytest.approx((10 * 1 + 30 * 10 + 10 * 20) / 50)


def test_a_round_is_train_then_sample_then_score_then_average_then_measure() -> None:
    """Both published codes train before the first exchange; Trinca's tests the average, as it does for EL."""
    policy, hand = played({A: replace(offer(A, model(10, 2)), samples=1)})
    kinds: tuple[type[Step[object]], ...] = (Train, Fetch, Score, Average, Report)
    assert [type(s) for s in hand.asked if isinstance(s, kinds)] == list(kinds)
    assert hand.all(Average)[0].mine == model(1)
    assert hand.all(Report)[0].model == policy.model == model(5.5, 1.5)


def test_no_client_serves_a_model_that_is_untrained_or_only_averaged() -> None:
    """What is exchanged is the result of local training, in the first round too."""
    _, hand = played({A: replace(offer(A, model(10, 2)), samples=1)})
    assert [s.model for s in hand.all(Publish)] == [model(1), model(1)]
    assert not hand.all(Report)[0].publish


def test_the_similarities_travel_with_the_model() -> None:
    """The two-hop estimate needs s_kj of the sampled peers."""
    policy, hand = played({A: offer(A, model(0, 4)), B: offer(B, model(0, 0.5))})
    assert hand.all(Publish)[-1].notes == {A: 0.25, B: 2.0} == policy.s


def test_of_a_peer_never_met_the_most_similar_one_that_knows_it_is_believed() -> None:
    """Two-hop: s_ij = s_kj, k the sampled peer most similar to i that has met j."""
    served = {
        A: replace(offer(A, model(0, 1)), notes={C: 7.0, D: 5.0}),
        B: replace(offer(B, model(0, 0.1)), notes={C: 3.0}),
    }
    policy, _ = played(served)
    assert policy.hearsay == {C: 3.0, D: 5.0}


def test_what_was_measured_is_never_replaced_by_what_was_heard() -> None:
    served = {
        A: replace(offer(A, model(0, 1)), notes={B: 99.0}),
        B: replace(offer(B, model(0, 4)), notes={A: 99.0}),
    }
    policy, _ = played(served)
    assert policy.s == {A: 1.0, B: 0.25}
    assert policy.hearsay == {}


def test_hearsay_goes_two_hops_and_no_further() -> None:
    """A node sends only similarities that it measured itself."""
    _, hand = played({A: replace(offer(A, model(0, 1)), notes={C: 7.0})})
    assert hand.all(Publish)[-1].notes == {A: 1.0}


def test_each_round_draws_anew() -> None:
    """Trinca's code seeds the generator identically in every round, which ties a node to its first peers."""
    many = [PeerId(f"p{i:02}") for i in range(20)]
    policy, hand = make(Dac, rounds=10), Hand(many)
    policy.rng = Random(0)
    hand.run(policy.main())
    assert len({tuple(s.peers) for s in hand.all(Fetch)}) == 10


@pytest.mark.parametrize("n", [1, 4])
def test_n_sampled_models_are_fetched_and_averaged_in_every_round(n: int) -> None:
    """Algorithm 1 samples n peers in a round."""
    many = [PeerId(f"p{i:02}") for i in range(20)]
    policy, hand = make(Dac, rounds=5, n_sampled=n), Hand(many)
    hand.served = {p: replace(offer(p, 3), samples=1) for p in many}
    hand.run(policy.main())
    assert [len(set(s.peers)) for s in hand.all(Fetch)] == [n] * 5
    assert [len(s.others) for s in hand.all(Average)] == [n] * 5


def test_there_is_no_final_all_reduce() -> None:
    """Trinca 2024, 4.1.3, has one "whenever feasible"; in its code DAC has none."""
    assert "all_reduce" not in Dac.Config.model_fields
    policy, hand = make(Dac, rounds=3), Hand([A, B, C, D])
    hand.run(policy.main())
    assert [s.round for s in hand.all(Report)] == [0, 1, 2]
    assert len(hand.all(Fetch)) == 3
    assert hand.all(Send) == []


def test_on_clustered_data_nodes_come_to_fetch_from_their_own_cluster() -> None:
    """Trinca 2024, 4.1.2: DAC "adapts the communication weights between nodes based on their data distributions".
    Of 11 peers, 5 are of a node's cluster."""
    found: dict[int, list[tuple[PeerId, PeerId]]] = {}

    def watch(node: PeerId) -> Observe:
        def observe(event: str, data: Mapping[str, Any]) -> None:
            if event == "round":
                found.setdefault(data["round"], []).extend((node, peer) for peer in data["from"])

        return observe

    told = {
        "rounds": 12,
        "device": "cpu",
        "policy": {"name": "dac", "n_sampled": 3},
        "task": {"name": "digits", "angles": [0, 180], "sizes": [6, 6]},
        "eval": {"every": 12},
    }
    summary = simulate(Settings.model_validate(told), nodes=12, watch=watch)
    cluster = {n.id: n.cluster for n in summary.nodes}
    own = [fmean(cluster[i] == cluster[j] for i, j in found[t]) for t in range(12)]
    assert own[1] < 0.65
    assert min(own[-3:]) > 0.9
    assert [len(found[t]) for t in range(9, 12)] == [12 * 3] * 3


def played(served: dict[PeerId, Offer], samples: int = 1, score_samples: int | None = None) -> tuple[Dac, Hand]:
    """One round with peers A, B, C and D and these answers."""
    policy, hand = make(Dac, rounds=1, samples=samples, score_samples=score_samples), Hand([A, B, C, D])
    hand.served = served
    hand.run(policy.main())
    return policy, hand
