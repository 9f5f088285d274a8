"""`choco` against Koloskova, Stich & Jaggi 2019, "Decentralized Stochastic Optimization and Gossip Algorithms with
Compressed Communication", Algorithms 1 and 2. Each test names its source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfl_node.model import PartialModel
from pfl_node.policies.choco import Choco
from pfl_node.policies.dpsgd import Dpsgd
from pfl_node.steps import Gather, Report, Send, Train
from pfl_node.types import Offer, PeerId
from tests.drive_policy import A, B, Hand, Run, core_of, make, model, offer

NODES = [PeerId(f"n{i:02}") for i in range(9)]
Loses = Callable[[PeerId, PeerId, int], bool]


def swarm(
    rounds: int, loses: Loses = lambda *_: False, cls: type[Dpsgd] = Choco, **options: Any
) -> tuple[list[Any], list[Hand]]:
    """All nodes together, without training: node i starts at i."""
    sent: dict[tuple[PeerId, PeerId, int], Offer] = {}

    def beside(me: PeerId) -> Hand:
        def send(s: Send) -> tuple[PeerId, ...]:
            took = tuple(p for p in s.to if not loses(me, p, s.round or 0))
            sent.update(
                {(me, p, s.round or 0): replace(offer(me, s.model, s.round, s.tag), notes=s.notes) for p in took}
            )
            return took

        hand = Hand([p for p in NODES if p != me], {Train: lambda s: s.model, Send: send})
        hand.answers[Gather] = lambda s: tuple(sent[k] for p in s.peers if (k := (p, me, s.round)) in sent)
        return hand

    policies = [make(cls, rounds=rounds, me=me, start=i, **options) for i, me in enumerate(NODES)]
    hands = [beside(p.me) for p in policies]
    runs = [Run(p.main(), h) for p, h in zip(policies, hands, strict=True)]
    for _ in range(rounds):
        for run in runs:
            run.to(Gather)
        for run in runs:
            run.past(Report)
    return policies, hands


def test_a_message_has_the_numbers_that_differ_most_from_what_the_neighbours_know() -> None:
    """Algorithm 2, line 5: q = Q(x - x_hat), here top-k (section 3.5); line 7: q is all that is sent."""
    policy, hand = make(Choco, rounds=2, share=1 / 3), Hand([A])
    hand.answers[Train] = lambda s: replace_last(s, 5)
    hand.answers[Send] = lambda s: tuple(s.to)
    hand.run(policy.main())
    q = next(s for s in hand.all(Send) if s.round == 1 and s.to).model
    assert isinstance(q, PartialModel)
    assert q.indices.tolist() == [2]


def replace_last(step: Train, add: float) -> Any:
    return type(step.model)(step.model.layout, step.model.vector + np.array([0, 1, add], np.float32))


def test_every_copy_of_x_hat_is_the_same() -> None:
    """Section 3.4: x_hat_i is stored by all neighbours of i and by i; all apply the same q."""
    policies, _ = swarm(7, share=1 / 3)
    by_id = {p.me: p for p in policies}
    for p in policies:
        assert p.theirs
        assert all(m == by_id[j].mine for j, (_, m) in p.theirs.items())


@pytest.mark.parametrize(("share", "gamma"), [(1 / 3, 0.4), (2 / 3, 0.6), (1.0, 1.0)])
def test_all_come_to_the_mean_although_messages_are_compressed(share: float, gamma: float) -> None:
    """Theorem 2: CHOCO-Gossip converges linearly to the mean, if gamma is small; section 3.4: the mean stays."""
    policies, _ = swarm(150, share=share, gamma=gamma)
    values = np.array([p.model.vector for p in policies])
    assert np.allclose(values.mean(axis=0), 4, atol=1e-3)
    assert np.allclose(values, 4, atol=0.02)


def test_without_compression_and_with_gamma_1_it_is_exact_gossip() -> None:
    """Remark 3: without compression and with gamma = 1 it is plain decentralized SGD."""
    exact = [p.model for p in swarm(5, cls=Dpsgd)[0]]
    found = [p.model for p in swarm(5, share=1.0, gamma=1.0)[0]]
    assert all(np.allclose(a.vector, b.vector, atol=1e-5) for a, b in zip(exact, found, strict=True))


def test_the_mean_stays_although_nodes_have_different_degrees(tmp_path: Path) -> None:
    """Assumption 1: W is symmetric and doubly stochastic."""
    star = tmp_path / "star.txt"
    star.write_text("".join(f"0 {i}\n" for i in range(1, len(NODES))))
    policies, _ = swarm(20, share=2 / 3, gamma=0.6, graph=str(star))
    assert np.allclose(np.mean([p.model.vector for p in policies], axis=0), 4, atol=1e-3)


def test_the_noise_of_neighbours_cannot_cancel_in_compressed_messages() -> None:
    assert Choco.pair_degree(make(Choco).cfg) == 0 < Dpsgd.pair_degree(make(Dpsgd).cfg)


def test_a_neighbour_that_missed_a_message_gets_x_hat_as_a_whole() -> None:
    """The copies of x_hat must stay equal; a message that was not accepted is made good by the next one."""
    loses: Loses = lambda a, b, t: (NODES.index(a) + 2 * NODES.index(b) + t) % 4 == 0 and t < 20  # noqa: E731
    policies, _ = swarm(80, loses, share=1 / 3, gamma=0.4)
    by_id = {p.me: p for p in policies}
    assert all(m == by_id[j].mine for p in policies for j, (_, m) in p.theirs.items())
    values = np.array([p.model.vector for p in policies])
    assert np.ptp(values) < 0.1


def test_messages_are_partial_once_the_neighbours_are_in_step() -> None:
    _, hands = swarm(4, share=1 / 3)
    for hand in hands:
        partial = [isinstance(s.model, PartialModel) for s in hand.all(Send) if s.to]
        assert partial == [False, True, True, True]


def test_after_a_restart_a_node_asks_for_what_it_lacks() -> None:
    policy, hand = make(Choco, rounds=2), Hand([A, B])
    policy.synced, policy.mine = {A, B}, model(0)
    hand.answers[Send] = lambda s: tuple(s.to)
    hand.answers[Gather] = lambda s: (
        replace(offer(A, model(5).sparse([0]), s.round), notes={"me": 1.0}),
        offer(B, model(3), s.round),
    )
    hand.run(policy.main())
    first, second = hand.all(Send)[0], [s for s in hand.all(Send) if s.round == 1]
    assert dict(first.notes) == {"a": 1.0, "b": 1.0}
    assert policy.theirs.keys() == {B}  # a part of x_hat_a is of no use without the rest
    assert {tuple(s.to): isinstance(s.model, PartialModel) for s in second} == {(B,): True, (A,): False}


def test_a_change_that_does_not_follow_the_one_before_is_not_applied() -> None:
    """A node that restarts from a checkpoint, or skips a round, has missed changes or sends some again."""
    for tag, known in ((8, True), (7, False), (9, False)):
        policy = make(Choco)
        policy.theirs = {A: (7, model(1))}
        policy.update([offer(A, model(5).sparse([0]), tag=tag)], [A])
        assert (A in policy.theirs) is known
        assert policy.lacking([A]) == ({} if known else {A: 1.0})


@pytest.mark.parametrize("peers", [[], [A], [A, B]])
def test_it_works_in_swarms_of_one_two_and_three(peers: list[PeerId]) -> None:
    policy, hand = make(Choco, rounds=3), Hand(peers)
    hand.run(policy.main())
    assert core_of(policy.model) == 3
    assert [s.round for s in hand.all(Report)] == [0, 1, 2]
