"""`dfca` against Kirch et al. 2025, "DFCA: Decentralized Federated Clustering Algorithm" (arXiv 2510.15300; IEEE
Internet of Things Journal 2026), Algorithm 1 and section IV, and the first author's code. Each test names its
source."""

from __future__ import annotations

from typing import Any

import pytest

from pfl_node.policies import configure
from pfl_node.policies.dfca import Dfca
from pfl_node.steps import Average, Fresh, Report, Score, Send, Train
from pfl_node.types import PeerId
from tests.drive_policy import A, B, C, D, Hand, Run, head_of, make, model, offer


def begun(**options: Any) -> tuple[Dfca, Hand]:
    """Two models: (3, 9) and (7, 4); the loss is the head."""
    policy, hand = make(Dfca, rounds=1, **options), Hand([A, B, C, D])
    policy.models = [model(3, 9), model(7, 4)]
    return policy, hand


def test_every_client_has_k_models_and_all_start_with_the_same_ones() -> None:
    """Algorithm 1, lines 4 and 5: in DFCA-GI all clients get the same k models, in DFCA-LI each has its own."""
    for init, common in (("global", True), ("local", False)):
        policy, hand = make(Dfca, rounds=1, k=3, init=init), Hand()
        hand.run(policy.main())
        assert [(s.seed, s.common) for s in hand.all(Fresh)] == [(0, common), (1, common), (2, common)]


def test_the_model_with_the_lowest_loss_on_my_data_is_trained() -> None:
    """Equation (4): the cluster whose model has the lowest loss on the local data; (5): only it is trained."""
    policy, hand = begun()
    hand.run(policy.main())
    assert hand.all(Score)[0].split == "train"
    assert hand.all(Train)[0].model == model(7, 4)
    assert hand.all(Train)[0].slot == 1  # the state of an optimizer belongs to one of the k
    assert policy.models == [model(3, 9), model(8, 5)]
    assert hand.all(Report)[0].data == {"head": 1, "losses": [9, 4]}


def test_it_is_sent_to_a_few_random_peers_with_its_number() -> None:
    """Section IV-C: clients send only the model that they have trained; the code: to a few partners at random."""
    policy, hand = begun(degree=2)
    hand.run(policy.main())
    (send,) = hand.all(Send)
    assert len(set(send.to)) == 2
    assert (send.model, send.tag, send.round) == (model(8, 5), 1, None)


def test_models_are_merged_one_after_the_other_into_a_running_average() -> None:
    """Equation (8), an online version of the mean of (7), mine included."""
    policy, hand = begun()
    for sender, value in ((A, 10), (B, 13), (C, 40)):
        hand.run(policy.on_model(offer(sender, model(value), tag=0)))
    assert policy.arrived[0] == (model((10 + 13 + 40) / 3), 3)
    hand.run(policy.merge())
    assert policy.models[0] == model((3 + 10 + 13 + 40) / 4, (9 + 10 + 13 + 40) / 4)
    assert policy.arrived == {}


def test_however_many_arrive_one_model_per_cluster_is_stored() -> None:
    """Section IV-C: only the current estimate of each model is stored, not all updates of neighbours."""
    policy, hand = begun()
    for i in range(50):
        hand.run(policy.on_model(offer(A, model(i), tag=i % 2)))
    assert {j: n for j, (_, n) in policy.arrived.items()} == {0: 25, 1: 25}


def test_a_model_only_changes_the_one_of_its_cluster() -> None:
    """Equations (6) and (7): clients update the models of all clusters, each with those of its own cluster."""
    policy, hand = begun()
    hand.run(policy.on_model(offer(A, model(5, 11), tag=0)))
    hand.run(policy.main())
    assert policy.models == [model(4, 10), model(8, 5)]


def test_a_model_that_arrives_during_training_is_not_lost() -> None:
    policy, hand = begun()
    run = Run(policy.main(), hand)
    run.to(Train)
    hand.run(policy.on_model(offer(A, model(10, 7), tag=1)))
    run.finish()
    hand.run(policy.merge())
    assert policy.models[1] == model(9, 6)


def test_a_merge_while_another_model_is_being_added_counts_each_model_once() -> None:
    policy, hand = begun()
    hand.run(policy.on_model(offer(A, model(9), tag=0)))
    handler = Run(policy.on_model(offer(B, model(15), tag=0)), hand)
    handler.to(Average)
    hand.run(policy.merge())
    handler.finish()
    assert policy.models[0] == model(3, 9)
    assert policy.arrived[0] == (model(12), 2)


def test_a_model_that_is_not_finite_is_left_out() -> None:
    """It would be the running average of its cluster, which the next merge would leave out."""
    policy, hand = begun()
    hand.run(policy.on_model(offer(A, model(float("nan")), tag=0)))
    assert policy.arrived == {}


def test_the_models_are_scored_on_as_many_samples_as_the_knob_says() -> None:
    policy, hand = begun()
    policy.cfg = configure(Dfca, {"samples": 7})
    hand.run(policy.main())
    assert hand.all(Score)[0].samples == 7


def test_numbers_of_clusters_that_do_not_exist_are_ignored() -> None:
    policy, hand = begun()
    hand.run(policy.on_model(offer(A, model(5), tag=2)))
    assert policy.arrived == {}


def test_the_models_and_what_arrived_survive_a_restart() -> None:
    policy, hand = begun()
    hand.run(policy.main())
    hand.run(policy.on_model(offer(A, model(5), tag=1)))
    again = make(Dfca)
    again.restore(policy.snapshot())
    assert (again.models, again.j, again.arrived) == (policy.models, 1, {1: (model(5), 1)})


def test_after_a_restart_with_fewer_clusters_the_others_are_given_up() -> None:
    """Peers ignore their numbers, so a node would train a model that it shares with no other."""
    policy, hand = begun(k=1)
    policy.j, policy.arrived = 1, {0: (model(5, 11), 1), 1: (model(5), 1)}
    hand.run(policy.main())
    assert policy.models == [model(5, 11)]
    assert hand.all(Send)[0].tag == 0


@pytest.mark.parametrize("peers", [[], [A], [A, B]])
def test_it_works_in_swarms_of_one_two_and_three(peers: list[PeerId]) -> None:
    policy, hand = make(Dfca, rounds=3), Hand(peers)
    hand.run(policy.main())
    assert [s.round for s in hand.all(Report)] == [0, 1, 2]
    assert head_of(policy.model) == 102
