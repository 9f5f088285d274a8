from __future__ import annotations

from collections import Counter
from math import inf, nan

import pytest

from pfl_node.model import Model
from pfl_node.policies import POLICIES
from pfl_node.policies.base import Policy
from pfl_node.policies.rating import best_first
from pfl_node.store.policy_state import freeze, thaw
from tests.drive_policy import LAYOUT, losses, make, model


class Hoarder(Policy):
    keeps = ("heads", "counts", "seats")

    heads: list[Model]
    counts: Counter[str]
    seats: dict[str, list[int]]

    async def main(self) -> None:
        raise NotImplementedError


def hoarder() -> Hoarder:
    policy = make(Hoarder, rounds=None)
    policy.heads, policy.counts, policy.seats = [model(1).head], Counter(a=2), {"x": [1]}
    return policy


@pytest.mark.parametrize(
    ("values", "order"),
    [
        ([], []),
        ([3, 1, 2], [1, 2, 0]),
        ([nan, 1, nan, 0], [3, 1, 0, 2]),
        ([inf, nan, -1], [2, 0, 1]),
        ([1, 1, 1], [0, 1, 2]),
    ],
)
def test_by_loss_as_a_table(values: list[float], order: list[int]) -> None:
    assert best_first(enumerate(losses(*values)), "loss") == order


def test_the_rounds_that_remain_follow_the_policys_own_count() -> None:
    policy = make(Hoarder, rounds=5)
    seen = []
    for t in policy.remaining():
        seen.append((t, policy.round))
        if t == 1:
            policy.round = 3
    assert seen == [(0, 0), (1, 1), (4, 4)]
    assert not policy.more


def test_without_a_number_of_rounds_there_is_always_more() -> None:
    policy = make(Hoarder, rounds=None)
    policy.round = 10**9
    assert policy.more


def test_a_snapshot_does_not_change_when_the_policy_goes_on() -> None:
    policy = hoarder()
    snapshot = policy.snapshot()
    policy.heads[0] = model(9).head
    policy.counts["a"] += 1
    policy.seats["x"].append(2)
    other = hoarder()
    other.restore(snapshot)
    assert (other.heads, other.counts, other.seats) == ([model(1).head], Counter(a=2), {"x": [1]})


def test_a_restored_policy_begins_after_the_round_of_the_snapshot_with_the_same_luck() -> None:
    policy = hoarder()
    policy.round = 6
    snapshot = policy.snapshot()
    expected = policy.rng.random()
    other = hoarder()
    other.rng.seed(99)
    other.restore(snapshot)
    assert (other.round, other.rng.random()) == (7, expected)


@pytest.mark.parametrize("cls", POLICIES.values(), ids=POLICIES)
def test_what_a_policy_keeps_exists_from_the_start_and_fits_into_a_checkpoint(cls: type[Policy]) -> None:
    policy = make(cls)
    frozen, vectors = freeze(policy.snapshot())
    again = make(cls)
    again.restore(thaw(frozen, vectors, LAYOUT))
    for name in cls.keeps:
        assert getattr(again, name) == getattr(policy, name)
        assert type(getattr(again, name)) is type(getattr(policy, name))


def test_only_push_protocols_take_the_inbox() -> None:
    assert {name for name, cls in POLICIES.items() if cls.pushes()} == {"dfca", "gossip", "pens"}
    assert {"el", "facade"} <= {name for name, cls in POLICIES.items() if cls.lockstep}
    assert make(Hoarder).quiet_after is None
