from __future__ import annotations

import pytest

from pfl_node.model import Model
from pfl_node.policies.fedavg import ASKED, FedAvg
from pfl_node.sim.faults import Crash, Join, Restart
from pfl_node.steps import Fetch, Fresh, Gather, Report, Send, Train
from pfl_node.testing.contract.harness import IDS, ROUNDS, PolicyUnderTest
from pfl_node.types import Offer, PeerId
from tests.drive_policy import A, B, C, Hand, Run, make, model, offer


def common(value: float, round: int, *peers: PeerId) -> dict[PeerId, Offer]:
    """What these serve."""
    return {p: offer(p, value, round=round) for p in peers}


@pytest.mark.parametrize("peers", [[], [A], [A, B]])
def test_it_works_in_swarms_of_one_two_and_three(peers: list[PeerId]) -> None:
    policy, hand = make(FedAvg, rounds=2, C=1, samples=1), Hand(peers)
    hand.answers[Gather] = lambda s: tuple(Offer(p, model(101 + s.round), s.round, samples=1) for p in s.peers)
    hand.run(policy.main())
    assert policy.model == model(102)
    assert [set(s.to) for s in hand.all(Send)] == [set(peers)] * 2
    assert [s.round for s in hand.all(Report)] == [0, 1]


def test_when_nobodys_model_comes_the_model_stays() -> None:
    policy, hand = make(FedAvg, rounds=30, C=0.1), Hand([PeerId(f"p{i}") for i in range(19)])
    hand.answers[Train] = lambda s: s.model
    hand.run(policy.main())
    assert policy.model == model(100)
    assert len(hand.all(Report)) == 30


def test_a_client_that_does_not_answer_is_left_out_of_the_sum() -> None:
    policy, hand = make(FedAvg, rounds=1, C=1, samples=3), Hand([A, B, C])
    hand.answers[Gather] = lambda s: (Offer(B, model(1), 0, samples=1),)
    hand.run(policy.main())
    assert policy.model == model((3 * 101 + 1) / 4)
    assert hand.all(Report)[0].data == {"from": [B, policy.me]}


def test_it_waits_for_clients_that_train_for_long() -> None:
    policy, hand = make(FedAvg, rounds=1, wait=77, C=1), Hand([A])
    hand.run(policy.main())
    assert hand.all(Gather)[0].patience == 77


# -- those who come late, and those who come back ----------------------------------------------------------------


def test_one_who_comes_late_takes_the_common_model_and_trains_that() -> None:
    policy, hand = make(FedAvg, rounds=8, C=1, samples=1), Hand([A, B])
    policy.round, hand.served = 6, common(55, 5, A, B)
    run = Run(policy.main(), hand)
    assert run.to(Train).model == model(55)
    run.finish()
    assert [s.round for s in hand.all(Gather)] == [6, 7]
    assert [s.round for s in hand.all(Report)] == [6, 7]


def test_the_model_that_most_have_is_taken_whatever_one_claims() -> None:
    policy, hand = make(FedAvg, rounds=9, C=1), Hand([A, B, C])
    policy.round, hand.served = 6, common(1, 6, A, C) | common(2, 8, B)
    run = Run(policy.main(), hand)
    report = run.past(Report)
    assert (report.round, report.model) == (6, model(1))
    assert sorted(report.data["from"]) == [A, C]
    run.finish()
    assert [s.round for s in hand.all(Gather)] == [7, 8]  # round 6 is over there


def test_a_round_in_which_nothing_came_makes_no_common_model() -> None:
    """The next one begins with a look at what the others have."""
    policy, hand = make(FedAvg, rounds=2, C=0.1, me=PeerId("z")), Hand([PeerId(f"p{i}") for i in range(19)])
    run = Run(policy.main(), hand)
    assert run.past(Report).data == {"from": []}
    hand.served = common(7, 0, *hand.peers)
    run.finish()
    assert hand.all(Fetch)
    assert policy.model == model(7)


def test_only_some_are_asked_and_all_others_when_these_do_not_answer() -> None:
    peers = [PeerId(f"p{i}") for i in range(10)]
    policy, hand = make(FedAvg, rounds=8, C=1), Hand(peers)
    policy.round = 7
    hand.run(policy.main())
    first, second = hand.all(Fetch)
    assert len(first.peers) == ASKED
    assert sorted([*first.peers, *second.peers]) == peers
    hand = Hand(peers)
    hand.served = common(1, 6, *peers)
    policy = make(FedAvg, rounds=8, C=1)
    policy.round = 7
    hand.run(policy.main())
    assert [len(s.peers) for s in hand.all(Fetch)] == [ASKED]


