"""A node that fell behind moves to the round of the swarm."""

from __future__ import annotations

from pfl_node.node.catchup import TRUSTING_ROUNDS, CatchUp
from pfl_node.policies.base import Policy
from pfl_node.policies.el import El
from pfl_node.policies.local import Local
from pfl_node.protocol.mailbox import Mailbox
from pfl_node.types import PeerId
from tests.drive_policy import A, B, C, make


class Swarm:
    """The rounds of the peers and the number of pauses, as inputs of CatchUp."""

    def __init__(self, policy: type[Policy] = El, rounds: int | None = None) -> None:
        self.box = Mailbox()
        self.rounds: dict[PeerId, int] = {}
        self.pauses = 0
        self.policy = make(policy, rounds=rounds)
        self.catch_up = CatchUp(self.box, lambda: self.rounds, lambda: self.pauses)

    def after(self, round: int, *, stale: bool = True) -> int:
        """The next round of the node."""
        self.policy.round = round
        self.box.advance(round)
        if stale:
            self.box.refused_as_stale(A)
        self.catch_up.after(round, self.policy)
        return self.policy.round + 1


def test_one_that_is_not_behind_goes_on() -> None:
    swarm = Swarm()
    swarm.rounds = {A: 90, B: 90}
    assert swarm.after(5, stale=False) == 6


def test_one_that_was_slow_believes_others_as_far_as_their_models_are_taken() -> None:
    swarm = Swarm()
    swarm.rounds = {A: 90, B: 90, C: 90}
    assert swarm.after(5) == 5 + 16


def test_one_that_stood_still_goes_where_half_of_the_others_are_at_once() -> None:
    swarm = Swarm()
    swarm.pauses, swarm.rounds = 1, {A: 90, B: 95, C: 10**9}
    assert swarm.after(5) == 95
    assert swarm.box.round == 95  # what comes for that round is taken


def test_the_others_may_not_have_said_yet_how_far_they_are() -> None:
    swarm = Swarm()
    swarm.pauses, swarm.rounds = 1, {A: 5, B: 5, C: 5}
    assert swarm.after(5) == 6
    swarm.rounds = {A: 90, B: 90, C: 90}
    assert swarm.after(6) == 90


def test_some_rounds_after_a_pause_nobody_can_send_it_away() -> None:
    swarm = Swarm()
    swarm.pauses = 1
    for round in range(TRUSTING_ROUNDS):
        swarm.after(round, stale=False)
    swarm.rounds = {A: 10**9, B: 10**9}
    assert swarm.after(TRUSTING_ROUNDS) == TRUSTING_ROUNDS + 16


def test_nobody_goes_beyond_the_last_round() -> None:
    swarm = Swarm(rounds=50)
    swarm.pauses, swarm.rounds = 1, {A: 10**9, B: 10**9}
    assert swarm.after(5) == 50


def test_rounds_of_its_own_are_nobody_elses() -> None:
    swarm = Swarm(Local)
    swarm.pauses, swarm.rounds = 1, {A: 90, B: 90}
    assert swarm.after(5) == 6
