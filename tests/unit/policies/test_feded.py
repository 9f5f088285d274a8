from __future__ import annotations

import numpy as np
import pytest

from pfl_node import predictions
from pfl_node.policies.feded import FedEd
from pfl_node.sim.faults import Join
from pfl_node.steps import Distill, Fetch, Gather, Linger, Predict, Publish, Report, Send, Train
from pfl_node.testing.contract.harness import IDS, ROUNDS, PolicyUnderTest
from pfl_node.types import Offer, PeerId
from tests.drive_policy import A, B, C, Hand, Run, make, model, said

YES, NO = said(1.0), said(0.0)


def ready(*peers: PeerId) -> Hand:
    """My model says yes."""
    return Hand(peers, {Predict: lambda _: YES})


def first_of(hand: Hand) -> float:
    return float(predictions.outputs(hand.all(Distill)[-1].teacher)[0, 0])


@pytest.mark.parametrize("peers", [[], [A], [A, B]])
def test_it_works_in_swarms_of_one_two_and_three(peers: list[PeerId]) -> None:
    policy, hand = make(FedEd, rounds=2, weights="w0", samples=1), ready(*peers)
    hand.answers[Gather] = lambda s: tuple(Offer(p, NO, s.round, samples=1) for p in s.peers)
    hand.run(policy.main())
    assert first_of(hand) == pytest.approx(1 / (1 + len(peers)))
    assert [s.round for s in hand.all(Report)] == [0, 1]
    assert [set(s.to) for s in hand.all(Send) if s.to] == [set(peers)] * 2 * bool(peers)


def test_when_nobody_answers_i_am_my_own_teacher() -> None:
    policy, hand = make(FedEd, rounds=1), ready(A, B)
    hand.run(policy.main())
    assert first_of(hand) == 1.0
    assert hand.all(Report)[0].data["from"] == []


def test_it_waits_for_those_who_train_for_longer() -> None:
    policy, hand = make(FedEd, rounds=1, wait=7), ready(A)
    hand.run(policy.main())
    assert hand.all(Gather) == [Gather((A,), 0, patience=7, others=True)]


def test_those_whose_predictions_did_not_come_are_asked() -> None:
    """They had sent before I was there."""
    policy, hand = make(FedEd, rounds=1, weights="w0", samples=1), ready(A, B)
    hand.answers[Gather] = lambda _: (Offer(B, NO, 0, samples=1),)
    hand.served = {A: Offer(A, NO, 0, samples=2)}
    hand.run(policy.main())
    assert hand.all(Fetch) == [Fetch([A], part="predictions")]
    assert first_of(hand) == 0.25
    assert hand.all(Report)[0].data["from"] == [A, B]


def test_who_says_it_has_a_billion_samples_does_not_outweigh_all_others() -> None:
    policy, hand = make(FedEd, rounds=1, weights="w0", samples=1), ready(A, B)
    policy.claim = 10.0
    hand.answers[Gather] = lambda _: (Offer(A, NO, 0, samples=10**9), Offer(B, YES, 0, samples=1))
    hand.run(policy.main())
    assert first_of(hand) == pytest.approx(2 / 12)


def test_predictions_of_another_round_are_not_used() -> None:
    policy, hand = make(FedEd, rounds=2, weights="w0", samples=1), ready(A)
    hand.served = {A: Offer(A, NO, 1, samples=1)}
    hand.run(policy.main())
    assert [s.data["from"] for s in hand.all(Report)] == [[], [A]]


def test_one_who_came_after_i_had_sent_gets_mine_when_its_own_are_here() -> None:
    policy, hand = make(FedEd, rounds=1, weights="w0", samples=1), ready(A)
    hand.answers[Gather] = lambda _: (Offer(A, NO, 0, samples=1), Offer(C, NO, 0, samples=2))
    hand.run(policy.main())
    assert [(tuple(s.to), s.model, s.round) for s in hand.all(Send)] == [((A,), YES, 0), ((C,), YES, 0)]
    assert first_of(hand) == 0.25


def test_what_i_say_can_be_fetched_before_anybody_waits_for_it() -> None:
    policy, hand = make(FedEd, rounds=1), ready(A)
    Run(policy.main(), hand).to(Send)
    assert hand.all(Publish) == [Publish(YES, round=0)]


def test_one_who_comes_when_the_others_are_done_does_their_last_round() -> None:
    policy, hand = make(FedEd, rounds=3, weights="w0", samples=1), ready(A)
    policy.round, hand.served = 3, {A: Offer(A, NO, 2, samples=3)}
    hand.run(policy.main())
    assert [s.round for s in hand.all(Report)] == [2]
    assert first_of(hand) == 0.25


def test_one_who_comes_late_begins_in_the_others_round() -> None:
    assert FedEd.lockstep
    policy, hand = make(FedEd, rounds=5), ready(A)
    policy.round = 3
    hand.run(policy.main())
    assert [s.round for s in hand.all(Gather)] == [3, 4]


def test_in_the_end_it_stays_for_those_who_are_late() -> None:
    policy, hand = make(FedEd, rounds=1), ready(A)
    hand.run(policy.main())
    assert hand.asked[-1] == Linger()


def test_a_node_restarted_after_its_last_round_does_not_do_it_again() -> None:
    policy = make(FedEd, rounds=1)
    Run(policy.main(), ready()).to(Report)
    again, hand = make(FedEd, rounds=1), ready()
    again.restore(policy.snapshot())
    hand.run(again.main())
    assert hand.asked == [Linger()]
    assert again.model == policy.model


def test_a_node_restarted_between_two_rounds_goes_on_from_its_student() -> None:
    policy = make(FedEd, rounds=3)
    Run(policy.main(), ready()).to(Report)
    again, hand = make(FedEd, rounds=3), ready()
    again.restore(policy.snapshot())
    hand.run(again.main())
    assert [s.round for s in hand.all(Report)] == [1, 2]
    assert hand.all(Train)[0].model == policy.model


def test_without_anything_that_can_be_used_the_local_model_stays() -> None:
    nonsense = predictions.pack(YES.layout, np.array([[np.nan, 1.0]]))
    policy, hand = make(FedEd, rounds=1), ready(A)
    hand.answers[Predict] = lambda _: nonsense
    hand.answers[Gather] = lambda _: (Offer(A, nonsense, 0, samples=1),)
    hand.run(policy.main())
    assert hand.all(Distill) == []
    assert policy.model == model(1)


def test_when_the_students_training_diverges_the_local_model_stays() -> None:
    policy, hand = make(FedEd, rounds=1), ready(A)
    hand.answers[Distill] = lambda s: s.model  # thrown away: the new student as it was
    hand.run(policy.main())
    assert policy.model == model(1)


@pytest.mark.parametrize("moment", [0.2, 0.5, 0.8, 0.95])
def test_in_a_swarm_a_latecomers_last_teacher_is_everybody(moment: float) -> None:
    subject = PolicyUnderTest(FedEd)
    ran = subject.run(faults=[Join(moment * subject.end, IDS[2])])
    rows = ran.of("round", IDS[2])
    assert rows[-1]["round"] == ROUNDS - 1
    assert rows[-1]["from"] == [node for node in IDS if node != IDS[2]]
