"""`gossip` against Onoszko et al. 2021, "Decentralized federated learning of deep neural networks on non-iid
data": section 4.1 and Algorithm 1. Each test quotes its source."""

from __future__ import annotations

from typing import Any

import pytest

from pfl_node.policies.gossip import Gossip
from pfl_node.steps import Average, Report, Score, Send, Sleep, Train
from tests.drive_policy import ME, A, B, C, Hand, Run, core_of, make, model, offer


def test_a_model_is_trained_before_it_is_sent_for_the_first_time() -> None:
    """4.1: "for E local epochs. The model parameters [...] are then at a random time communicated"."""
    run = Run(make(Gossip).main(), hand := Hand([A]))
    sent = run.to(Send)
    assert [type(s) for s in hand.asked if isinstance(s, (Train, Send))] == [Train]
    assert core_of(sent.model) == 1.0


def test_main_waits_then_picks_a_random_peer_then_sends_and_so_on() -> None:
    """Algorithm 1, lines 2-6."""
    run = Run(make(Gossip).main(), hand := Hand([A, B, C]))
    for _ in range(60):
        run.past(Send)
    kinds = [type(s) for s in hand.asked if isinstance(s, (Sleep, Send))]
    assert kinds == [Sleep, Send] * 60
    assert {s.to[0] for s in hand.all(Send)} == {A, B, C}
    assert all(len(s.to) == 1 and s.round is None for s in hand.all(Send))


@pytest.mark.parametrize("jitter", [0.0, 0.3, 1.0])
def test_the_wait_is_delta_give_or_take(jitter: float) -> None:
    """Line 3, WAIT(delta), and 4.1: "at a random time"."""
    run = Run(make(Gossip, delta=2.0, jitter=jitter).main(), hand := Hand([A]))
    for _ in range(200):
        run.past(Sleep)
    waits = [s.seconds for s in hand.all(Sleep)]
    assert all(2.0 * (1 - jitter) <= w <= 2.0 * (1 + jitter) for w in waits)
    assert sum(waits) / len(waits) == pytest.approx(2.0, rel=0.1)
    assert len(set(waits)) == (1 if jitter == 0 else 200)


def test_the_default_is_to_wait_for_20_models() -> None:
    """5.2: "For the random gossip protocol we use n_peers = 20"."""
    assert make(Gossip).models_per_round == 20


def test_nothing_is_merged_before_n_peers_models_came() -> None:
    """Lines 9-10; 4.1: "waits for n_peers number of models before it aggregates"."""
    policy, hand = trained(n_peers=3)
    hand.run(policy.on_model(offer(A, 4)))
    hand.run(policy.on_model(offer(B, 4)))
    assert hand.asked == []
    hand.run(policy.on_model(offer(C, 4)))
    assert [type(s) for s in hand.asked] == [Average, Train, Report]


def test_the_merge_is_the_plain_mean_of_own_and_saved_models_and_is_then_trained() -> None:
    """Lines 11-12; 4.1: "aggregates its own current model with the received ones with a simple average"."""
    policy, hand = trained(n_peers=3)
    for sender, value in ((A, 3), (B, 5), (C, 12)):
        hand.run(policy.on_model(offer(sender, value)))
    (merge,) = hand.all(Average)
    assert [core_of(m) for m in merge.models] == [0, 3, 5, 12]
    assert merge.weights is None
    assert policy.model == model(5 + 1)


def test_the_saved_models_are_used_once() -> None:
    policy, hand = trained(n_peers=2, rounds=10)
    for i in range(6):
        hand.run(policy.on_model(offer(A, 10 * i)))
    assert [[core_of(m) for m in s.models[1:]] for s in hand.all(Average)] == [[0, 10], [20, 30], [40, 50]]


def test_a_merged_model_is_not_sent_before_it_was_trained() -> None:
    """4.1: "trained for E epochs before it is ready to be gossiped again"."""
    policy, hand = trained(n_peers=1)
    main = Run(policy.main(), hand)
    handler = Run(policy.on_model(offer(A, 100)), hand)
    handler.past(Average)
    hand.peers = (A,)
    assert core_of(main.to(Send).model) == 0
    main.go()
    handler.finish()
    assert core_of(main.to(Send).model) == 51


def test_models_that_come_during_a_merge_belong_to_the_next_one() -> None:
    policy, hand = trained(n_peers=1)
    first = Run(policy.on_model(offer(A, 1)), hand)
    first.to(Average)
    policy.saved.append(offer(B, 2))
    first.finish()
    assert [o.sender for o in policy.saved] == [B]


def test_gossip_scores_nothing() -> None:
    policy, hand = trained(n_peers=1)
    hand.run(policy.on_model(offer(A, 1)))
    assert hand.all(Score) == []


def test_the_stopping_criterion_is_the_number_of_rounds() -> None:
    """Line 2: "while stopping criterion not met"."""
    policy, hand = trained(n_peers=1, rounds=2)
    main = Run(policy.main(), hand)
    for _ in range(2):
        main.past(Sleep)
        hand.run(policy.on_model(offer(A, 1)))
    main.finish()
    assert [s.round for s in hand.all(Report)] == [0, 1]


def trained(rounds: int | None = 3, **options: Any) -> tuple[Gossip, Hand]:
    """A node past its first training."""
    policy = make(Gossip, rounds=rounds, me=ME, **options)
    policy.trained = True
    return policy, Hand()
