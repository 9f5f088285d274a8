"""Early stopping against Karlsson & Onoszko 2021, section 3.4 and table 3.5, and Onoszko et al. 2021, section 5.4.
Each test quotes its source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pfl_node.policies import POLICIES
from pfl_node.policies.early_stopping import EarlyStopping
from pfl_node.policies.gossip import Gossip
from pfl_node.policies.local import Local
from pfl_node.policies.pens import Pens
from pfl_node.policies.pens_pull import PensPull
from pfl_node.policies.random_pull import RandomPull
from pfl_node.steps import Average, Linger, Publish, Record, Report, Score, Send, Train
from tests.drive_policy import A, B, Hand, Run, core_of, make, model, offer
from tests.pull_swarm import among, kinds, validated

FAMILY = (
    "local",
    "gossip",
    "pens",
    "random",
    "greedy",
    "epsilon_greedy",
    "random_weighted",
    "pens_pull",
    "oracle",
)


@pytest.mark.parametrize("name", FAMILY)
def test_the_window_is_5_rounds_and_patience_is_asked_for(name: str) -> None:
    """Table 3.5. Its patience of 50 fits 333 rounds, so here patience has no default."""
    cls = POLICIES[name]
    assert issubclass(cls, EarlyStopping)
    cfg = make(cls).cfg
    assert (cfg.window, cfg.patience) == (5, None)


def test_without_patience_nothing_is_scored_and_nobody_stops() -> None:
    hand = Hand()
    hand.run(make(Local, rounds=400).main())
    assert len(hand.all(Report)) == 400
    assert hand.all(Score) == []


@pytest.mark.parametrize(
    ("accuracies", "window", "patience", "stops", "back_to"),
    [
        ([0.5], 1, 3, 3, 0),  # never better than the first
        ([0.1, 0.2, 0.3, 0.3, 0.3, 0.3], 1, 3, 5, 2),  # as good is not better
        ([0.1, 0.9, 0.1, 0.1, 0.95, 0.1], 1, 3, 7, 4),  # better just in time
        ([0.1, 0.9, 0.1, 0.1, 0.1, 0.95], 1, 3, 4, 1),  # and a round too late
        ([0.0, 0.4, 0.2, 0.5, 0.3, 0.0, 0.0], 2, 2, 6, 4),  # means: 0, .2, .3, .35, .4, .15, 0
        ([0.9, 0.1, 0.1, 0.1, 0.1, 0.1], 5, 4, 4, 0),  # the first stands alone: .9, .5, .37, .3, .26
        ([0.5] * 60, 5, 50, 50, 0),  # the table's values
    ],
)
def test_training_stops_when_the_moving_average_had_not_increased_for_as_many_rounds_as_the_patience(
    accuracies: Sequence[float], window: int, patience: int, stops: int, back_to: int
) -> None:
    """3.4: "had not increased for a number of communication rounds, determined by the patience"."""
    policy, hand = stopping(accuracies, window=window, patience=patience)
    assert [s.round for s in hand.all(Report)] == list(range(stops + 1))
    assert [(s.event, s.data) for s in hand.all(Record)] == [("stopped", {"round": stops, "back_to": back_to})]
    assert policy.model == model(back_to + 1)


def test_or_when_the_maximal_number_of_rounds_is_reached_which_is_not_early_and_keeps_the_last_model() -> None:
    """3.4: "or when the maximal number of communication rounds had been reached"."""
    policy, hand = stopping([0.9, 0.1], window=1, patience=50, rounds=10)
    assert (len(hand.all(Report)), hand.all(Record)) == (10, [])
    assert policy.model == model(10)


def test_the_model_goes_back_to_where_the_maximum_was_and_that_is_what_is_reported() -> None:
    """3.4: "it goes back to its model at a previous time step where the maximal accuracy was achieved"."""
    policy, hand = stopping([0.1, 0.2, 0.9, 0.3], window=1, patience=2)
    assert [core_of(s.model) for s in hand.all(Report)] == [1, 2, 3, 4, 3]
    assert policy.model == model(3)


def test_the_accuracy_is_that_of_the_trained_model_on_the_local_validation_set() -> None:
    """3.4: "The validation set was used for early stopping"."""
    _, hand = stopping([0.5], window=1, patience=2)
    assert [(s.split, s.samples) for s in hand.all(Score)] == [("val", None)] * 3
    assert [[core_of(m) for m in s.models] for s in hand.all(Score)] == [[1], [2], [3]]


def test_a_pulling_node_that_stopped_stays_and_serves_its_best_model() -> None:
    """3.4: "it still participates in the training of other models by evaluating [...] and sending its own"."""
    policy, hand = make(RandomPull, rounds=None, patience=2, window=1), validated(among({A: 100}), [0.1, 0.9, 0.2])
    run = Run(policy.main(), hand)
    linger = run.to(Linger)
    assert linger.seconds is None
    reports = hand.all(Report)
    assert [s.round for s in reports] == [0, 1, 2, 3]
    assert reports[-1].model == reports[1].model == policy.model


def test_a_pushing_node_that_stopped_goes_on_sending_its_best_model_until_the_others_are_done() -> None:
    """The same sentence, for a protocol in which models are pushed."""
    policy, hand = gossiping([0.9, 0.1], rounds=None, patience=1, window=1)
    main = Run(policy.main(), hand)
    feed(policy, hand, 2)
    left = [False] * 5 + [True]
    hand.answers[Linger] = lambda _: left.pop(0)
    hand.asked.clear()
    main.finish()
    assert kinds(hand, Linger, Send)[-11:] == [*[Linger, Send] * 5, Linger]
    assert {core_of(s.model) for s in hand.all(Send)} == {core_of(policy.model)}
    assert all(0.5 <= (s.seconds or 0) <= 1.5 for s in hand.all(Linger))


def test_it_no_longer_updates_its_own_model() -> None:
    """3.4: "the client no longer updates its own model"."""
    policy, hand = gossiping([0.9, 0.1], rounds=None, patience=1, window=1)
    feed(policy, hand, 2)
    assert policy.stopped
    hand.asked.clear()
    feed(policy, hand, 3)
    hand.run(policy.on_quiet())
    assert kinds(hand, Average, Train, Report) == []


@pytest.mark.parametrize("cls", [Pens, PensPull])
def test_the_search_for_neighbours_is_not_stopped_early(cls: Any) -> None:
    """Onoszko et al. 2021, 5.4: early stopping "During step 2 of PENS, Random and Oracle"."""
    policy, hand = make(cls, patience=1), validated(Hand(), [0.5])
    hand.run(policy.check_stop())
    assert hand.asked == []
    policy.neighbours = [A]
    hand.run(policy.check_stop())
    assert kinds(hand) == [Score]


def test_every_client_stops_for_itself() -> None:
    """3.4: "carried out on each client separately": peers have no influence."""
    for peer_model in (0.0, 1000.0):
        hand = validated(among({A: peer_model, B: peer_model}), [0.5])
        hand.run(make(RandomPull, rounds=None, patience=4).main())
        assert len(hand.all(Report)) == 5
        assert kinds(hand, Publish, Linger) == [Publish, Linger]


def stopping(accuracies: Sequence[float], rounds: int | None = None, **options: Any) -> tuple[Local, Hand]:
    """A node with these validation accuracies, whose parameters are its number of trained rounds."""
    policy, hand = make(Local, rounds=rounds, **options), validated(Hand(), accuracies)
    hand.run(policy.main())
    return policy, hand


def gossiping(accuracies: Sequence[float], **options: Any) -> tuple[Gossip, Hand]:
    policy, hand = make(Gossip, n_peers=1, **options), validated(Hand([A, B]), accuracies)
    policy.trained = True
    return policy, hand


def feed(policy: Gossip, hand: Hand, times: int) -> None:
    for _ in range(times):
        hand.run(policy.on_model(offer(A, 7)))
