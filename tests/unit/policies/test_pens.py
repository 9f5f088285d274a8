from __future__ import annotations

from math import nan
from typing import Any

import pytest

from pfl_node.policies.pens import Pens
from pfl_node.steps import Ask, Average, Record, Report, Score, Send, Sleep, Train
from pfl_node.types import PeerId
from tests.drive_policy import A, B, C, D, Hand, Run, core_of, losses, make, offer
from tests.pull_swarm import right


def test_models_can_be_scored_on_a_random_sample_which_is_one_for_all() -> None:
    policy, hand = searching(n_sampled=2, m=1, score_samples=50)
    feed(policy, hand, (A, 1), (B, 2))
    (score,) = hand.all(Score)
    assert (score.samples, score.own_sample_each, len(score.models)) == (50, False, 2)


def test_a_loss_that_is_not_a_number_never_wins() -> None:
    policy, hand = searching(n_sampled=3, m=1)
    hand.answers[Score] = lambda s: losses(nan, 5.0, nan)
    feed(policy, hand, (A, 1), (B, 2), (C, 3))
    assert [core_of(m) for m in hand.all(Average)[0].models] == [0, 2]


def test_by_accuracy_the_highest_is_best() -> None:
    policy, hand = searching(n_sampled=3, m=1, metric="accuracy")
    hand.answers[Score] = lambda s: (right(0.2), right(0.9), right(nan))
    feed(policy, hand, (A, 1), (B, 2), (C, 3))
    assert [core_of(m) for m in hand.all(Average)[0].models] == [0, 2]


def test_on_their_data_the_senders_are_asked_and_the_silent_are_not_selected() -> None:
    policy, hand = searching(n_sampled=4, m=1, scored="theirs", metric="accuracy")
    hand.scores = {A: right(0.4), C: right(0.6)}
    feed(policy, hand, (A, 1), (B, 2), (C, 3), (A, 4))
    (ask,) = hand.all(Ask)
    assert (ask.peers, core_of(ask.model), hand.all(Score)) == ([A, B, C], 0, [])
    assert [core_of(m) for m in hand.all(Average)[0].models] == [0, 3]
    assert (policy.seen, policy.picked) == ({A: 2, C: 1}, {C: 1})


def test_when_no_sender_tells_the_round_is_one_of_training_but_no_selection() -> None:
    policy, hand = searching(n_sampled=2, m=1, T=1, scored="theirs")
    feed(policy, hand, (A, 1), (B, 2))
    assert [s.data for s in hand.all(Report)] == [{"from": []}]
    assert (policy.selections, policy.neighbours) == (0, None)


def test_when_it_is_quiet_the_best_of_what_there_is_are_merged() -> None:
    policy, hand = searching(n_sampled=10, m=2)
    feed(policy, hand, (A, 3), (B, 1), (C, 2))
    hand.run(policy.on_quiet())
    assert [core_of(m) for m in hand.all(Average)[0].models] == [0, 1, 2]
    assert policy.expected == pytest.approx(dict.fromkeys((A, B, C), 2 / 3))


def test_a_selection_without_a_choice_says_nothing_about_a_peer() -> None:
    policy, hand = searching(n_sampled=10, m=2, T=1)
    feed(policy, hand, (A, 3), (B, 1))
    hand.run(policy.on_quiet())
    assert policy.picked == policy.expected == {A: 1, B: 1}


def test_quiet_without_a_model_is_a_round_of_training_but_no_selection() -> None:
    policy, hand = searching(T=1)
    hand.run(policy.on_quiet())
    assert policy.neighbours is None
    assert [type(s) for s in hand.asked] == [Average, Train, Report]


def test_if_nobody_was_picked_more_than_expected_the_most_often_picked_are_kept() -> None:
    policy, hand = searching(n_sampled=2, m=1, T=1, peers=[A])
    feed(policy, hand, (A, 1), (A, 2))
    assert policy.neighbours == [A]


def test_those_who_were_there_and_not_chosen_are_strangers_from_then_on() -> None:
    policy, hand = searching(n_sampled=3, m=1, T=1, peers=[A, B, C, D])
    feed(policy, hand, (A, 1), (B, 2), (C, 3))
    assert (policy.neighbours, policy.strangers) == ([A], [B, C, D])


