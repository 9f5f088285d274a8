from __future__ import annotations

from math import nan
from typing import Any

import pytest

from pfl_node.policies.pens_pull import PensPull
from pfl_node.steps import Ask, Fetch, Record, Report, Score
from pfl_node.types import PeerId
from tests.drive_policy import A, B, C, D, Hand, Run, make, model
from tests.pull_swarm import among, peers


@pytest.mark.parametrize("scored", ["mine", "theirs"])
@pytest.mark.parametrize("others", [[], [A], [A, B]])
def test_it_works_in_swarms_of_one_two_and_three(others: list[PeerId], scored: str) -> None:
    hand = among(dict.fromkeys(others, 1.0), dict.fromkeys(others, 0.5))
    hand.run(make(PensPull, rounds=4, selection_rounds=2, scored=scored).main())
    assert [set(s.data["from"]) for s in hand.all(Report)] == [set(others)] * 4


def test_a_round_asks_each_peer_once_however_often_it_is_sampled() -> None:
    all10 = peers(10)
    policy, hand = (
        make(PensPull, rounds=1, m_sample=6),
        among(dict.fromkeys(all10, 1.0), dict.fromkeys(all10, 0.5)),
    )
    hand.run(policy.main())
    asked = [p for s in hand.all(Ask) for p in s.peers]
    assert sorted(asked) == all10
    assert sum(policy.seen.values()) == 60


def test_nor_is_a_silent_peer_asked_again_in_the_same_round() -> None:
    hand = among({}, {}, also=[A, B])
    hand.run(make(PensPull, rounds=1, n_samplings=5).main())
    assert sorted(p for s in hand.all(Ask) for p in s.peers) == [A, B]


def test_on_my_data_models_are_fetched_once_a_round_and_no_more_than_a_sample_is_held() -> None:
    all10 = peers(10)
    policy, hand = (
        make(PensPull, rounds=1, m_sample=4, m_selected=2, scored="mine"),
        among(dict.fromkeys(all10, 1.0)),
    )
    held, score = [], hand.answers[Score]

    def answer(step: Score) -> Any:
        held.append(len(policy.here))
        return score(step)

    hand.answers[Score] = answer
    hand.run(policy.main())
    assert max(held) <= 4
    assert hand.all(Ask) == []
    fetched = [p for f in hand.all(Fetch) for p in f.peers]
    assert set(fetched) == set(all10)
    assert len(fetched) <= 10 + 2  # the last selection may name one that was let go


def test_a_sampling_without_an_answer_is_no_selection() -> None:
    policy, hand = make(PensPull, rounds=3, selection_rounds=1), among({}, {}, also=[A])
    hand.run(policy.main())
    assert (policy.selections, policy.neighbours, policy.model) == (0, None, model(4))


def test_a_silent_peer_is_not_expected_to_be_selected() -> None:
    policy, hand = (
        make(PensPull, rounds=1, n_samplings=2, m_selected=1),
        among({A: 1, B: 2}, {A: 0.5, B: 0.6}, also=[C]),
    )
    hand.run(policy.main())
    assert policy.expected == pytest.approx({A: 1.0, B: 1.0})


def test_an_accuracy_that_is_not_a_number_is_picked_last() -> None:
    policy, hand = make(PensPull, rounds=1, m_selected=1), among({A: 1, B: 2}, {A: nan, B: 0.1})
    hand.run(policy.main())
    assert policy.picked == {B: 10}


def test_if_nobody_was_picked_more_than_expected_the_most_often_picked_are_kept() -> None:
    policy, hand = make(PensPull, rounds=1, selection_rounds=1), among({A: 1, B: 2}, {A: 0.5, B: 0.6})
    hand.run(policy.main())
    assert policy.neighbours == [A, B]


def test_a_newcomer_is_not_fetched_in_step_2() -> None:
    assert fetched_in_step_2([A], strangers=[B], there=[A, B, D]) == {A}


def test_a_neighbour_that_is_gone_is_not_fetched() -> None:
    assert fetched_in_step_2([A, C], strangers=[B], there=[B, C]) == {C}


def test_while_all_neighbours_are_gone_it_is_greedy_among_the_others_and_counts_nothing() -> None:
    policy, hand = settled([A], strangers=[B, C], there=[B, C], m_selected=1)
    hand.scores.pop(B)
    run = Run(policy.main(), hand)
    for _ in range(5):
        run.past(Report)
    assert {tuple(f.peers) for f in hand.all(Fetch)} == {(C,)}
    assert (policy.neighbours, policy.selections, hand.all(Record)) == ([A], 0, [])
    hand.peers = (A, B, C)
    assert list(run.past(Fetch).peers) == [A]


def test_being_alone_is_no_reason_to_forget_the_neighbours() -> None:
    policy, hand = settled([A], strangers=[B], there=[])
    run = Run(policy.main(), hand)
    for _ in range(3):
        run.past(Report)
    hand.peers = (A, B)
    assert list(run.past(Fetch).peers) == [A]


def test_a_restart_keeps_the_counts_and_the_neighbours() -> None:
    others = among({A: 1, B: 2, C: 3}, {A: 0.9, B: 0.1, C: 0.2})
    before = make(PensPull, rounds=None, m_selected=1, selection_rounds=2)
    Run(before.main(), others).to(Report)
    after = make(PensPull, rounds=None, m_selected=1, selection_rounds=2)
    after.restore(before.snapshot())
    assert (after.selections, after.picked, after.neighbours) == (10, {A: 10}, None)
    Run(after.main(), others).to(Report)
    assert after.neighbours == [A]
    last = make(PensPull, rounds=None, m_selected=1, selection_rounds=2)
    last.restore(after.snapshot())
    assert list(Run(last.main(), others).to(Fetch).peers) == [A]


def fetched_in_step_2(neighbours: list[PeerId], strangers: list[PeerId], there: list[PeerId]) -> set[PeerId]:
    policy, hand = settled(neighbours, strangers, there)
    run = Run(policy.main(), hand)
    for _ in range(20):
        run.past(Report)
    return {p for f in hand.all(Fetch) for p in f.peers}


def settled(
    neighbours: list[PeerId], strangers: list[PeerId], there: list[PeerId], **options: Any
) -> tuple[PensPull, Hand]:
    """A node in step 2."""
    policy = make(PensPull, rounds=None, **options)
    policy.neighbours, policy.strangers, policy.round = neighbours, strangers, 1
    everybody = [*neighbours, *strangers, D]
    hand = among(dict.fromkeys(everybody, 1.0), dict.fromkeys(everybody, 0.5))
    hand.peers = tuple(there)
    return policy, hand
