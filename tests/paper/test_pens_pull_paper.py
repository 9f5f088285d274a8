"""`pens_pull` against Karlsson & Onoszko 2021: section 3.3.2, Algorithm 4, tables 3.2 and 3.3. Each test
quotes its source."""

from __future__ import annotations

from typing import Any

import pytest

from pfl_node.policies.greedy import Greedy
from pfl_node.policies.pens_pull import PensPull
from pfl_node.policies.random_pull import RandomPull
from pfl_node.steps import Ask, Average, Fetch, Peers, Record, Report, Train
from pfl_node.types import PeerId
from tests.drive_policy import A, B, C, D, Hand, Run, make, model
from tests.pull_swarm import among, kinds, peers

ALL = peers(20)
TOLD = {p: 0.9 if i < 10 else 0.1 for i, p in enumerate(ALL)}  # the first ten have data like mine


def test_the_defaults_are_those_for_200_clients() -> None:
    """Table 3.3: m_selected 4, m_sample 20, n_samplings 10; chapter 5: 20 neighbours in step 2."""
    cfg = make(PensPull).cfg
    assert (cfg.m_selected, cfg.m_sample, cfg.n_samplings, cfg.n_peers) == (4, 20, 10, 20)
    assert (cfg.metric, cfg.scored) == ("accuracy", "theirs")


def test_a_node_trains_first_and_step_1_is_like_greedy() -> None:
    """Lines 5 and 8; 3.3.2: "The first step is similar to the Greedy algorithm"."""
    assert (PensPull.main, PensPull.greedily) == (RandomPull.main, Greedy.greedily)
    run = Run(make(PensPull).main(), hand := among({A: 1}, {A: 0.5}))
    run.to(Peers)
    assert len(hand.all(Train)) == 1


def test_a_round_of_step_1_repeats_the_sampling_and_selection_n_samplings_times() -> None:
    """Lines 7-10; 3.3.2: "the client sampling and subsetting process is repeated a number of times"."""
    policy, hand = searching(n_samplings=6, m_sample=8, m_selected=3)
    Run(policy.main(), hand).to(Report)
    assert policy.selections == 6
    assert sum(policy.picked.values()) == 6 * 3
    assert sum(policy.seen.values()) == 6 * 8


def test_only_the_last_selection_is_averaged_once_a_round() -> None:
    """Lines 11-12 with 3.3.2: repeated "before the local training"."""
    policy, hand = searching(n_samplings=6, m_sample=8, m_selected=3)
    run = Run(policy.main(), hand)
    for _ in range(3):
        run.past(Report)
    assert kinds(hand, Fetch, Average, Train, Report) == [Train, *[Fetch, Average, Train, Report] * 3]
    assert {len(f.peers) for f in hand.all(Fetch)} == {3}


def test_the_history_counts_every_selection_of_every_round() -> None:
    """Lines 3, 9 and 22: the list keeps repetitions."""
    policy, hand = searching(n_samplings=2, m_sample=20, m_selected=10, selection_rounds=50)
    run = Run(policy.main(), hand)
    for _ in range(4):
        run.past(Report)
    assert policy.picked == dict.fromkeys(ALL[:10], 8)


def test_the_neighbours_are_those_selected_more_often_than_expected_by_chance() -> None:
    """Lines 13 and 18-25; 3.3.2: "more frequently than the expected count, if clients were chosen randomly"."""
    policy, hand = searching(m_sample=10, m_selected=3, n_samplings=10, selection_rounds=6)
    run = Run(policy.main(), hand)
    for _ in range(5):
        run.past(Report)
    assert policy.neighbours is None
    run.to(Report)
    assert set(policy.neighbours or ()) <= set(ALL[:10])
    assert len(policy.neighbours or ()) >= 8
    (told,) = hand.all(Record)
    assert (told.event, told.data["ids"]) == ("neighbours", policy.neighbours)


def test_with_everybody_sampled_equally_often_the_expected_count_is_that_of_the_thesis() -> None:
    """Line 19: T = |history| / |distinct sampled|."""
    policy, hand = searching(n_samplings=5, m_sample=20, m_selected=4, selection_rounds=50)
    run = Run(policy.main(), hand)
    for _ in range(3):
        run.past(Report)
    threshold = sum(policy.picked.values()) / len(policy.seen)
    assert policy.expected == pytest.approx(dict.fromkeys(ALL, threshold))


def test_step_2_is_random_among_the_neighbours_only() -> None:
    """Line 16: "only communicating with clients in" the neighbours."""
    policy, hand = settled([A, C, D], strangers=[B], n_peers=2)
    run = Run(policy.main(), hand)
    for _ in range(40):
        run.past(Report)
    assert hand.all(Ask) == []
    assert {p for f in hand.all(Fetch) for p in f.peers} == {A, C, D}
    assert {len(f.peers) for f in hand.all(Fetch)} == {2}


def test_the_model_of_step_1_goes_on_into_step_2() -> None:
    policy, hand = make(PensPull, rounds=2, selection_rounds=1), among({A: 3}, {A: 0.5})
    hand.run(policy.main())
    assert [s.model for s in hand.all(Report)] == [model(2 + 1), model(3 + 1)]


def test_step_1_can_train_for_longer_than_step_2() -> None:
    """Tables 3.2 and 3.3: E = 10 in PENS, 3 in Random; chapter 5 says why. Line 13: the neighbours are chosen
    after the training of step 1's last round."""
    policy, hand = make(PensPull, rounds=3, selection_rounds=2, selection_epochs=10), among({A: 3}, {A: 0.5})
    hand.run(policy.main())
    assert [s.epochs for s in hand.all(Train)] == [10, 10, 10, None]


def searching(**options: Any) -> tuple[PensPull, Hand]:
    """A node in step 1 among twenty peers."""
    return make(PensPull, rounds=None, **options), among(dict.fromkeys(ALL, 0.0), TOLD)


def settled(neighbours: list[PeerId], strangers: list[PeerId], **options: Any) -> tuple[PensPull, Hand]:
    """A node in step 2."""
    policy = make(PensPull, rounds=None, **options)
    policy.neighbours, policy.strangers, policy.round = neighbours, strangers, 1
    return policy, among(dict.fromkeys([*neighbours, *strangers], 1.0))
