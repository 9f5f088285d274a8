from __future__ import annotations

import pytest

from pfl_node.errors import ConfigError
from pfl_node.policies import configure
from pfl_node.policies.el import El
from pfl_node.steps import Gather, Report, Send, Train
from pfl_node.types import PeerId
from tests.drive_policy import A, B, C, D, Hand, Run, make, model, offer


@pytest.mark.parametrize("peers", [[], [A], [A, B]])
@pytest.mark.parametrize("graph", ["shared", "own"])
def test_it_works_in_swarms_of_one_two_and_three(peers: list[PeerId], graph: str) -> None:
    policy, hand = make(El, rounds=2, graph=graph), Hand(peers)
    hand.answers[Gather] = lambda s: tuple(offer(p, 1 + s.round, round=s.round) for p in s.peers)
    hand.run(policy.main())
    assert policy.model == model(2)
    assert [set(s.to) for s in hand.all(Send)] == [set(peers)] * 2


def test_a_neighbour_that_sent_nothing_is_left_out_of_the_mean() -> None:
    policy, hand = make(El, rounds=1), Hand([A, B, C])
    hand.answers[Gather] = lambda s: (offer(B, 4, round=0),)
    hand.run(policy.main())
    assert policy.model == model(2.5)


def test_it_goes_on_for_ever_when_no_number_of_rounds_is_given() -> None:
    run = Run(make(El, rounds=None, all_reduce=True).main(), hand := Hand([A]))
    for _ in range(100):
        run.past(Report)
    assert [s.round for s in hand.all(Report)] == list(range(100))


def test_a_late_node_begins_in_the_swarms_round() -> None:
    assert El.lockstep
    policy, hand = make(El, rounds=8), Hand([A])
    policy.round = 6
    hand.run(policy.main())
    assert [s.round for s in hand.all(Gather)] == [6, 7]


def test_a_node_that_fell_behind_skips_to_where_it_is_put_at_a_report() -> None:
    policy, hand = make(El, rounds=8), Hand([A])
    hand.answers[Report] = lambda s: setattr(policy, "round", 5) if s.round == 1 else None
    hand.run(policy.main())
    assert [s.round for s in hand.all(Report)] == [0, 1, 6, 7]


def test_the_all_reduce_is_not_done_again_after_a_restart() -> None:
    policy, hand = make(El, rounds=2, all_reduce=True), Hand([A])
    hand.run(policy.main())
    assert [s.round for s in hand.all(Report)] == [0, 1, 2]
    policy.round = 2
    again, hand = make(El, rounds=2, all_reduce=True), Hand([A])
    again.restore(policy.snapshot())
    hand.run(again.main())
    assert hand.asked == []


def test_a_node_stopped_between_the_last_round_and_the_all_reduce_does_it_after_the_restart() -> None:
    policy, hand = make(El, rounds=2, all_reduce=True), Hand([A])
    policy.round = 1
    again, hand = make(El, rounds=2, all_reduce=True), Hand([A])
    again.restore(policy.snapshot())
    hand.run(again.main())
    assert [s.round for s in hand.all(Report)] == [2]
    assert hand.all(Train) == []


def test_in_the_shared_graph_only_neighbours_count_and_with_own_choices_whoever_sent() -> None:
    for graph, others in (("shared", False), ("own", True)):
        policy, hand = make(El, rounds=1, graph=graph), Hand([A, B])
        hand.run(policy.main())
        assert hand.all(Gather)[0].others is others


def test_a_model_of_a_peer_that_was_not_foreseen_is_averaged_with_own_choices() -> None:
    policy, hand = make(El, rounds=1, graph="own"), Hand([A])
    hand.answers[Gather] = lambda s: (offer(A, 3, round=0), offer(D, 8, round=0))
    hand.run(policy.main())
    assert policy.model == model((1 + 3 + 8) / 3)


def test_a_graph_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"policy.graph = 'shred': input should be 'shared' or 'own'"):
        configure(El, {"graph": "shred"})
