"""`deprl` against Xiong et al. 2024, "DePRL: Achieving Linear Convergence Speedup in Personalized Decentralized
Learning with Shared Representations": Algorithm 1 as in figure 1, a to d. Each test names its step."""

from __future__ import annotations

import pytest

from pfl_node.policies.deprl import Deprl
from pfl_node.policies.el import El
from pfl_node.steps import Average, Fetch, Gather, Report, Send, Train
from tests.drive_policy import A, B, C, D, Hand, core_of, head_of, make, model, offer
from tests.unit.policies.test_deprl import apart


def played(rounds: int = 1) -> tuple[Deprl, Hand]:
    policy, hand = make(Deprl, rounds=rounds, start=100), Hand([A, B], {Train: apart})
    hand.answers[Gather] = lambda s: (offer(A, model(3).core, round=0), offer(B, model(8).core, round=0))
    hand.run(policy.main())
    return policy, hand


def test_the_head_is_trained_first_while_the_core_stands_still() -> None:
    """Figure 1 b, local head update: tau steps; the representation is unchanged."""
    _, hand = played()
    head, _ = hand.all(Train)
    assert (head.only, head.model) == ("head", model(100))
    assert head.steps is None  # tau comes from the run's settings


def test_then_the_core_takes_one_step_with_the_new_head() -> None:
    """Figure 1 c, local representation update: one step, from the updated head and the old representation."""
    _, hand = played()
    _, core = hand.all(Train)
    assert (core.only, core.steps) == ("core", 1)
    assert core.model == model(100, 110)


def test_the_core_alone_is_shared_with_the_neighbours() -> None:
    """Figure 1 d: only the global representation travels."""
    _, hand = played()
    send = hand.all(Send)[0]
    assert (set(send.to), send.round) == ({A, B}, 0)
    assert send.model == model(101).core
    assert hand.all(Fetch) == []


def test_the_cores_become_their_mean_and_the_head_stays_personal() -> None:
    """Figure 1 d, consensus step: the next representation is an average over the neighbourhood."""
    policy, hand = played()
    assert core_of(policy.model) == pytest.approx((101 + 3 + 8) / 3)
    assert head_of(policy.model) == 110
    assert hand.all(Report)[0].model == policy.model


def test_a_round_begins_with_the_mean_of_the_round_before() -> None:
    """Figure 1 a."""
    _, hand = played(rounds=2)
    assert core_of(hand.all(Train)[2].model) == pytest.approx((101 + 3 + 8) / 3)
    assert head_of(hand.all(Train)[2].model) == 110


def test_the_final_all_reduce_is_of_the_core_only() -> None:
    """Trinca 2024, 4.1.3: "a final all-reduce step"; the authors' code leaves DePRL's heads where they are."""
    policy, hand = make(Deprl, rounds=1, all_reduce=True, degree=1), Hand([A, B, C, D], {Train: apart})
    hand.answers[Gather] = lambda s: tuple(offer(p, model(6).core) for p in s.peers if s.round == 1)
    hand.run(policy.main())
    last = hand.all(Send)[-1]
    assert (set(last.to), last.round, last.model.layout.part) == ({A, B, C, D}, 1, "core")
    assert policy.model == model((1 + 4 * 6) / 5, 10)
    assert {s.mine.layout.part for s in hand.all(Average)} == {"core"}


def test_it_is_compared_with_epidemic_learning_on_the_same_graph() -> None:
    """Trinca 2024, 4.1.2: all baselines with the same communication."""
    assert Deprl.near is El.near
    assert make(Deprl).cfg.degree == make(El).cfg.degree
