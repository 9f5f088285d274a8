from __future__ import annotations

from pfl_node.policies.gossip import Gossip
from pfl_node.steps import Average, Peers, Report, Send, Sleep, Train
from tests.drive_policy import A, B, Hand, Run, core_of, make, model, offer


def test_alone_a_node_sends_nothing_and_the_quiet_makes_its_rounds() -> None:
    policy, hand = make(Gossip, rounds=2), Hand()
    main = Run(policy.main(), hand)
    for _ in range(2):
        main.past(Sleep)
        hand.run(policy.on_quiet())
    main.finish()
    assert hand.all(Send) == []
    assert [s.round for s in hand.all(Report)] == [0, 1]
    assert policy.model == model(3)


def test_when_it_is_quiet_what_there_is_is_merged() -> None:
    policy, hand = make(Gossip, n_peers=20), Hand()
    policy.trained = True
    hand.run(policy.on_model(offer(A, 4)))
    hand.run(policy.on_quiet())
    assert [core_of(m) for m in hand.all(Average)[0].models] == [0, 4]
    assert policy.saved == []
    assert hand.all(Report)[0].data == {"from": [A]}


def test_the_same_sender_counts_again() -> None:
    policy, hand = make(Gossip, n_peers=2), Hand()
    policy.trained = True
    hand.run(policy.on_model(offer(A, 1)))
    hand.run(policy.on_model(offer(A, 2)))
    assert len(hand.all(Report)) == 1


def test_models_that_come_during_the_first_training_wait_and_the_newest_are_kept() -> None:
    policy, hand = make(Gossip, n_peers=2), Hand()
    main = Run(policy.main(), hand)
    main.to(Train)
    for value in range(5):
        hand.run(policy.on_model(offer(A, value)))
    hand.run(policy.on_quiet())
    assert hand.asked == []
    assert [core_of(o.model) for o in policy.saved] == [3, 4]
    main.to(Sleep)
    hand.run(policy.on_model(offer(B, 5)))
    assert [core_of(m) for m in hand.all(Average)[0].models] == [1, 3, 4, 5]


def test_after_the_last_round_nothing_is_merged_any_more() -> None:
    policy, hand = make(Gossip, n_peers=1, rounds=1), Hand()
    policy.trained = True
    hand.run(policy.on_model(offer(A, 1)))
    hand.run(policy.on_model(offer(A, 1)))
    hand.run(policy.on_quiet())
    assert [s.round for s in hand.all(Report)] == [0]


def test_a_peer_that_appears_is_sent_to_and_one_that_vanishes_is_not() -> None:
    policy, hand = make(Gossip), Hand()
    main = Run(policy.main(), hand)
    for _ in range(3):
        main.past(Peers)
    hand.peers = (A,)
    assert list(main.past(Send).to) == [A]
    hand.peers = (B,)
    assert list(main.past(Send).to) == [B]


def test_a_restarted_node_goes_on_without_a_first_training() -> None:
    before, hand = make(Gossip, n_peers=1, rounds=None), Hand([A])
    main = Run(before.main(), hand)
    main.to(Sleep)
    handler = Run(before.on_model(offer(A, 7)), hand)
    handler.to(Report)
    after = make(Gossip, n_peers=1, rounds=None)
    after.restore(before.snapshot())
    assert (after.round, after.model) == (1, before.model)
    again = Run(after.main(), hand := Hand([A]))
    again.past(Send)
    assert hand.all(Train) == []
