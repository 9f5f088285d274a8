from __future__ import annotations

import pytest

from pfl_node.policies.random_pull import RandomPull
from pfl_node.steps import Average, Fetch, Linger, Publish, Report, Train
from pfl_node.types import PeerId
from tests.drive_policy import A, B, C, Hand, Run, core_of, make, model
from tests.pull_swarm import among, kinds, peers


@pytest.mark.parametrize("others", [[], [A], [A, B]])
def test_it_works_in_swarms_of_one_two_and_three(others: list[PeerId]) -> None:
    policy, hand = make(RandomPull, rounds=2), among(dict.fromkeys(others, 1.0))
    hand.run(policy.main())
    assert [set(s.data["from"]) for s in hand.all(Report)] == [set(others)] * 2
    assert len(hand.all(Train)) == 3


def test_with_no_peers_it_simply_trains() -> None:
    policy, hand = make(RandomPull, rounds=3), Hand()
    hand.run(policy.main())
    assert policy.model == model(1 + 3)


def test_with_fewer_peers_than_m_selected_all_are_selected() -> None:
    hand = among(dict.fromkeys(peers(5), 1.0))
    hand.run(make(RandomPull, rounds=1, m_selected=6).main())
    assert set(hand.all(Fetch)[0].peers) == set(peers(5))


def test_a_peer_that_is_gone_or_has_not_published_is_left_out_of_the_average() -> None:
    policy, hand = make(RandomPull, rounds=1), among({B: 4}, also=[A, C])
    hand.run(policy.main())
    assert [core_of(m) for m in hand.all(Average)[0].others] == [4]
    assert hand.all(Report)[0].data == {"from": [B]}
    assert policy.model == model(2.5 + 1)


def test_when_nobody_answers_the_round_is_one_of_training() -> None:
    policy, hand = make(RandomPull, rounds=1), Hand([A, B])
    hand.run(policy.main())
    assert policy.model == model(2)
    assert hand.all(Report)[0].data == {"from": []}


def test_a_model_can_be_fetched_before_the_first_round_is_done() -> None:
    run = Run(make(RandomPull).main(), hand := Hand([A]))
    assert core_of(run.to(Publish).model) == 1
    assert kinds(hand) == [Train]


def test_a_node_that_is_done_stays_for_those_who_still_fetch() -> None:
    run = Run(make(RandomPull, rounds=1).main(), Hand())
    assert run.to(Linger).seconds is None
    run.go()
    assert run.pending is None


def test_a_restarted_node_publishes_what_it_has_and_does_not_train_first() -> None:
    before, hand = make(RandomPull, rounds=5), among({A: 1})
    run = Run(before.main(), hand)
    run.past(Report)
    run.to(Report)
    after, hand = make(RandomPull, rounds=5), among({A: 1})
    after.restore(before.snapshot())
    hand.run(after.main())
    assert isinstance(hand.asked[0], Publish)
    assert (hand.asked[0].model, hand.asked[0].round) == (before.model, 2)
    assert [s.round for s in hand.all(Report)] == [2, 3, 4]


def test_a_node_restarted_after_its_last_round_only_serves() -> None:
    before = make(RandomPull, rounds=1)
    Run(before.main(), Hand()).to(Report)
    after, hand = make(RandomPull, rounds=1), Hand([A])
    after.restore(before.snapshot())
    hand.run(after.main())
    assert kinds(hand) == [Publish, Linger]


def test_without_a_number_of_rounds_it_goes_on() -> None:
    run = Run(make(RandomPull, rounds=None).main(), hand := Hand([A]))
    for _ in range(50):
        run.past(Report)
    assert [s.round for s in hand.all(Report)] == list(range(50))