def test_one_who_comes_late_and_gets_no_answer_goes_on_with_the_first_model() -> None:
    policy, hand = make(FedAvg, rounds=8, C=1, start=3), Hand([A])
    policy.round = 7
    hand.run(policy.main())
    assert hand.all(Fresh) == [Fresh(common=True)]
    assert hand.all(Train) == [Train(model(100))]


def test_one_who_is_behind_follows_until_it_is_where_the_others_are() -> None:
    policy, hand = make(FedAvg, rounds=12, C=1), Hand([A])
    policy.round, hand.served = 6, common(1, 9, A)
    hand.run(policy.main())
    assert [s.round for s in hand.all(Report)] == list(range(6, 12))
    assert [s.round for s in hand.all(Gather)] == [10, 11]


def test_one_who_comes_when_all_is_done_takes_the_last_model() -> None:
    policy, hand = make(FedAvg, rounds=8, C=1), Hand([A])
    policy.round, hand.served = 6, common(5, 7, A)
    hand.run(policy.main())
    assert policy.model == model(5)
    assert [s.round for s in hand.all(Report)] == [6, 7]
    assert hand.all(Train) == []


def test_a_node_that_was_restarted_takes_the_common_model_first() -> None:
    policy = make(FedAvg, rounds=4, C=1, samples=1)
    run = Run(policy.main(), Hand([A]))
    run.past(Report)
    run.to(Report)
    again, hand = make(FedAvg, rounds=4, C=1, samples=1), Hand([A])
    again.restore(policy.snapshot())
    hand.served = common(9, 2, A)
    hand.run(again.main())
    assert hand.all(Fresh) == []
    assert hand.all(Train)[0].model == model(9)
    assert [s.round for s in hand.all(Report)] == [2, 3]


def test_a_swarm_that_was_restarted_goes_on_with_what_it_had() -> None:
    policy = make(FedAvg, rounds=4, C=1, samples=1)
    Run(policy.main(), Hand([A])).to(Report)
    again, hand = make(FedAvg, rounds=4, C=1, samples=1), Hand([A])
    again.restore(policy.snapshot())
    hand.run(again.main())
    assert hand.all(Train)[0].model == policy.model
    assert hand.all(Fresh) == []


def test_a_node_that_fell_behind_takes_the_common_model_of_where_it_is_put() -> None:
    policy, hand = make(FedAvg, rounds=8, C=1, samples=1), Hand([A])
    hand.served = common(50, 4, A)
    hand.answers[Report] = lambda s: setattr(policy, "round", 4) if s.round == 1 else None
    hand.run(policy.main())
    assert [s.round for s in hand.all(Report)] == [0, 1, 5, 6, 7]
    assert hand.all(Train)[2].model == model(50)


def test_nodes_that_did_not_agree_agree_again_after_a_round_that_reaches_all() -> None:
    """The own model has no part in the sum, so a round that all have the models of puts all right."""
    assert after_some_rounds(start=1.0) == after_some_rounds(start=500.0)


def after_some_rounds(start: float) -> Model:
    peers = [PeerId(f"p{i}") for i in range(19)]
    policy, hand = make(FedAvg, rounds=6, C=0.1), Hand(peers)
    policy.round, hand.served = 3, common(start, 2, *peers)
    hand.answers[Gather] = lambda s: tuple(Offer(p, model(ord(p[-1])), s.round, samples=1) for p in s.peers)
    hand.run(policy.main())
    assert hand.all(Fetch)
    return policy.model


# -- in swarms ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fraction", [0.5, 1.0])
@pytest.mark.parametrize("how", ["joins", "restarts"])
def test_one_who_comes_late_or_back_ends_with_the_model_of_all(fraction: float, how: str) -> None:
    subject = PolicyUnderTest(FedAvg, C=fraction)
    late, at = IDS[2], subject.midway
    ran = subject.run(faults=[Join(at, late)] if how == "joins" else [Crash(at, late), Restart(at + 1.0, late)])
    models = [node.policy.model for node in ran.nodes.values()]
    assert all(other == models[0] for other in models)
    assert ran.rounds(late)[-1] == ROUNDS - 1
