from __future__ import annotations

import numpy as np
import pytest

from pfl_node.model import Model
from pfl_node.policies.deprl import Deprl
from pfl_node.steps import Gather, Report, Send, Train
from pfl_node.types import PeerId
from tests.drive_policy import A, B, C, Hand, core_of, head_of, make, model, offer


def apart(step: Train) -> Model:
    """Training adds 1 to the core or 10 to the head."""
    add = (1, 1, 0) if step.only == "core" else (0, 0, 10)
    return Model(step.model.layout, step.model.vector + np.array(add, np.float32))


@pytest.mark.parametrize("peers", [[], [A], [A, B]])
def test_it_works_in_swarms_of_one_two_and_three(peers: list[PeerId]) -> None:
    policy, hand = make(Deprl, rounds=3, all_reduce=True), Hand(peers, {Train: apart})
    hand.answers[Gather] = lambda s: tuple(offer(p, model(1).core, round=s.round) for p in s.peers)
    hand.run(policy.main())
    assert [s.round for s in hand.all(Report)] == [0, 1, 2, 3]
    assert head_of(policy.model) == 30


def test_a_neighbour_that_sent_nothing_is_left_out_of_the_mean() -> None:
    policy, hand = make(Deprl, rounds=1), Hand([A, B, C], {Train: apart})
    hand.answers[Gather] = lambda s: (offer(B, model(4).core, round=0),)
    hand.run(policy.main())
    assert policy.model == model(2.5, 10)


def test_peers_may_push_cores_and_nothing_else() -> None:
    assert Deprl.takes == ("core",)
    policy, hand = make(Deprl, rounds=2, all_reduce=True), Hand([A])
    hand.run(policy.main())
    assert {s.model.layout.part for s in hand.all(Send)} == {"core"}


def test_a_core_that_is_not_a_number_is_left_out() -> None:
    policy, hand = make(Deprl, rounds=1), Hand([A, B], {Train: apart})
    hand.answers[Gather] = lambda s: (offer(A, model(float("nan")).core), offer(B, model(3).core))
    hand.run(policy.main())
    assert core_of(policy.model) == 2


def test_the_numbers_of_steps_are_knobs_and_zero_leaves_them_to_the_training_settings() -> None:
    policy, hand = make(Deprl, rounds=1, head_steps=7, core_steps=0), Hand()
    hand.run(policy.main())
    assert [(s.only, s.steps) for s in hand.all(Train)] == [("head", 7), ("core", None)]


def test_a_restart_goes_on_after_the_round() -> None:
    before = make(Deprl, rounds=3)
    before.round, before.model = 1, model(4, 9)
    after, hand = make(Deprl, rounds=3), Hand()
    after.restore(before.snapshot())
    hand.run(after.main())
    assert [s.round for s in hand.all(Report)] == [2]
    assert hand.all(Train)[0].model == model(4, 9)
