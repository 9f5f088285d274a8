"""`dpsgd` against Lian et al. 2017, "Can Decentralized Algorithms Outperform Centralized Algorithms?", Algorithm
1, and Trinca 2024, section 2.2. Each test cites its source."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from statistics import fmean, pvariance

import pytest

from pfl_node.policies.dpsgd import Dpsgd, metropolis_hastings
from pfl_node.steps import Average, Gather, Report, Send, Train
from pfl_node.types import Offer, PeerId
from tests.drive_policy import A, B, Hand, Run, core_of, make, model, offer

NODES = [PeerId(f"n{i:02}") for i in range(9)]


def test_a_round_is_train_then_send_then_a_weighted_average() -> None:
    """2.2: "performing tau [...] updates [...] shared with its neighbors [...] a weighted average"."""
    policy, hand = make(Dpsgd, rounds=1), Hand([A, B])
    hand.answers[Gather] = lambda s: (offer(A, 3, round=0), offer(B, 8, round=0))
    hand.run(policy.main())
    order = [type(s) for s in hand.asked if isinstance(s, (Train, Send, Gather, Average, Report))]
    assert order == [Train, Send, Gather, Average, Report]
    assert core_of(hand.all(Send)[0].model) == 1
    assert core_of(policy.model) == pytest.approx((1 + 3 + 8) / 3)


def test_the_weights_sum_to_less_than_one_also_with_late_models() -> None:
    """Models of earlier rounds come in addition to those of the neighbours; a negative own weight would follow."""
    policy, hand = make(Dpsgd, rounds=1), Hand([A])
    hand.answers[Gather] = lambda s: tuple(offer(A, 3, round=t) for t in (0, -1, -2))
    hand.run(policy.main())
    (average,) = hand.all(Average)
    assert average.weights == [0.25] * 3
    assert average.own == 0.25


@pytest.mark.parametrize(("graph", "degree"), [("ring", 2), ("regular", 4)])
def test_the_neighbours_are_the_same_in_every_round(graph: str, degree: int) -> None:
    """2.2: "its neighbors, as defined by the static communication graph"."""
    policy, hand = make(Dpsgd, rounds=8, graph=graph), Hand(NODES)
    hand.run(policy.main())
    assert len({tuple(s.to) for s in hand.all(Send)}) == 1
    assert len(hand.all(Send)[0].to) == degree
    assert all(s.to == g.peers for s, g in zip(hand.all(Send), hand.all(Gather), strict=True))


@pytest.mark.parametrize(
    ("d_i", "d_j", "weight"), [(0, 0, 1), (1, 1, 1 / 2), (2, 2, 1 / 3), (1, 4, 1 / 5), (4, 1, 0.2)]
)
def test_the_weights_of_metropolis_hastings(d_i: int, d_j: int, weight: float) -> None:
    """W_ij = 1 / (1 + max(d_i, d_j))."""
    assert metropolis_hastings(d_i, d_j) == weight


def test_the_weights_are_symmetric_and_each_nodes_sum_to_one(lopsided: str) -> None:
    """Assumption on W: symmetric and doubly stochastic; here on a graph of unequal degrees."""
    w: dict[tuple[PeerId, PeerId], float] = {}
    for me in NODES:
        policy, hand = make(Dpsgd, rounds=1, me=me, graph=lopsided), Hand([p for p in NODES if p != me])
        hand.answers[Gather] = lambda s: tuple(offer(p, 0) for p in s.peers)
        hand.run(policy.main())
        (average,) = hand.all(Average)
        assert average.weights is not None
        w |= {(me, p): x for p, x in zip(hand.all(Gather)[0].peers, average.weights, strict=True)}
        assert average.own == pytest.approx(1 - sum(average.weights))
        assert average.own > 0
    assert all(w.get((a, b)) == w.get((b, a)) for a, b in product(NODES, NODES))


@pytest.mark.parametrize("graph", ["ring", "regular", "file"])
def test_the_mean_of_all_models_stays_and_all_come_to_it(graph: str, lopsided: str) -> None:
    """2.2: "converge toward a consensus model"; Lian et al.: averaging alone does not move the mean."""
    values = swarm(lopsided if graph == "file" else graph, rounds=60)
    assert fmean(values) == pytest.approx(fmean(range(len(NODES))), abs=1e-4)
    assert pvariance(values) < 0.002 * pvariance(range(len(NODES)))


def swarm(graph: str, rounds: int) -> list[float]:
    """Run all nodes together. The parameters of node i are i; training changes nothing."""
    sent: dict[tuple[PeerId, PeerId, int | None], Offer] = {}
    policies = {me: make(Dpsgd, rounds=rounds, me=me, start=i, graph=graph) for i, me in enumerate(NODES)}
    runs = []
    for me, policy in policies.items():
        runs.append(Run(policy.main(), beside(me, sent)))
    for _ in range(rounds):
        for run in runs:
            run.to(Gather)
        for run in runs:
            run.past(Report)
    assert all(run.pending is None for run in runs)
    return [core_of(p.model) for p in policies.values()]


def beside(me: PeerId, sent: dict[tuple[PeerId, PeerId, int | None], Offer]) -> Hand:
    """A node among all others, with a shared table of messages."""
    hand = Hand([p for p in NODES if p != me])
    hand.answers[Train] = lambda s: s.model
    hand.answers[Send] = lambda s: sent.update({(me, p, s.round): offer(me, s.model) for p in s.to})
    hand.answers[Gather] = lambda s: tuple(sent[p, me, s.round] for p in s.peers)
    return hand


@pytest.fixture
def lopsided(tmp_path: Path) -> str:
    """A hub, a triangle and a tail."""
    path = tmp_path / "graph.txt"
    path.write_text("0 1\n0 2\n0 3\n0 4\n0 5\n4 5\n5 6\n6 7\n7 8\n")
    return str(path)


def test_a_node_without_neighbours_is_plain_sgd() -> None:
    policy, hand = make(Dpsgd, rounds=3), Hand()
    hand.run(policy.main())
    assert policy.model == model(3)