def test_a_newcomer_is_sent_models_so_that_it_finds_its_neighbours_but_its_own_are_not_merged() -> None:
    policy, hand = settled(neighbours=[A], strangers=[B], peers=[A, B, D], n_peers=2)
    assert sent_to(policy, hand, 40) == {A, D}
    feed(policy, hand, (A, 1), (D, 100))
    assert [core_of(m) for m in hand.all(Average)[-1].models] == [0, 1]


def test_a_dead_neighbour_is_not_sent_to() -> None:
    policy, hand = settled(neighbours=[A, C], strangers=[B], peers=[B, C])
    assert sent_to(policy, hand, 20) == {C}


def test_while_all_neighbours_are_gone_the_best_of_what_comes_is_merged_as_in_step_1() -> None:
    policy, hand = settled(neighbours=[A], strangers=[B, C], peers=[B, C], n_sampled=2, m=1, T=1)
    assert sent_to(policy, hand, 20) == {B, C}
    feed(policy, hand, (B, 6), (C, 4))
    assert [core_of(m) for m in hand.all(Average)[0].models] == [0, 4]
    assert (policy.neighbours, hand.all(Record)) == ([A], [])


def test_when_a_neighbour_is_back_step_2_goes_on() -> None:
    policy, hand = settled(neighbours=[A], strangers=[B, C], peers=[B, C], n_sampled=2, m=1, n_peers=2)
    sent_to(policy, hand, 1)
    hand.peers = (A, B, C)
    assert sent_to(policy, hand, 20) == {A}
    feed(policy, hand, (A, 6), (C, 4))
    assert [core_of(m) for m in hand.all(Average)[0].models] == [0, 6]


def test_being_alone_for_a_while_is_no_reason_to_forget_the_neighbours() -> None:
    policy, hand = settled(neighbours=[A], strangers=[B], peers=[])
    main = Run(policy.main(), hand)
    for _ in range(3):
        main.past(Sleep)
    assert policy.neighbours == [A]
    hand.peers = (A, B)
    assert list(main.past(Send).to) == [A]


def test_a_node_that_only_strangers_send_to_still_makes_rounds() -> None:
    policy, hand = settled(neighbours=[A], strangers=[B], peers=[A, B], n_peers=3)
    feed(policy, hand, (B, 1), (B, 2), (B, 3))
    assert [core_of(m) for m in hand.all(Average)[0].models] == [0]
    assert [s.data for s in hand.all(Report)] == [{"from": []}]


def test_a_restart_keeps_the_counts_and_the_neighbours() -> None:
    before, hand = searching(n_sampled=3, m=1, T=2)
    feed(before, hand, (A, 1), (B, 2), (C, 3))
    after, hand = searching(n_sampled=3, m=1, T=2)
    after.restore(before.snapshot())
    assert (after.selections, after.seen, after.neighbours) == (1, {A: 1, B: 1, C: 1}, None)
    feed(after, hand, (A, 1), (B, 2), (C, 3))
    assert after.neighbours == [A]
    last, hand = searching(n_sampled=3, m=1, T=2, peers=[A, B, C])
    last.restore(after.snapshot())
    assert sent_to(last, hand, 10) == {A}


def feed(policy: Pens, hand: Hand, *models: tuple[PeerId, float]) -> None:
    for sender, value in models:
        hand.run(policy.on_model(offer(sender, value)))


def sent_to(policy: Pens, hand: Hand, times: int) -> set[PeerId]:
    """To whom it sends when it is left alone for a while."""
    main = Run(policy.main(), hand)
    return {main.past(Send).to[0] for _ in range(times)}


def searching(peers: list[PeerId] | None = None, **options: Any) -> tuple[Pens, Hand]:
    """A node in step 1, past its first training."""
    policy = make(Pens, rounds=None, **options)
    policy.trained = True
    return policy, Hand([A, B, C] if peers is None else peers)


def settled(neighbours: list[PeerId], strangers: list[PeerId], **options: Any) -> tuple[Pens, Hand]:
    """A node in step 2."""
    policy, hand = searching(**options)
    policy.neighbours, policy.strangers = neighbours, strangers
    return policy, hand
