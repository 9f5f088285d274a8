from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest

from pfl_node.policies.dac import MAX_SIMILARITIES, MOST, Dac, similarity
from pfl_node.steps import Average, Fetch, Gather, Linger, Publish, Report, Score, Send, Train
from pfl_node.types import PeerId
from tests.drive_policy import A, B, C, Hand, Run, losses, make, model, offer

MANY = [PeerId(f"p{i:04}") for i in range(5000)]


@pytest.mark.parametrize("peers", [[], [A], [A, B]])
def test_it_works_in_swarms_of_one_two_and_three(peers: list[PeerId]) -> None:
    policy, hand = make(Dac, rounds=3, samples=10), Hand(peers)
    hand.served = {p: replace(offer(p, 5), samples=10) for p in peers}
    hand.run(policy.main())
    assert [s.round for s in hand.all(Report)] == [0, 1, 2]
    assert [set(s.peers) for s in hand.all(Fetch)] == [set(peers)] * 3
    assert len(hand.all(Train)) == 3


def test_when_nobody_answers_a_round_is_training_alone() -> None:
    policy, hand = make(Dac, rounds=2, samples=10), Hand([A, B])
    hand.run(policy.main())
    assert policy.model == model(2)
    assert hand.all(Score) == []
    assert policy.s == {}


@pytest.mark.parametrize(("discreet", "similarities"), [(False, {A: 10.0}), (True, {})])
def test_one_whose_data_are_private_does_not_tell_how_others_do_on_them(
    discreet: bool, similarities: dict[PeerId, float]
) -> None:
    policy, hand = make(Dac, rounds=1, samples=10), Hand([A])
    policy.discreet, hand.served = discreet, {A: offer(A, 0.1)}
    hand.run(policy.main())
    assert policy.s == {A: pytest.approx(10)}
    assert hand.all(Publish)[-1].notes == pytest.approx(similarities)


def test_a_peer_that_does_not_answer_keeps_its_similarity() -> None:
    policy, hand = make(Dac, rounds=1, samples=10), Hand([A, B])
    policy.s = {A: 4.0, B: 2.0}
    hand.served = {B: offer(B, 0.1)}
    hand.run(policy.main())
    assert policy.s == {A: 4.0, B: pytest.approx(10)}


@pytest.mark.parametrize(
    ("loss", "s"), [(0.5, 2.0), (4.0, 0.25), (0.0, MOST), (-1.0, MOST), (1e-30, MOST), (nan, 0.0), (inf, 0.0)]
)
def test_similarity_as_a_table(loss: float, s: float) -> None:
    assert similarity(losses(loss)[0]) == pytest.approx(s)


def test_a_model_whose_loss_is_not_a_number_makes_its_peer_no_more_likely_than_a_stranger() -> None:
    policy, hand = make(Dac, rounds=1, samples=10), Hand([A])
    hand.served = {A: replace(offer(A, nan), samples=10)}
    hand.run(policy.main())
    assert policy.s == {A: 0.0}
    assert policy.model == model(1)  # its own, trained


def test_similarities_that_overflow_an_exponential_are_no_trouble() -> None:
    policy = make(Dac, n_sampled=3)
    policy.s = {A: MOST, B: MOST / 2, C: 1.0}
    assert policy.sample([A, B, C, PeerId("d")], 31.0) == [A, B, C]


def test_those_who_are_gone_are_not_sampled() -> None:
    policy = make(Dac, n_sampled=3)
    policy.s, policy.hearsay = {A: 100.0, B: 1.0}, {C: 50.0}
    assert policy.sample([B], 31.0) == [B]


def test_what_was_heard_of_is_kept_only_of_those_who_are_there() -> None:
    """Otherwise a peer could fill the memory with names."""
    policy, hand = make(Dac, rounds=1), Hand([A, B])
    notes: dict[str, float] = {**dict.fromkeys(MANY[:MAX_SIMILARITIES], 1.0), B: 2.0, policy.me: 9.0}
    hand.served = {A: replace(offer(A, 1), notes=notes)}
    hand.run(policy.main())
    assert policy.hearsay == {B: 2.0}


def test_what_a_peer_tells_is_no_more_similar_than_can_be_measured() -> None:
    policy, hand = make(Dac, rounds=1), Hand([A, B, C])
    hand.served = {A: replace(offer(A, 1), notes={B: 1e300, C: -1.0})}
    hand.run(policy.main())
    assert policy.hearsay == {B: MOST}


def test_of_very_many_similarities_the_highest_travel() -> None:
    policy = make(Dac)
    policy.s = {p: float(i) for i, p in enumerate(MANY)}
    assert set(policy.similarities) == set(MANY[-MAX_SIMILARITIES:])


def test_it_stays_for_those_who_still_fetch() -> None:
    policy, hand = make(Dac, rounds=2), Hand([A])
    hand.run(policy.main())
    assert isinstance(hand.asked[-1], Linger)
    assert len(hand.all(Linger)) == 1


def test_nothing_is_ever_pushed() -> None:
    assert Dac.takes == ()
    assert not Dac.lockstep
    policy, hand = make(Dac, rounds=3), Hand([A, B])
    hand.run(policy.main())
    assert not hand.all(Send) + hand.all(Gather)


def test_a_restarted_node_serves_at_once_what_it_had_and_remembers_whom_it_knew() -> None:
    before, hand = make(Dac, rounds=4, samples=5), Hand([A, B])
    hand.served = {A: replace(offer(A, 2), samples=5, notes={B: 3.0})}
    run = Run(before.main(), hand)
    run.past(Report)
    run.to(Report)
    after, hand = make(Dac, rounds=4, samples=5), Hand([A, B])
    after.restore(before.snapshot())
    hand.run(after.main())
    assert isinstance(hand.asked[0], Publish)
    assert (hand.all(Publish)[0].model, hand.all(Publish)[0].notes) == (before.model, {A: 0.5})
    assert [s.round for s in hand.all(Report)] == [2, 3]
    assert (after.s, after.hearsay) == ({A: 0.5}, {B: 3.0})


def test_a_node_without_samples_of_its_own_takes_the_mean_of_the_others() -> None:
    policy, hand = make(Dac, rounds=1, samples=0), Hand([A])
    hand.served = {A: replace(offer(A, 8), samples=10)}
    hand.run(policy.main())
    assert hand.all(Average)[0].own == 0
    assert policy.model == model(8)
