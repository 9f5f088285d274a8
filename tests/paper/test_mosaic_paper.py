"""`mosaic` against Biswas et al. 2026, "Mosaic Learning: A Framework for Decentralized Learning with Model
Fragmentation" (arXiv 2602.04352), its abstract. Each test names what it checks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from pfl_node.model import Model, PartialModel
from pfl_node.policies.el import El
from pfl_node.policies.lockstep import Lockstep
from pfl_node.policies.mosaic import Mosaic
from pfl_node.steps import Gather, Report, Send, Train
from pfl_node.types import Offer, PeerId
from tests.drive_policy import A, B, Hand, Run, core_of, head_of, make, model, offer

NODES = [PeerId(f"n{i:02}") for i in range(9)]


def sent_by(
    me: PeerId, t: int = 0, degree: int = 4, fragments: int = 3, seed: int = 0
) -> dict[PeerId, PartialModel]:
    policy = make(Mosaic, me=me, rounds=t + 1, K=fragments, degree=degree)
    policy.seed = seed
    hand = Hand([p for p in NODES if p != me])
    hand.run(policy.main())
    found: dict[PeerId, PartialModel] = {}
    for s in hand.all(Send):
        if s.round == t:
            (to,) = s.to
            assert isinstance(s.model, PartialModel)
            found[to] = s.model
    return found


def test_each_fragment_goes_to_as_many_peers_as_the_model_in_epidemic_learning() -> None:
    """Abstract: fragmentation does not increase the communication cost."""
    for me in NODES:
        places = Counter(int(i) for m in sent_by(me).values() for i in m.indices)
        assert places == {0: 4, 1: 4, 2: 4}


def test_fragments_have_graphs_of_their_own() -> None:
    """Abstract: fragments are disseminated independently, so a peer gets some of them."""
    sets = {p: tuple(m.indices) for p, m in sent_by(NODES[0]).items()}
    assert len(set(sets.values())) > 1
    assert len(sets) > 4


def test_no_graph_of_a_run_is_that_of_another_fragment_in_a_run_with_the_next_seed() -> None:
    """Abstract: fragments are disseminated independently, also of those of a repetition with another seed."""
    runs = [{(me, to): m for me in NODES for to, m in sent_by(me, seed=seed).items()} for seed in (0, 1)]
    graphs = {frozenset(edge for edge, m in run.items() if f in m.indices) for run in runs for f in range(3)}
    assert len(graphs) == 6


def test_both_ends_agree_on_what_they_exchange() -> None:
    table = {(me, to): tuple(m.indices) for me in NODES for to, m in sent_by(me).items()}
    assert all(table[b, a] == which for (a, b), which in table.items())


def test_the_graphs_are_new_in_every_round() -> None:
    assert sent_by(NODES[0], t=0).keys() != sent_by(NODES[0], t=1).keys() or any(
        tuple(m.indices) != tuple(sent_by(NODES[0], t=1)[p].indices) for p, m in sent_by(NODES[0], t=0).items()
    )


def test_a_number_is_averaged_over_those_that_sent_its_fragment() -> None:
    """The average is per fragment."""
    policy, hand = make(Mosaic, rounds=1, K=3), Hand([A, B])
    a, b = model(4, 9).fragment(0, 2, of=3), model(7).fragment(0, of=3)
    hand.answers[Gather] = lambda _: (offer(A, a), offer(B, b))
    hand.run(policy.main())
    assert core_of(policy.model) == pytest.approx((1 + 4 + 7) / 3)  # fragment 0
    assert policy.model.vector[1] == 1  # fragment 1: nobody sent it
    assert head_of(policy.model) == pytest.approx((1 + 9) / 2)  # fragment 2


def test_one_fragment_is_epidemic_learning() -> None:
    """A model in one fragment is a whole model."""
    cases: list[tuple[type[Lockstep], dict[str, Any]]] = [(El, {}), (Mosaic, {"K": 1})]
    for cls, options in cases:
        policy, hand = make(cls, rounds=2, degree=2, **options), Hand(NODES)
        hand.answers[Gather] = lambda s: tuple(offer(p, 5) for p in s.peers)
        hand.run(policy.main())
        receivers = [{p for s in hand.all(Send) if s.round == t for p in s.to} for t in range(2)]
        if cls is El:
            expected = policy.model, receivers
        else:
            assert (policy.model, receivers) == expected


def test_all_come_to_the_mean_of_each_fragment() -> None:
    """Consensus on every fragment; averaging does not move the mean."""
    sent: dict[tuple[PeerId, PeerId, int | None], Offer] = {}

    def beside(me: PeerId) -> Hand:
        hand = Hand([p for p in NODES if p != me], {Train: lambda s: s.model})
        hand.answers[Send] = lambda s: sent.update({(me, p, s.round): offer(me, s.model) for p in s.to})
        hand.answers[Gather] = lambda s: tuple(sent[p, me, s.round] for p in s.peers)
        return hand

    policies = [make(Mosaic, rounds=8, me=me, start=i, K=3, degree=2) for i, me in enumerate(NODES)]
    runs = [Run(p.main(), beside(p.me)) for p in policies]
    for _ in range(8):
        for run in runs:
            run.to(Gather)
        for run in runs:
            run.past(Report)
    found = np.array([p.model.vector for p in policies])
    assert np.allclose(found.mean(axis=0), 4, atol=1e-4)
    assert float(found.var(axis=0).max()) < 0.05


def test_in_the_all_reduce_everybody_gets_all_fragments() -> None:
    policy = make(Mosaic, me=NODES[0], rounds=1, K=3, degree=2, all_reduce=True)
    hand = Hand(NODES[1:])
    hand.run(policy.main())
    last = {s.to[0]: s.model for s in hand.all(Send) if s.round == 1}
    assert last.keys() == {*NODES[1:]}
    assert all(m.numbers.size == m.layout.size for m in last.values())


@pytest.mark.parametrize("peers", [[], [A], [A, B]])
def test_it_works_in_swarms_of_one_two_and_three(peers: list[PeerId]) -> None:
    policy, hand = make(Mosaic, rounds=3, all_reduce=True), Hand(peers)
    hand.run(policy.main())
    assert isinstance(policy.model, Model)
    assert policy.model == model(3)
